"""How the doctor looks: at anything that others wrote, and at what is not there."""

import json
import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ubhost.healthy_node import CDI_FILE, HEALTHY, only
from ubhost.doctor.cli import main
from ubhost.doctor.facts import ConfigFile
from ubhost.doctor.look import look
from ubhost.roots import Roots


def test_an_empty_machine_is_looked_at_without_an_error(tmp_path: Path) -> None:
    facts = look(Roots(tmp_path))
    assert facts.found is None
    assert facts.trouble is not None
    assert "no UB host here" in facts.trouble
    assert (facts.cgroup, facts.cni, facts.containerd, facts.versions) == (None, (), None, {})
    assert [(daemon.socket.exists, daemon.answers, daemon.unit) for daemon in facts.daemons] == [(False, False, "")] * 3


def test_a_program_that_was_killed_is_told_from_one_that_answers(tmp_path: Path) -> None:
    roots = Roots(tmp_path)
    roots.run.mkdir(parents=True)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/nri-qos.service").touch()
    with socket.socket(socket.AF_UNIX) as living, socket.socket(socket.AF_UNIX) as dead:
        living.bind(str(roots.agent_socket))
        living.listen()
        dead.bind(str(roots.run / "nri-qos.sock"))
        agent, csi, qos = look(roots).daemons
    assert (agent.answers, csi.answers, qos.answers) == (True, False, False)
    assert (qos.socket.is_socket, qos.unit, agent.unit) == (True, "nri-qos.service", "")


def test_records_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    folder = Roots(tmp_path).state / "attachments"
    folder.mkdir(parents=True)
    (folder / "urma_1@c1@net1.json").write_text('{"version": ')
    assert look(Roots(tmp_path)).damaged == ("urma_1",)
    shutil.rmtree(folder)
    folder.touch()
    assert "Not a directory" in (look(Roots(tmp_path)).ledger_trouble or "")


def test_configurations_of_others_are_read_and_broken_ones_are_told(tmp_path: Path) -> None:
    files = {
        "etc/containerd/config.toml": 'version = 2\n[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n',
        "etc/cni/net.d/10-a.conflist": '{"plugins": [{"type": "ub-cni"}]}',
        "etc/cni/net.d/20-b.conf": "{",
        "var/run/cdi/x.json": "[]",
        "var/lib/kubelet/config.yaml": "cpuManagerPolicy: static\n",
        "etc/crio/crio.conf.d/10.conf": "[crio.nri]\nenable_nri = true\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids",
        "sys/fs/selinux/enforce": "1",
        "usr/lib64/liburma.so.0": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    facts = look(Roots(tmp_path))
    assert facts.containerd is not None
    assert facts.containerd.content["version"] == 2
    assert [bool(file.trouble) for file in facts.cni] == [False, True]
    assert facts.cdi[0].trouble == "it holds no table"
    assert facts.kubelet is not None
    assert facts.kubelet.content == {"cpuManagerPolicy": "static"}
    assert facts.crio[0].content["crio"]["nri"]["enable_nri"]
    assert (facts.cgroup, facts.selinux, facts.libraries) == ("v2", "enforcing", ("liburma.so.0",))


KEYS = (
    "plugins", "type", "kind", "devices", "crio", "nri", "enable_nri", "version", "imports", "disable", "enable_cdi",
    "cpuManagerPolicy", "io.containerd.nri.v1.nri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime",
)  # fmt: skip
leaves = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["ub-cni", "static", "", "*"]))
contents = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner), max_leaves=6
    ),
)
files = st.builds(ConfigFile, st.just("/file"), contents)
cdi_files = st.builds(
    ConfigFile, st.just("/cdi"), contents.map(lambda content: {**content, "kind": CDI_FILE.content["kind"]})
)


@given(files, files, files, cdi_files, files)
def test_whatever_others_wrote_is_examined(
    kubelet: ConfigFile, containerd: ConfigFile, crio: ConfigFile, cdi: ConfigFile, cni: ConfigFile
) -> None:
    for runtime in (containerd, None):
        facts = replace(HEALTHY, kubelet=kubelet, containerd=runtime, crio=(crio,), cdi=(cdi,), cni=(cni,))
        for finding in only(facts):
            assert finding.cause
            assert finding.next_step


@given(contents)
def test_whatever_containerd_imports_is_looked_at(content: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "etc/containerd/config.toml")
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in content.items()))
        found = look(Roots(Path(name))).containerd
        assert found is not None
        assert found.trouble is None


def toml(value: object) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return json.dumps("" if value is None else value)


@pytest.mark.parametrize("imports", ["/etc/containerd/conf.d/*.toml", "conf.d/*.toml"])
def test_what_containerd_imports_counts_and_a_broken_import_is_named(tmp_path: Path, imports: str) -> None:
    folder = tmp_path / "etc/containerd"
    (folder / "conf.d").mkdir(parents=True)
    (folder / "config.toml").write_text(f'version = 2\nimports = ["{imports}"]\n')
    (folder / "conf.d/90-nri.toml").write_text('[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n')
    found = look(Roots(tmp_path)).containerd
    assert found is not None
    assert found.content["plugins"] == {"io.containerd.nri.v1.nri": {"disable": False}}
    assert "nri" not in {f.check for f in only(replace(HEALTHY, containerd=found))}
    (folder / "conf.d/95-broken.toml").write_text("[")
    found = look(Roots(tmp_path)).containerd
    assert found is not None
    assert (found.path, found.trouble is None) == (str(folder / "conf.d/95-broken.toml"), False)


def test_the_command_tells_programs_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    assert main(["--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["fit"] is False
    assert document["findings"][0]["check"] == "provider"
    assert main([]) == 1
    assert "no UB or RDMA devices" in capsys.readouterr().out
