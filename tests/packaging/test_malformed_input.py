"""Whatever is wrong with the input, each executable ends with one clear error and an exit code, never a traceback."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import PROGRAMS, Run

pytestmark = pytest.mark.binary

POD = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/proc/self/ns/net", "CNI_IFNAME": "ub0", "CNI_PATH": "/nowhere"}
NETWORK = json.dumps({"cniVersion": "1.1.0", "name": "ub", "type": "ub-cni"})


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one error line of an executable that refused; usage text before it does not count."""
    assert done.returncode in (1, 2)
    assert not done.stdout
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    errors = [line for line in lines if re.match(rf"({'|'.join(PROGRAMS)})[a-z ]*: ", line)]
    assert len(errors) == 1, done.stderr
    assert lines[-1] == errors[0] or lines[0] == errors[0]
    return errors[0]


def cni_error(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)  # exactly one document
    assert isinstance(answer, dict)
    assert answer["msg"]
    return answer


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_executable_says_which_version_it_is(run: Run, bundle: Path, program: str) -> None:
    version = (bundle / "_internal" / "VERSION").read_text().strip()
    done = run(program, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{program} {version}\n", "")


@pytest.mark.parametrize("program", ["ub-agent", "ub-csi", "nri-qos", "ubnode"])
def test_every_executable_for_people_explains_itself(run: Run, program: str) -> None:
    done = run(program, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: {program}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_unknown_argument_is_a_usage_error(run: Run, program: str) -> None:
    done = run(program, "--no-such-flag")
    assert done.returncode == 2
    assert not done.stdout
    assert "Traceback" not in done.stderr
    assert "usage" in done.stderr


@pytest.mark.parametrize("stdin", ["", "{", "[]", "null", '{"name": ', b"\xff\xfe\x00", '{"cniVersion": "1.1.0"} x'])
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_a_malformed_network_configuration_is_cni_error_6_or_7(run: Run, command: str, stdin: str | bytes) -> None:
    answer = cni_error(run("ub-cni", environ={"CNI_COMMAND": command, **POD}, stdin=stdin))
    assert answer["code"] in (6, 7)


def test_missing_variables_are_all_named_in_cni_error_4(run: Run) -> None:
    answer = cni_error(run("ub-cni", environ={"CNI_COMMAND": "ADD"}, stdin=NETWORK))
    assert answer["code"] == 4
    for name in ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"):
        assert name in f"{answer['msg']} {answer.get('details', '')}"


def test_an_unknown_command_is_cni_error_4(run: Run) -> None:
    assert cni_error(run("ub-cni", environ={"CNI_COMMAND": "FROB", **POD}, stdin=NETWORK))["code"] == 4


def test_an_unknown_cni_version_is_cni_error_1(run: Run) -> None:
    network = json.dumps({"cniVersion": "9.9.9", "name": "ub", "type": "ub-cni"})
    assert cni_error(run("ub-cni", environ={"CNI_COMMAND": "ADD", **POD}, stdin=network))["code"] == 1


@pytest.mark.parametrize(
    ("program", "before"),
    [
        ("ub-agent", []),
        ("ub-csi", ["--mode", "node", "--endpoint", "unix:///{tmp}/csi.sock", "--node-id", "n"]),
        ("nri-qos", []),
    ],
)
@pytest.mark.parametrize(
    ("content", "named"),
    [("no_such_key: 1\n", "no_such_key"), ("log_level: [\n", "YAML"), ("- a list\n", "list"), (None, "config.yaml")],
)
def test_a_wrong_configuration_is_refused_by_name(
    run: Run, tmp_path: Path, program: str, before: list[str], content: str | None, named: str
) -> None:
    config = tmp_path / "config.yaml"
    if content is not None:
        config.write_text(content)
    arguments = [argument.format(tmp=tmp_path) for argument in before]
    assert named in refusal(run(program, *arguments, "--config", config))


def test_a_csi_driver_without_an_endpoint_is_refused(run: Run) -> None:
    assert "endpoint" in refusal(run("ub-csi", "--mode", "node", "--node-id", "n"))


@pytest.mark.parametrize("endpoint", ["http://localhost", "unix://", "unix:///{tmp}/file/csi.sock"])
def test_a_csi_endpoint_that_cannot_be_is_refused_by_name(run: Run, tmp_path: Path, endpoint: str) -> None:
    endpoint = endpoint.format(tmp=tmp_path)
    (tmp_path / "file").touch()
    done = run("ub-csi", "--mode", "node", "--endpoint", endpoint, "--node-id", "n")
    assert endpoint.removeprefix("unix://") in refusal(done)


def test_an_nri_socket_that_is_a_file_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nri.sock").touch()
    assert "nri.sock" in refusal(run("nri-qos", "--socket", tmp_path / "nri.sock"))


@pytest.mark.parametrize(
    ("scenario", "named"),
    [("no_such_key: 1\n", "no_such_key"), ("nodes: [\n", "YAML"), (None, "scenario.yaml")],
)
def test_a_wrong_scenario_is_refused_by_name(run: Run, tmp_path: Path, scenario: str | None, named: str) -> None:
    file = tmp_path / "scenario.yaml"
    if scenario is not None:
        file.write_text(scenario)
    assert named in refusal(run("ubnode", "sim", "up", "--scenario", file, "--root", tmp_path / "sim"))


def test_an_unknown_command_of_ubnode_is_a_usage_error(run: Run) -> None:
    done = run("ubnode", "frob")
    assert done.returncode == 2
    assert "frob" in done.stderr


def test_a_host_without_any_provider_is_named_as_such(run: Run) -> None:
    done = run("ubnode", "show")
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
