"""A report holds what it says, is bounded, and gives no secret away."""

import os
import resource
import tarfile
from pathlib import Path

import pytest

from ubhost.errors import InvalidRequest
from ubnode.bugreport import gather as gathering
from ubnode.bugreport.archive import write
from ubnode.bugreport.cli import main
from ubnode.bugreport.gather import Left, Taken, gather
from ubnode.bugreport.redact import HIDDEN, redact
from ubnode.bugreport.wanted import ITEMS, Command, Files, Tree

SECRET = "h0rse-battery"
MIB = 1 << 20
PEM = f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n"


def taken(root: Path, *items: Command | Files | Tree, most: int = MIB) -> dict[str, str]:
    return {piece.path: piece.content.decode() for piece in gather(root, most, items) if isinstance(piece, Taken)}


def left(root: Path, *items: Command | Files | Tree, most: int = MIB) -> dict[str, str]:
    return {piece.path: piece.why for piece in gather(root, most, items) if isinstance(piece, Left)}


@pytest.mark.parametrize(
    "text",
    [
        f"password: {SECRET}\n",
        f"password: {SECRET} and more {SECRET}\n",
        f'  db_password = "{SECRET} {SECRET}"\n',
        f"- apiKey: '{SECRET}'\n",
        f"secrets:\n  one: {SECRET}\n  two:\n    - {SECRET}\n",
        f"secrets:\n- {SECRET}\n- {SECRET}\n",
        f"key:\n  token: |\n    {SECRET}\n\n    {SECRET}\n",
        f'token: "{SECRET}\n  {SECRET}"\n',
        f'{{"stringData": {{"user-password": "{SECRET}"}}}}',
        f'{{"secrets": {{"any": ["{SECRET}"]}}}}',
        f'{{"mountFlags": ["{SECRET}"], "mount_flags": ["{SECRET}"]}}',
        f'{{"env": [{{"name": "DB_PASSWORD", "value": "{SECRET}"}}]}}',
        f'{{"auths": {{"reg": {{"auth": "{SECRET}"}}}}}}',
        f'2026-11-29 ub-csi: called with "token": "{SECRET}", "size": 3\n',
        f"root=/dev/vda2 rd.password={SECRET} quiet\n",
        f"agent --token {SECRET!r}\n",
        f"21 1 0:5 / /x rw - cifs //server/share rw,password={SECRET},uid=0\n",
        f"Authorization: Bearer {SECRET}\n",
        f"GET /v1 Bearer {SECRET}\n",
        f"proxy https://me:{SECRET}@proxy.example/\n",
        PEM,
        PEM[:70],
        PEM[20:] + "after\n",
        f'{{"file": "{PEM}"}}'.replace("\n", "\\n"),
    ],
)
def test_no_secret_is_left(text: str) -> None:
    result, count = redact(text)
    assert SECRET not in result
    assert count >= 1


def test_a_web_token_and_a_bootstrap_token_are_known_by_their_looks() -> None:
    assert redact("saw eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln here")[0] == f"saw {HIDDEN} here"
    assert redact("join 07401b.f395accd246ae52d")[0] == f"join {HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "resources:\n  urma: {devices: [urma_1]}\npools:\n- name: default\n  path: /pool\n",
        "udma2 eid 0000:0007:0000:0000:0000:0002:0000:0003 author x\n",
        "21 1 0:5 / /run/netns/red rw - nsfs nsfs rw\n",
        "2026-11-29T15:52:19+00:00 node0 ub-agent: ADD of red took 7 ms\n",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == (text, 0)


def test_what_stands_after_a_secret_stays() -> None:
    assert redact("a:\n  password: x\n    y\n  user: me\nb: 1\n")[0] == f"a:\n  password: {HIDDEN}\n  user: me\nb: 1\n"


def test_a_file_is_taken_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text(f"level: info\npassword: {SECRET}\n")
    [piece] = gather(tmp_path, MIB, [Files("*")])
    assert piece == Taken("conf", f"level: info\npassword: {HIDDEN}\n".encode(), "1 secrets removed", 1)


def test_links_are_not_followed_and_nobody_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "hidden").write_text(SECRET)
    (tmp_path / "etc/link").symlink_to(tmp_path / "hidden")
    os.mkfifo(tmp_path / "etc/pipe")
    (tmp_path / "etc/db-password").write_text(SECRET)
    (tmp_path / "etc/host.key").write_text(SECRET)
    (tmp_path / "etc/binary").write_bytes(b"\0" * 9)
    assert taken(tmp_path, Files("etc/*")) == {}
    assert left(tmp_path, Files("etc/*")) == {
        "etc/link": "a link",
        "etc/pipe": "not a plain file",
        "etc/db-password": "its name speaks of a secret",
        "etc/host.key": "its name speaks of a secret",
        "etc/binary": "not a text",
    }


def test_of_a_long_file_the_end_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LARGEST", 100)
    (tmp_path / "long").write_text("line\n" * 100 + "the end\n")
    [piece] = gather(tmp_path, MIB, [Files("*")])
    assert isinstance(piece, Taken)
    assert (len(piece.content), piece.note) == (100, "the end of it")
    assert piece.content.endswith(b"the end\n")


def test_a_full_report_takes_no_more_but_says_so(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("x " * 20)
    assert list(taken(tmp_path, Files("*"), most=90)) == ["a", "b"]
    assert left(tmp_path, Files("*"), most=90) == {"c": "the report is full"}


def test_a_tree_follows_links_inside_only(tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/ub/udma0"
    device.mkdir(parents=True)
    (device / "eid").write_text("1\n2\n")
    (device / "reset").touch(mode=0o200)
    (device / "up").symlink_to(tmp_path / "hidden")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/file").write_text(SECRET)
    (tmp_path / "sys/class/ubcore").mkdir(parents=True)
    (tmp_path / "sys/class/ubcore/udma0").symlink_to("../../devices/ub/udma0")
    (tmp_path / "sys/class/ubcore/bad").symlink_to(tmp_path / "hidden")
    assert taken(tmp_path, Tree("urma", ("sys/class/ubcore/*",))) == {
        "trees/urma.txt": "sys/devices/ub/udma0/eid\n  1\n  2\n"
    }


def test_a_command_that_hangs_fails_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PATIENCE", 0.3)
    assert left(tmp_path, Command("slow", ("sleep", "60"))) == {"commands/slow.txt": "no answer in 0.3 s"}
    assert left(tmp_path, Command("none", ("no-such-program",))) == {"commands/none.txt": "there is no no-such-program"}
    failing = Command("bad", ("sh", "-c", f"echo out; echo token={SECRET} >&2; exit 3"))
    assert taken(tmp_path, failing) == {"commands/bad.txt": f"out\n\n[on stderr]\ntoken={HIDDEN}\n\n[exit code 3]\n"}


def test_nothing_of_users_is_asked_for() -> None:
    globs = [item.glob for item in ITEMS if isinstance(item, Files)]
    assert not [glob for glob in globs if "pools" in glob or "shm" in glob or "kubelet/pods" in glob]
    assert not [glob for glob in globs if glob.startswith("/")]


def test_the_archive_is_its_owners_and_lists_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = tmp_path / "node"
    (node / "etc/ub-node").mkdir(parents=True)
    (node / "etc/ub-node/csi.yaml").write_text(f"log_level: info\ntoken: {SECRET}\n")
    monkeypatch.setenv("UB_ROOT", str(node))
    report = tmp_path / "report.tar.gz"
    assert main(["--output", str(report)]) == 0
    assert report.stat().st_mode & 0o777 == 0o600
    with tarfile.open(report) as archive:
        texts = {name: file.read().decode() for name in archive.getnames() if (file := archive.extractfile(name))}
    assert SECRET not in "".join(texts.values())
    listed = texts["report/LIST.txt"]
    assert listed in capsys.readouterr().out
    assert "etc/ub-node/csi.yaml (1 secrets removed)" in listed
    assert {"report/ABOUT.txt", "report/commands/doctor.txt", "report/etc/ub-node/csi.yaml"} <= texts.keys()
    with pytest.raises(InvalidRequest, match="File exists"):
        main(["--output", str(report)])


def test_the_half_of_a_report_is_not_left(tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))  # stands for a disk that is full
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "r.tar.gz", [Taken("noise", os.urandom(2 * MIB))], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert list(tmp_path.iterdir()) == []


def test_logs_of_our_own_pods_are_taken_and_those_of_others_are_not(tmp_path: Path) -> None:
    """Where the chart runs the daemons, journald has nothing of them."""
    ours = "var/log/pods/ub-system_ub-ub-node-csi-x7k2p_0f/csi/0.log"
    for name in (ours, "var/log/pods/default_web-1_0e/main/0.log"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("a line\n")
    found = taken(tmp_path, *(item for item in ITEMS if isinstance(item, Files)))
    assert [name for name in found if name.startswith("var/log")] == [ours]


def test_a_key_beside_the_configurations_stays_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "etc/ub-node").mkdir(parents=True)
    (tmp_path / "etc/ub-node/csi.yaml").write_text("peer_key_file: /etc/ub-node/peers\n")
    (tmp_path / "etc/ub-node/peers").write_text(SECRET)
    found = taken(tmp_path, *(item for item in ITEMS if isinstance(item, Files)))
    assert set(found) == {"etc/ub-node/csi.yaml"}
