"""What the doctor finds in the configuration files of our daemons."""

import json
from pathlib import Path

import pytest

from tests.nri_qos import nodes
from ubnode.__main__ import main


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UB_ROOT", str(tmp_path))
    nodes.write(nodes.machine("0-3"), tmp_path)
    (tmp_path / "etc/ub-node").mkdir(parents=True)
    return tmp_path / "etc/ub-node"


def found(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    main(["doctor", "--json"])
    return [f for f in json.loads(capsys.readouterr().out)["findings"] if f["check"] == "configuration"]


@pytest.mark.parametrize(
    ("file", "text", "daemon", "cause"),
    [
        ("nri.yaml", "reserved: 0-3", "nri-qos", "reserved 0-3: none of the CPUs of this node, 0-3, is left"),
        ("nri.yaml", "floor: many", "nri-qos", "$.floor: "),
        ("agent.yaml", "a: [", "ub-agent", "is not YAML"),
        ("csi.yaml", "memory_quota: {shop: 1KB}", "ub-csi", "memory_quota.shop: '1KB' is no size"),
    ],
)
def test_a_daemon_that_would_not_take_its_configuration_is_a_problem_with_a_next_step(
    file: str, text: str, daemon: str, cause: str, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / file).write_text(text)
    [finding] = found(capsys)
    assert finding["verdict"] == "problem"
    assert finding["title"] == f"{daemon} does not take its configuration"
    assert cause in finding["cause"]
    assert finding["next_step"] == f"correct {node / file}, and systemctl restart {daemon}"


def test_configurations_that_are_right_or_are_not_there_are_not_spoken_of(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not found(capsys)
    (node / "nri.yaml").write_text("reserved: 0-2")
    (node / "agent.yaml").write_text("")
    assert not found(capsys)


def test_a_configuration_that_is_a_link_to_nothing_is_a_problem(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (node / "nri.yaml").symlink_to("gone.yaml")
    [finding] = found(capsys)
    assert "cannot read" in finding["cause"]
