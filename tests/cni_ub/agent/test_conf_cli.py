"""``ubnode conf`` as a person uses it."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cni_ub.agent.test_confplan import CALICO, MULTUS
from ubnode.__main__ import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    made = tmp_path / "etc/cni/net.d"
    made.mkdir(parents=True)
    (made / "10-calico.conflist").write_text(json.dumps(CALICO))
    (made / "00-multus.conf").write_text(json.dumps(MULTUS))
    (made / "99-broken.conf").write_text("{")
    return made


def test_the_files_are_listed_with_what_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conf", "--mode", "conflist", "--apply"]) == 0
    assert capsys.readouterr().out == f"changed {folder}/00-ub-cni.conflist\n"
    assert main(["conf"]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "FILE NETWORK PLUGINS ROLE",
        "00-multus.conf multus-cni-network multus-shim -",
        "00-ub-cni.conflist k8s-pod-network bridge,portmap,ub-cni ours",
        "10-calico.conflist k8s-pod-network bridge,portmap primary",
        "99-broken.conf - - invalid: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1)",
    ]
    assert main(["conf", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["folder"] == str(folder)
    assert [file["role"] for file in shown["files"]][1:3] == ["ours", "primary"]


def test_print_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    assert main(["conf", "--mode", "conflist", "--print"]) == 0
    printed = capsys.readouterr()
    assert [plugin["type"] for plugin in json.loads(printed.out)["plugins"]] == ["bridge", "portmap", "ub-cni"]
    assert printed.err == f"{folder}/00-ub-cni.conflist:\n"
    assert sorted(folder.iterdir()) == before


def test_nad_prints_what_kubectl_applies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "agent.yaml"
    config.write_text("resources: [{name: example.org/urma}]\nconf: {nad_name: fast}\n")
    assert main(["conf", "--config", str(config), "--mode", "nad", "--print"]) == 0
    definition = yaml.safe_load(capsys.readouterr().out)
    assert definition["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": "example.org/urma"}
    assert definition["metadata"]["name"] == "fast"


def test_remove_leaves_what_is_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    main(["conf", "--mode", "conflist", "--apply"])
    assert main(["conf", "--remove"]) == 0
    assert main(["conf", "--remove", "--json"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"removed {folder}/00-ub-cni.conflist",
        '{"removed": []}',
    ]
    assert sorted(folder.iterdir()) == before


def test_a_folder_that_is_missing_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    assert main(["conf"]) == 1
    assert capsys.readouterr().err == (
        f"ubnode conf: {tmp_path}/etc/cni/net.d is missing: no runtime is set up here, or it is not mounted\n"
    )
