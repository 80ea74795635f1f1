"""What a program hears from generic netlink, of this kernel and on a simulated node: one list of cases for both.

The kernel is asked about its family of families, the node about the driver's. Whatever else differs (how many families
there are, what they are called) is left out of what is compared; errors and acknowledgements are compared to the byte.
"""

import errno
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from ubhost.netlink import (
    GENERIC,
    NLM_F_ACK,
    NLM_F_CAPPED,
    NLM_F_DUMP,
    NLM_F_MULTI,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Frame,
    attribute,
    attributes,
    frames,
)
from ubsim.handles import NodeHandle, running

pytestmark = pytest.mark.kernel

HERE = Path(__file__).parent
TOP = HERE.parents[1]
CLIENT = (sys.executable, "-I", "-S", str(HERE / "generic_netlink_client.py"))
CONTROLLER, GETFAMILY, FAMILY_ID, FAMILY_NAME = 0x10, 3, 1, 2
DESCRIBED = [(FAMILY_NAME, None), (FAMILY_ID, 2), (3, 4), (4, 4), (5, 4)]  # type and size: version, header, attributes
ASK, ACK, DUMP = NLM_F_REQUEST, NLM_F_REQUEST | NLM_F_ACK, NLM_F_REQUEST | NLM_F_DUMP

Requests = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A family that is there."""

    name: str
    number: int

    def named(self, flags: int) -> bytes:
        return to_controller(flags, attribute(FAMILY_NAME, self.name.encode() + b"\0"))

    def numbered(self, flags: int) -> bytes:
        return to_controller(flags, attribute(FAMILY_ID, struct.pack("=H", self.number)))


def to_controller(flags: int, *parts: bytes, command: int = GETFAMILY) -> bytes:
    return Frame(CONTROLLER, GENERIC.pack(command, 1, 0) + b"".join(parts), flags, sequence=7).encode()


ABSENT = attribute(FAMILY_NAME, b"UB_NONE\0")
NOBODY = attribute(FAMILY_ID, struct.pack("=H", 0x3FE))

CASES: dict[str, tuple[Callable[[Family], bytes], list[str]]] = {
    "a family by its name": (lambda own: own.named(ASK), ["family"]),
    "a family by its name, with an acknowledgement": (lambda own: own.named(ACK), ["family", "done"]),
    "a family by its number": (lambda own: own.numbered(ASK), ["family"]),
    "all families": (lambda _: to_controller(DUMP), ["family of many", "end of many"]),
    "half of the flag for all": (lambda own: own.named(ASK | 0x200), ["family"]),
    "a name that no family has": (lambda _: to_controller(ASK, ABSENT), ["ENOENT"]),
    "a number that no family has": (lambda _: to_controller(ASK, NOBODY), ["ENOENT"]),
    "a name, and the number of nobody": (
        lambda own: to_controller(ASK, attribute(FAMILY_NAME, own.name.encode() + b"\0"), NOBODY), ["family"],
    ),
    "a number, and the name of nobody": (
        lambda own: to_controller(ASK, attribute(FAMILY_ID, struct.pack("=H", own.number)), ABSENT), ["ENOENT"],
    ),
    "no family at all": (lambda _: to_controller(ASK), ["EINVAL"]),
    "a name without an end": (lambda own: to_controller(ASK, attribute(FAMILY_NAME, own.name.encode())), ["EINVAL"]),
    "a name that is too long": (lambda _: to_controller(ASK, attribute(FAMILY_NAME, b"x" * 40 + b"\0")), ["EINVAL"]),
    "a number of one byte": (lambda _: to_controller(ASK, attribute(FAMILY_ID, b"\1")), ["ERANGE"]),
    "an attribute that is longer than the message": (
        lambda _: to_controller(ASK, struct.pack("=HH", 400, FAMILY_NAME), b"abcd"), ["EINVAL"],
    ),
    "a command that there is not": (lambda _: to_controller(ASK, command=77), ["ENOTSUP"]),
    "all of a command that there is not": (lambda _: to_controller(DUMP, command=77), ["ENOTSUP"]),
    "a family that there is not": (lambda _: Frame(0x3F0, GENERIC.pack(1, 1, 0), ASK, 7).encode(), ["ENOENT"]),
    "a message without a command": (lambda _: Frame(CONTROLLER, b"", ASK, 7).encode(), ["EINVAL"]),
    "no request, but an acknowledgement": (lambda own: own.named(NLM_F_ACK), ["done"]),
    "no request": (lambda own: own.named(0), []),
    "nothing, acknowledged": (lambda _: Frame(1, b"", ACK, 7).encode(), ["done"]),
    "nothing": (lambda _: Frame(1, b"", ASK, 7).encode(), []),
    "two requests in one": (
        lambda own: own.named(ACK) + to_controller(ASK, command=77), ["family", "done", "ENOTSUP"],
    ),
    "the half of a request": (lambda own: own.named(ASK)[:-4], []),
    "a request from an address that is not ours": (
        lambda _: Frame(CONTROLLER, GENERIC.pack(77, 1, 0), ASK, 7, port=12345).encode(), ["ENOTSUP"],
    ),
}  # fmt: skip


def told(request: bytes, answers: list[str]) -> Iterator[str]:
    """Say in words what was answered, and check the rest of each answer."""
    asked = {frame.encode() for frame in frames(request)} if answers else set()
    for frame in (frame for answer in answers for frame in frames(bytes.fromhex(answer))):
        assert frame.sequence == 7
        if frame.kind == NLMSG_ERROR and frame.status:
            assert (frame.flags, frame.body[4:] in asked) == (0, True)
            yield errno.errorcode[frame.status]
        elif frame.kind == NLMSG_ERROR:
            assert (frame.flags, frame.body[4:] in {one[:16] for one in asked}) == (NLM_F_CAPPED, True)
            yield "done"
        elif frame.kind == NLMSG_DONE:
            assert (frame.flags, frame.body) == (NLM_F_MULTI, bytes(4))
            yield "end of many"
        else:
            assert (frame.kind, frame.body[:4]) == (CONTROLLER, GENERIC.pack(1, 2, 0))
            first = list(attributes(frame.body[4:]))[:5]
            assert [(kind, None if kind == FAMILY_NAME else len(value)) for kind, value in first] == DESCRIBED
            yield {0: "family", NLM_F_MULTI: "family of many"}[frame.flags]


def heard(command: tuple[str, ...], own: Family) -> dict[str, list[str]]:
    """Let the client ask all; return what it heard, by case. Many families are one."""
    requests = [build(own) for build, _ in CASES.values()]
    environ = {**os.environ, "PYTHONPATH": f"{TOP}:{TOP}/proto"}
    given = "\n".join(request.hex() for request in requests)
    done = subprocess.run(command, input=given, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    words = {case: list(told(*pair)) for case, pair in zip(CASES, zip(requests, answers, strict=True), strict=True)}
    return {case: [word for at, word in enumerate(said) if said[at - 1 : at] != [word]] for case, said in words.items()}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeHandle]:
    scenario = tmp_path_factory.mktemp("scenario") / "one.yaml"
    scenario.write_text(yaml.safe_dump({"name": "genl", "nodes": [{"name": "node0", "devices": 1}]}))
    with tempfile.TemporaryDirectory(prefix="ubsim-") as short, running(scenario, Path(short) / "sim") as found:
        yield found["node0"]


@pytest.fixture(scope="module", params=["kernel", "simulator"])
def answers(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    if request.param == "kernel":
        return heard(CLIENT, Family("nlctrl", CONTROLLER))
    node: NodeHandle = request.getfixturevalue("node")
    inside = (sys.executable, "-m", "ubnode", "sim", "exec", "--root", str(node.root.parent), "--", *CLIENT)
    return heard(inside, Family("UBCORE_GENL", 0x20))


@pytest.mark.parametrize("case", CASES)
def test_a_program_that_asks_for(case: str, answers: dict[str, list[str]]) -> None:
    assert answers[case] == CASES[case][1]
