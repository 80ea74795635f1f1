"""The ledger: what was written is read back; whatever else lies there is known as damaged, and holds up nobody else."""

import copy
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ubhost.errors import HostFault
from ubhost.ledger import Ledger
from ubhost.plausible import is_plausible
from ubhost.record import Delegate, Identity, OriginalLink, Record, State
from ubhost.roots import Roots

NAME = "urma_1@c1@net1.json"
OTHER = Record("urma_2", "c2", "net1", "ubnet")
WHOLE = Record(
    "urma_1", "c1", "net1", "ubnet", State.ATTACHED, "/run/netns/a b", 4026532281, 4097, "now", "a1b2", 1796022000.5,
    "shop/wéb-1", "0c1f", ("bonding_dev_1", "udma2"), (("udma2", 3, "4245:4944:0000:0000:0000:0000:0100:0003"),),
    OriginalLink(
        "ipourma1", 7, 4094, "66:5b:39:ae:e1:6c", "native-\udc80", 777, True, ("enp7", "lóng"),
        ("4245:4944::1/64", "10.1.0.1/16"), "net1", 9, 3, True, Identity("veth", "ub/00001", "", 6), True, True,
    ),
    True, (80, 800), True, "ubi0123abcd",
    Delegate("host-local", {"cniVersion": "1.1.0", "dns": {"x": "a\0b"}}, {"PATH": "/bin:/\udcff", "CNI_ARGS": "a=b"}),
    {
        "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1", "x": [None, 0.5]}, {"address": "fd00::5/64"}],
        "routes": [{"dst": "10.99.0.0/16", "gw": None, "mtu": 1400, "scope": 0}, {"dst": "10.99.0.1/16"}],
    },
    (("udma2", 3, 7),), ("uburma/udma2", "ummu"), is_shared=True,
)  # fmt: skip

IMPOSSIBLE: dict[str, tuple[Any, ...]] = {
    "state": ("odd", 7, None),
    "network": (7, "a\0b", "\ud800"),
    "netns": ("/run/netns/a\0b", "\ud800", []),
    "netns_inode": (-1, 2**64, 10**400, 0.5, True),
    "netns_cookie": (-1, 2**64),
    "boot_id": (1, "\0"),
    "nonce": (1, "\udcff"),
    "since": (-1, 1e300, 10**400, float("nan"), float("inf"), "yesterday"),
    "pod": ("\ud800", None),
    "members": (["../udma2"], [""], [".."], ["x" * 64], "udma2", [7]),
    "eids": ([["m", 0, "zz"]], [["m", -1, "::1"]], [["m", 1024, "::1"]], [["a/b", 0, "::1"]], [["m", 0]], [[]]),
    "link": ({}, "ipourma1", []),
    "link.name": ("", "..", "a/b", "a b", "a" * 16, "a\0"),
    "link.pod_name": ("../..", "a" * 16),
    "link.index": (-1, 2**31),
    "link.mtu": (-5, 5, 2**31),
    "link.qlen": (-1, 2**32),
    "link.group": (-1, 2**32),
    "link.mac": ("zz:zz", "665b39aee16c", ":".join(["00"] * 33)),
    "link.alias": ("x" * 256, "a\0b", "\ud800"),
    "link.altnames": ([""], ["x" * 128], ["a\0"]),
    "link.addresses": (["not-an-ip"], ["fe80::1%eth0/64"], [5]),
    "link.pod_index": (-1,),
    "link.identity.peer": (-1, 2**31),
    "limit_mbps": ([-5, -6], [8], [16, 8], [7, 9], [0, 2**32]),
    "shaper": ("net1", "eth0", "ubi", "ubi0123abcd\n"),
    "delegate": ({}, {"type": "host-local"}),
    "delegate.type": ("../../bin/sh", "", "..", "a\0b"),
    "delegate.config": ({}, {"cniVersion": 1}, {"cniVersion": "1.1.0", "x": float("nan")}, {"cniVersion": "\ud800"}),
    "delegate.environ": ({"": "x"}, {"a=b": "c"}, {"a": "\0"}, {"a": "\ud800"}, {"a": 1}),
    "given.ips": (
        [{}],
        [None],
        {},
        [{"address": "not-an-ip"}],
        [{"address": 5}],
        [{"address": "::1/64", "gateway": []}],
    ),
    "given.routes": ([{}], [{"dst": "x"}], [{"dst": "10.0.0.0/8", "gw": 5}], [{"dst": "10.0.0.0/8", "mtu": -1}]),
    "service_levels": ([["m", 16, 0]], [["m", 0, 99]], [["..", 0, 0]]),
    "nodes": (["a\0"], ["\ud800"], [7]),
    "is_shared": ("yes", 1),
    "container": ("c2", "", "../x"),
    "device": ("urma_2",),
    "ifname": ("net2",),
}
CASES = [(path, odd) for path, odds in IMPOSSIBLE.items() for odd in odds]
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**32, 2**64, 10**400, 0.5, float("nan"), float("inf"), "", "x", "../x", "a\0b", "\ud800"),
    *("x" * 5000, "::1/128", [], {}, [None], [[]], [{}], {"": None}, json.loads("[" * 200 + "]" * 200)),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(Roots(tmp_path), boot_id="now")
    ledger.write(WHOLE)
    ledger.write(OTHER)
    return ledger


def spoil(ledger: Ledger, change: Callable[[dict[str, Any]], None], *, copy: bool = True) -> None:
    for folder in (ledger.folder, ledger.copies) if copy else (ledger.folder,):
        content = json.loads((folder / NAME).read_text())
        change(content)
        (folder / NAME).write_text(json.dumps(content))


def put(path: str, odd: object) -> Callable[[dict[str, Any]], None]:
    """Return what puts ``odd`` at a place of a record."""

    def change(content: dict[str, Any]) -> None:
        *way, last = path.split(".")
        for key in way:
            content = content[key]
        content[last] = odd

    return change


def first(ledger: Ledger) -> Record:
    """Return the record of ``urma_1``; that of ``urma_2`` is as it was, whatever lies beside it."""
    records = {record.device: record for record in ledger.records()}
    assert records["urma_2"] == OTHER
    return records["urma_1"]


DAMAGED = Record("urma_1", "c1", "net1", is_damaged=True)


def test_what_was_written_is_read_back(ledger: Ledger) -> None:
    assert is_plausible(WHOLE)
    assert first(ledger) == WHOLE
    (ledger.folder / NAME).write_text("")
    assert first(ledger) == WHOLE  # from its copy


def test_of_what_an_older_version_wrote_what_it_did_not_know_is_missing(ledger: Ledger) -> None:
    def older(content: dict[str, Any]) -> None:
        for key in ("nodes", "is_shared", "service_levels"):
            del content[key]

    spoil(ledger, older)
    assert first(ledger) == replace(WHOLE, nodes=(), is_shared=False, service_levels=())


@pytest.mark.parametrize(("path", "odd"), CASES, ids=lambda value: str(value)[:40].encode("ascii", "replace").decode())
def test_a_record_that_cannot_be_true_is_damaged(ledger: Ledger, path: str, odd: object) -> None:
    spoil(ledger, put(path, odd), copy=False)
    assert first(ledger) == WHOLE  # from its copy
    spoil(ledger, put(path, odd))
    assert first(ledger) == DAMAGED


def places(value: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*at, key))


def test_whatever_stands_at_any_place_of_a_record_is_believed_or_damage(ledger: Ledger) -> None:
    whole = json.loads((ledger.folder / NAME).read_text())
    for place in places(whole):
        for odd in Random(str(place)).sample(ODD, 12):
            content = found = copy.deepcopy(whole)
            for key in place[:-1]:
                found = found[key]
            found[place[-1]] = odd
            for folder in (ledger.folder, ledger.copies):
                (folder / NAME).write_text(json.dumps(content))
            record = first(ledger)
            assert record == DAMAGED or is_plausible(record), place


def test_the_copy_of_another_boot_is_not_believed(ledger: Ledger) -> None:
    spoil(ledger, put("boot_id", "another"))
    assert first(ledger).boot_id == "another"  # it tells of a reboot
    (ledger.folder / NAME).write_text("")
    assert first(ledger) == DAMAGED


def folder(path: Path) -> None:
    path.mkdir()
    (path / "something").touch()


def link(path: Path) -> None:
    target = path.with_name(".aside")
    target.write_text((path.parents[1] / "kept").read_text())
    path.symlink_to(target)


def closed(path: Path) -> None:
    path.touch(mode=0)
    if os.access(path, os.R_OK):
        path.write_text("{")  # nothing is closed to root


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


IN_PLACE: list[Callable[[Path], None]] = [
    Path.mkdir, folder, os.mkfifo, link, lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to(path), bind, closed, lambda path: path.symlink_to("/dev/zero"),
]  # fmt: skip


@pytest.mark.parametrize("make", IN_PLACE)
def test_what_is_no_file_is_a_damaged_record_of_the_device_it_is_named_after(
    ledger: Ledger, make: Callable[[Path], None]
) -> None:
    (ledger.folder.parent / "kept").write_text((ledger.folder / NAME).read_text())
    for place in (ledger.folder, ledger.copies):
        assert first(ledger) == WHOLE
        (place / NAME).unlink()
        if place is ledger.copies:
            (place.parent / "kept").write_text((ledger.folder.parent / "kept").read_text())
        make(place / NAME)
    assert first(ledger) == DAMAGED
    if make is not folder:
        ledger.remove(DAMAGED)
        assert ledger.records() == (OTHER,)
        return
    with pytest.raises(HostFault, match=rf"{NAME}: .*; move it away"):
        ledger.remove(DAMAGED)
    assert (ledger.folder / NAME / "something").exists()


@pytest.mark.parametrize(
    "name",
    ["@c1@net1", "urma_1@@net1", "urma_1@.c1@net1", ".urma_1@c1@net1", "urma_1@net1", "urma_1", "\udcff@c1@net1"],
)
def test_a_file_that_is_named_as_no_add_names_one_is_nobodys(ledger: Ledger, name: str) -> None:
    (ledger.folder / f"{name}.json").write_text("{}")
    assert ledger.records() == (WHOLE, OTHER)
    assert set(ledger.held()) == {"urma_1", "urma_2"}
