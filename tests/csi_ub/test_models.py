"""Model volumes: versions come whole, switch under running pods, and can be taken back."""

import hashlib
import json
import os
import threading
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.models import manifest
from csi_ub.models.store import ModelStore
from tests.csi_ub.driver import Driver, Mode, capability, refused, ubnode
from tests.csi_ub.pools import make_btrfs, unmount_below
from ubhost.errors import Exhausted, HostFault, InvalidRequest, NotFound
from ubhost.kernel import mountinfo

MiB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    share = tmp_path / "share"
    for folder in ("data/versions", "nodes"):
        (share / folder).mkdir(parents=True)
    return ModelStore(share)


def model(folder: Path, seed: int, size: int = 3 * MiB + 17) -> Path:
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes([seed]) * size)
    (folder / "tokenizer/vocab.txt").write_text(f"vocabulary {seed}")
    return folder


def push(store: ModelStore, folder: Path) -> str:
    return store.push(folder, manifest.read(folder)).id


def content(version: Path) -> str:
    """Return one hash over a whole version, read through one open directory."""
    total = hashlib.sha256()
    top = os.open(version, os.O_RDONLY | os.O_DIRECTORY)
    for name in ("model.safetensors", "tokenizer/vocab.txt"):
        with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=top), "rb") as file:
            total.update(file.read())
    os.close(top)
    return total.hexdigest()


def test_a_version_is_whole_read_only_and_named_by_its_content(store: ModelStore, tmp_path: Path) -> None:
    id_ = push(store, model(tmp_path / "one", 1))
    version = store.versions / id_
    assert content(version) == content(tmp_path / "one")
    assert all(path.stat().st_mode & 0o222 == 0 for path in version.rglob("*") if path.is_file())
    assert push(store, model(tmp_path / "same", 1)) == id_
    assert push(store, model(tmp_path / "two", 2)) != id_
    assert list((store.share / "incoming").iterdir()) == []


def test_switch_and_rollback_follow_history(store: ModelStore, tmp_path: Path) -> None:
    ids = [push(store, model(tmp_path / str(i), i)) for i in range(3)]
    with pytest.raises(NotFound):
        store.rollback()
    for id_ in ids:
        assert store.switch(id_[:12]) == id_
    assert store.current() == ids[2]
    assert store.rollback() == ids[1]
    assert (store.share / "data/current").readlink() == Path("versions") / ids[1]
    assert [version.is_current for version in store.listed()] == [True, False, False]
    with pytest.raises(NotFound):
        store.switch("feed")
    assert store.current() == ids[1]


def test_readers_never_see_a_mix_during_200_switches(store: ModelStore, tmp_path: Path) -> None:
    ids = [push(store, model(tmp_path / str(i), i)) for i in range(2)]
    good = {content(store.versions / id_) for id_ in ids}
    store.switch(ids[0])
    stop, seen, wrong = threading.Event(), set[str](), list[str]()

    def read() -> None:
        while not stop.is_set():
            found = content(store.share / "data/current")
            seen.add(found)
            if found not in good:
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(200):
        store.switch(ids[number % 2])
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert seen == good


def test_one_percent_of_change_moves_at_most_three_percent_of_the_bytes(store: ModelStore, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        for _ in range(100):
            file.write(os.urandom(MiB))
    first = store.push(folder, manifest.read(folder))
    assert first.moved == first.size
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(42 * MiB + 100)
        file.write(os.urandom(MiB))
    second = store.push(folder, manifest.read(folder))
    assert 0 < second.moved <= second.size * 0.03
    store.verify(second.id)


def test_a_push_that_was_cut_off_goes_on_from_there(store: ModelStore, tmp_path: Path) -> None:
    folder = model(tmp_path / "one", 1, 20 * MiB)
    (folder / "model.safetensors").write_bytes(os.urandom(20 * MiB))
    wanted, copied = manifest.read(folder), 0

    def cut(size: int) -> None:
        nonlocal copied
        copied += size
        if copied > 10 * MiB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.push(folder, wanted, cut)
    assert store.listed() == ()
    assert store.push(folder, wanted).moved < 11 * MiB
    store.verify(wanted.id)


def test_a_source_that_changes_meanwhile_is_refused(store: ModelStore, tmp_path: Path) -> None:
    folder = model(tmp_path / "one", 1)
    wanted = manifest.read(folder)
    (folder / "tokenizer/vocab.txt").write_text("vocabulary 9")
    with pytest.raises(InvalidRequest, match="vocab"):
        store.push(folder, wanted)
    assert store.listed() == ()


@pytest.mark.parametrize("path", ["../escape", "/etc/passwd", "a/../../b"])
def test_a_manifest_cannot_name_files_outside(store: ModelStore, tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidRequest, match="not a path inside"):
        store.push(tmp_path, manifest.Manifest((manifest.File(path, 0, ()),)))


def test_empty_folders_and_odd_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no file"):
        manifest.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="pipe"):
        manifest.read(tmp_path)


def test_damage_is_found_and_named(store: ModelStore, tmp_path: Path) -> None:
    id_ = push(store, model(tmp_path / "one", 1))
    file = store.versions / id_ / "model.safetensors"
    file.chmod(0o644)
    with file.open("r+b") as opened:
        opened.seek(2 * MiB)
        opened.write(b"!")
    with pytest.raises(HostFault, match=f"model.safetensors of version {id_} is damaged at byte {2 * MiB}"):
        store.verify(id_)


def test_gc_keeps_what_is_in_force_recent_or_open(store: ModelStore, tmp_path: Path) -> None:
    ids = [push(store, model(tmp_path / str(i), i)) for i in range(5)]
    for id_ in ids:
        store.switch(id_)
    assert store.gc(keep=0, grace_s=60) == ()
    with (store.versions / ids[0] / "model.safetensors").open():
        assert set(store.gc(keep=1, grace_s=0)) == {ids[1], ids[2]}
    assert store.gc(keep=1, grace_s=0) == (ids[0],)
    assert {path.name for path in store.versions.iterdir()} == {ids[3], ids[4]}
    assert len(list((store.share / "manifests").iterdir())) == 2
    assert store.rollback() == ids[3]


@pytest.mark.kernel
def test_a_full_disk_keeps_the_old_version(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    make_btrfs(tmp_path / "image", pool, "128M")
    try:
        for folder in ("data/versions", "nodes"):
            (pool / folder).mkdir(parents=True)
        store = ModelStore(pool)
        old = push(store, model(tmp_path / "old", 1))
        store.switch(old)
        big = tmp_path / "big"
        big.mkdir()
        (big / "model").write_bytes(os.urandom(200 * MiB))
        with pytest.raises(Exhausted, match="no space"):
            push(store, big)
        assert store.current() == old
        assert [version.id for version in store.listed()] == [old]
        store.verify(old)
    finally:
        unmount_below(tmp_path)


@pytest.mark.kernel
def test_a_running_pod_sees_a_switch_and_cannot_write(driver: Driver, tmp_path: Path) -> None:
    volume = driver.create("llm", mode=Mode.MULTI_NODE_READER_ONLY, parameters={"type": "model"})
    driver.stage(volume, Mode.MULTI_NODE_READER_ONLY)
    pod = driver.publish(volume, mode=Mode.MULTI_NODE_READER_ONLY)
    first = ubnode(driver, "model", "push", str(model(tmp_path / "one", 1)), "--volume", "llm", "--switch")
    assert first.returncode == 0, first.stderr
    assert (pod / "current/tokenizer/vocab.txt").read_text() == "vocabulary 1"
    ubnode(driver, "model", "push", str(model(tmp_path / "two", 2)), "--volume", volume.volume_id)
    versions = ubnode(driver, "model", "list", "--volume", "llm").stdout.splitlines()
    second = next(line.split()[0] for line in versions if "never" in line)
    assert ubnode(driver, "model", "switch", second, "--volume", "llm").returncode == 0
    assert (pod / "current/tokenizer/vocab.txt").read_text() == "vocabulary 2"
    assert ubnode(driver, "model", "rollback", "--volume", "llm").returncode == 0
    assert (pod / "current/tokenizer/vocab.txt").read_text() == "vocabulary 1"
    for command in ("verify", "warm"):
        assert ubnode(driver, "model", command, second[:10], "--volume", "llm").returncode == 0
    with pytest.raises(OSError, match="Read-only"):
        (pod / "mine").touch()
    assert sorted(path.name for path in pod.iterdir()) == ["current", "versions"]
    wrong = ubnode(driver, "model", "switch", "feed", "--volume", "llm")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    driver.create("plain")
    assert "not model" in ubnode(driver, "model", "list", "--volume", "plain").stderr


def inline(driver: Driver, pod: str, model_name: str, **more: str) -> Path:
    """Publish a model as kubelet does for a pod that names it in its manifest."""
    target = driver.kubelet / "pods" / pod / "volumes/kubernetes.io~csi/model/mount"
    target.parent.mkdir(parents=True, exist_ok=True)
    attributes = {"model": model_name, "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": pod}
    driver.rpc.NodePublishVolume(
        csi.NodePublishVolumeRequest(
            volume_id=f"csi-{pod}",
            target_path=str(target),
            volume_capability=capability(Mode.SINGLE_NODE_WRITER),
            volume_context={**attributes, **more},
        )
    )
    return target


def end(driver: Driver, pod: str, target: Path) -> None:
    driver.rpc.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(volume_id=f"csi-{pod}", target_path=str(target)))


@pytest.mark.kernel
def test_a_pod_gets_a_model_by_its_manifest_alone(driver: Driver, tmp_path: Path) -> None:
    volume = driver.create("llm", mode=Mode.MULTI_NODE_READER_ONLY, parameters={"type": "model"})
    pushed = ubnode(driver, "model", "push", str(model(tmp_path / "one", 1)), "--volume", "llm", "--switch")
    assert pushed.returncode == 0, pushed.stderr
    pods = [inline(driver, "pod1", "llm"), inline(driver, "pod2", volume.volume_id)]
    assert inline(driver, "pod1", "llm") == pods[0]
    assert len(mountinfo.at(mountinfo.read(), pods[0])) == 1
    assert all((pod / "current/tokenizer/vocab.txt").read_text() == "vocabulary 1" for pod in pods)
    with pytest.raises(OSError, match="Read-only"):
        (pods[0] / "mine").touch()
    with refused(grpc.StatusCode.FAILED_PRECONDITION, naming="in use"):
        driver.delete(volume.volume_id)
    driver.kill()
    driver.restart()
    end(driver, "pod1", pods[0])
    end(driver, "pod1", pods[0])
    assert (pods[1] / "current/tokenizer/vocab.txt").read_text() == "vocabulary 1"
    end(driver, "pod2", pods[1])
    assert not any(pod.exists() for pod in pods)
    assert mountinfo.below(mountinfo.read(), driver.root.resolve()) == ()
    driver.delete(volume.volume_id)


@pytest.mark.kernel
def test_what_a_pod_may_say_about_its_model_is_an_allow_list(driver: Driver) -> None:
    plain = driver.create("plain")
    for wrong, code, naming in (
        ({"path": "/etc"}, grpc.StatusCode.INVALID_ARGUMENT, "path"),
        ({"type": "filesystem"}, grpc.StatusCode.INVALID_ARGUMENT, "filesystem"),
        ({"model": ""}, grpc.StatusCode.INVALID_ARGUMENT, "model is missing"),
        ({"model": plain.volume_id}, grpc.StatusCode.INVALID_ARGUMENT, "not model"),
        ({"model": "../../etc"}, grpc.StatusCode.NOT_FOUND, "etc"),
        ({"model": "none"}, grpc.StatusCode.NOT_FOUND, "none"),
    ):
        with refused(code, naming=naming):
            inline(driver, "pod1", wrong.pop("model", "llm"), **wrong)
    assert mountinfo.below(mountinfo.read(), driver.root.resolve()) == ()


@pytest.mark.kernel
def test_the_table_of_volumes_says_who_uses_what(driver: Driver) -> None:
    volume = driver.create("data", 10 * MiB)
    driver.stage(volume)
    driver.publish(volume)
    (row,) = json.loads(ubnode(driver, "volumes", "--json").stdout)
    assert row["volume"] == volume.volume_id
    assert row["nodes"] == ["node0"]
    assert row["published"] == [str(driver.target(volume))]
    assert row["condition"] == "well"
    table = ubnode(driver, "volumes").stdout.splitlines()
    assert table[0].split()[:4] == ["VOLUME", "NAME", "TYPE", "SIZE"]
    assert "10.0 MiB" in table[1]
    assert isinstance(volume, csi.Volume)
