"""Creating and deleting volumes: idempotent, all or nothing, and inside the pool."""

import json
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi

from csi_ub.model import AccessMode
from tests.csi_ub.driver import ROX, RWO, RWX, Driver, StartDriver, capability, refused

Code = grpc.StatusCode
MiB = 1 << 20
Run = Callable[..., subprocess.CompletedProcess[str]]


def volumes_in(pool: Path) -> list[str]:
    return sorted(folder.name for folder in (pool / "volumes").iterdir())


def test_the_same_name_is_the_same_volume(driver: Driver) -> None:
    assert driver.create("a", 10 * MiB) == driver.create("a", 10 * MiB)
    assert driver.create("a").volume_id != driver.create("b").volume_id


def test_an_existing_volume_that_fits_the_range_is_good(driver: Driver) -> None:
    volume = driver.create("a", 10 * MiB)
    assert driver.create("a", 5 * MiB, 20 * MiB) == volume
    assert driver.create("a", limit=10 * MiB) == volume


@pytest.mark.parametrize(("required", "limit"), [(20 * MiB, 0), (1, 5 * MiB), (20 * MiB, 20 * MiB)])
def test_the_same_name_of_another_size_is_refused(driver: Driver, required: int, limit: int) -> None:
    driver.create("a", 10 * MiB, 10 * MiB)
    with refused(Code.ALREADY_EXISTS, naming="'a'"):
        driver.create("a", required, limit)


def test_the_same_name_for_another_use_is_refused(driver: Driver) -> None:
    driver.create("a", mode=RWO)
    with refused(Code.ALREADY_EXISTS):
        driver.create("a", mode=RWX)


@pytest.fixture
def two_pools(tmp_path: Path, start: StartDriver) -> Driver:
    pools = [{"name": name, "type": "dir", "path": str(tmp_path / name)} for name in ("default", "other")]
    for pool in pools:
        Path(pool["path"]).mkdir()
    return start(config={"pools": pools})


def test_a_name_is_one_volume_in_whichever_pool(two_pools: Driver) -> None:
    volume = two_pools.create("a", parameters={"pool": "other"})
    for parameters in ({"pool": "default"}, {}):
        with refused(Code.ALREADY_EXISTS, naming="'a'"):
            two_pools.create("a", parameters=parameters)
    assert two_pools.create("a", parameters={"pool": "other"}) == volume


def test_one_name_asked_for_in_two_pools_at_once_is_one_volume(two_pools: Driver) -> None:
    def create(number: int) -> str:
        try:
            return two_pools.create("a", parameters={"pool": ("default", "other")[number % 2]}).volume_id
        except grpc.RpcError as error:
            return str(error.code())

    with ThreadPoolExecutor(16) as threads:
        answers = set(threads.map(create, range(16)))
    assert len(answers) == 2
    assert str(Code.ALREADY_EXISTS) in answers
    assert len(two_pools.controller.ListVolumes(csi.ListVolumesRequest()).entries) == 1


def test_no_volume_is_made_while_a_pool_that_may_have_its_name_is_away(two_pools: Driver, tmp_path: Path) -> None:
    (tmp_path / "other").rename(tmp_path / "away")
    with refused(Code.INTERNAL, naming="'other'"):
        two_pools.create("a", parameters={"pool": "default"})
    (tmp_path / "away").rename(tmp_path / "other")
    two_pools.create("a", parameters={"pool": "default"})


def test_a_clone_asked_for_again_is_found_when_its_source_has_gone(driver: Driver) -> None:
    source = driver.create("source")
    request = csi.CreateVolumeRequest(name="clone", volume_capabilities=[capability()])
    request.volume_content_source.volume.volume_id = source.volume_id
    clone = driver.controller.CreateVolume(request).volume
    driver.delete(source.volume_id)
    assert driver.controller.CreateVolume(request).volume == clone
    request.name = "another"
    with refused(Code.NOT_FOUND, naming=source.volume_id):
        driver.controller.CreateVolume(request)


def test_a_snapshot_asked_for_again_is_found_when_its_volume_has_gone(driver: Driver) -> None:
    volume = driver.create()
    request = csi.CreateSnapshotRequest(source_volume_id=volume.volume_id, name="snap")
    taken = driver.controller.CreateSnapshot(request).snapshot
    driver.delete(volume.volume_id)
    assert driver.controller.CreateSnapshot(request).snapshot == taken


def test_an_existing_volume_asked_for_in_another_place_is_refused(driver: Driver) -> None:
    driver.create("a")
    request = csi.CreateVolumeRequest(name="a", volume_capabilities=[capability()])
    request.accessibility_requirements.requisite.add().segments["topology.unifiedbus.com/node"] = "other"
    with refused(Code.ALREADY_EXISTS, naming="node0"):
        driver.controller.CreateVolume(request)


@pytest.mark.parametrize(("required", "limit"), [(2, 1), (-1, 0), (0, -1)])
def test_impossible_sizes_are_out_of_range(driver: Driver, required: int, limit: int) -> None:
    with refused(Code.OUT_OF_RANGE):
        driver.create("a", required, limit)
    assert volumes_in(driver.pool) == []


def test_one_name_from_32_callers_and_two_drivers_is_one_volume(start: StartDriver) -> None:
    drivers = [start(suffix="-a"), start(suffix="-b", mode="controller")]
    with ThreadPoolExecutor(32) as pool:
        ids = set(pool.map(lambda i: drivers[i % 2].create("same", MiB).volume_id, range(32)))
    assert len(ids) == 1
    assert volumes_in(drivers[0].pool) == list(ids)
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda i: drivers[i % 2].delete(next(iter(ids))), range(32)))
    assert volumes_in(drivers[0].pool) == []


def test_100_creates_and_deletes_at_once_all_succeed(driver: Driver) -> None:
    with ThreadPoolExecutor(32) as pool:
        ids = list(pool.map(lambda i: driver.create(f"pvc-{i}").volume_id, range(100)))
        assert len(set(ids)) == 100
        list(pool.map(driver.delete, ids))
    assert volumes_in(driver.pool) == []


@pytest.mark.parametrize(
    "volume_id", ["../../etc", "/etc", "a/../../b", "..", ".", "%2e%2e", "fake-vol-id", "ub-x\0y", "../canary"]
)
def test_ids_that_we_never_gave_reach_no_file(driver: Driver, volume_id: str) -> None:
    canary = driver.pool / "canary"
    canary.mkdir()
    (canary / "file").write_text("alive")
    driver.delete(volume_id)
    with refused(Code.NOT_FOUND):
        driver.controller.ValidateVolumeCapabilities(
            csi.ValidateVolumeCapabilitiesRequest(volume_id=volume_id, volume_capabilities=[capability()])
        )
    with refused(Code.NOT_FOUND):
        driver.rpc.NodeStageVolume(
            csi.NodeStageVolumeRequest(
                volume_id=volume_id,
                staging_target_path=str(driver.kubelet),
                volume_capability=capability(),
                volume_context={"path": str(driver.root), "owner": "node0"},
            )
        )
    assert (canary / "file").read_text() == "alive"


def test_a_symbolic_link_planted_among_the_volumes_is_not_followed(driver: Driver, tmp_path: Path) -> None:
    volume = driver.create()
    folder = driver.pool / "volumes" / volume.volume_id
    outside = tmp_path / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    driver.delete(volume.volume_id)
    assert (outside / "share/data").is_dir()


def test_a_volume_context_cannot_lead_to_a_folder_that_holds_no_such_volume(driver: Driver, tmp_path: Path) -> None:
    volume = driver.create()
    foreign = f"ub-{'0' * 12}-{volume.volume_id[-32:]}"
    (tmp_path / "trap/volumes" / foreign / "share/data").mkdir(parents=True)
    (tmp_path / "trap/volumes" / foreign / "volume.json").write_text(json.dumps({"version": 1, "id": "other"}))
    for path in (str(tmp_path / "trap"), "relative", "/nowhere", str(driver.pool), "a\0b"):
        with pytest.raises(grpc.RpcError) as caught:
            driver.rpc.NodeStageVolume(
                csi.NodeStageVolumeRequest(
                    volume_id=foreign,
                    staging_target_path=str(driver.kubelet),
                    volume_capability=capability(),
                    volume_context={"path": path, "owner": "other"},
                )
            )
        assert caught.value.code() in (Code.FAILED_PRECONDITION, Code.NOT_FOUND, Code.INTERNAL)


def test_a_volume_of_another_node_is_not_reported_deleted(start: StartDriver) -> None:
    first = start("node0")
    second = start("node1", config={"peers": [{"node": "node0", "address": "unix:///elsewhere"}]})  # nobody to ask
    volume = first.create()
    with refused(Code.FAILED_PRECONDITION, naming="node0"):
        second.delete(volume.volume_id)
    assert volumes_in(first.pool) == [volume.volume_id]


@pytest.mark.parametrize("name", ["x" * 128, "pvc/../../etc", "ünïcode ☃", "tab\tand\nnewline", "."])
def test_any_name_without_control_characters_works(driver: Driver, name: str) -> None:
    assert driver.create(name) == driver.create(name)


@pytest.mark.parametrize("name", ["x" * 129, "☃" * 43, "nul\0", "bell\x07", "del\x7f", ""])
def test_names_that_csi_forbids_are_refused(driver: Driver, name: str) -> None:
    with refused(Code.INVALID_ARGUMENT, naming="name"):
        driver.create(name)


def test_maps_over_4_kib_are_refused(driver: Driver) -> None:
    with refused(Code.INVALID_ARGUMENT, naming="parameters"):
        driver.create(parameters={f"key{i}": "x" * 100 for i in range(50)})


def test_every_wrong_parameter_is_named(driver: Driver) -> None:
    wrong = {"tpye": "model", "consistency": "perfect", "pool": "gold"}
    for word in ("tpye", "perfect", "gold"):
        with refused(Code.INVALID_ARGUMENT, naming=word):
            driver.create(parameters=wrong)
    driver.create(parameters={"csi.storage.k8s.io/pvc/name": "claim"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("type", "memory"),
        ("consistency", "close-to-open"),
        ("replicas", "3"),
        ("engine", "ub-block"),
    ],
)
def test_what_this_node_cannot_give_is_a_failed_precondition(driver: Driver, key: str, value: str) -> None:
    with refused(Code.FAILED_PRECONDITION, naming=value):
        driver.create(parameters={key: value})
    answer = driver.controller.GetCapacity(csi.GetCapacityRequest(parameters={key: value}))
    assert answer.available_capacity == 0


def test_a_volume_that_was_not_finished_is_swept_out_at_the_next_start(driver: Driver) -> None:
    driver.kill()
    (driver.pool / "new/ub-0/data").mkdir(parents=True)
    (driver.pool / "trash/ub-1/data").mkdir(parents=True)
    (driver.pool / "names/dangling.json").write_text("{")
    driver.restart()
    assert list((driver.pool / "new").iterdir()) == []
    assert list((driver.pool / "trash").iterdir()) == []
    driver.create()


def test_a_torn_record_of_one_volume_leaves_the_others_alone(driver: Driver) -> None:
    torn, whole = driver.create("torn"), driver.create("whole")
    (driver.pool / "volumes" / torn.volume_id / "volume.json").write_text('{"version": 1, "na')
    with refused(Code.INTERNAL, naming=torn.volume_id):
        driver.delete(torn.volume_id)
    driver.delete(whole.volume_id)


def test_validate_confirms_what_works_and_explains_what_does_not(driver: Driver) -> None:
    volume = driver.create()
    request = csi.ValidateVolumeCapabilitiesRequest(volume_id=volume.volume_id, volume_capabilities=[capability()])
    assert len(driver.controller.ValidateVolumeCapabilities(request).confirmed.volume_capabilities) == 1
    request.volume_capabilities[0].CopyFrom(capability(block=True))
    answer = driver.controller.ValidateVolumeCapabilities(request)
    assert not answer.HasField("confirmed")
    assert "block" in answer.message


@pytest.mark.parametrize(
    ("parameters", "fits", "named"),
    [
        ({"type": "model"}, ROX, "MULTI_NODE_MULTI_WRITER"),
        ({"consistency": "eventual"}, RWX, "SINGLE_NODE_WRITER"),
    ],
)
def test_create_validate_and_stage_refuse_the_same_uses(
    driver: Driver, parameters: dict[str, str], fits: int, named: str
) -> None:
    mode = AccessMode[named]
    with refused(Code.INVALID_ARGUMENT, naming=named):
        driver.create(mode=mode, parameters=parameters)
    volume = driver.create(mode=fits, parameters=parameters)
    request = csi.ValidateVolumeCapabilitiesRequest(
        volume_id=volume.volume_id, volume_capabilities=[capability(fits), capability(mode)]
    )
    answer = driver.controller.ValidateVolumeCapabilities(request)
    assert not answer.HasField("confirmed")
    assert named in answer.message
    with refused(Code.FAILED_PRECONDITION, naming=named):
        driver.stage(volume, mode)


def test_validate_confirms_nothing_that_it_did_not_judge(driver: Driver) -> None:
    request = csi.ValidateVolumeCapabilitiesRequest(
        volume_id=driver.create().volume_id,
        volume_capabilities=[capability()],
        volume_context={"engine": "of another volume"},
        parameters={"colour": "red"},
        mutable_parameters={"colour": "red"},
    )
    confirmed = driver.controller.ValidateVolumeCapabilities(request).confirmed
    assert [field.name for field, _ in confirmed.ListFields()] == ["volume_capabilities"]


@pytest.mark.parametrize("path", ["/tmp/" + "x" * 300, f"/{'x' * 300}/mount", "/" + "deep/" * 818 + "fifth"])
def test_paths_too_long_for_linux_are_refused(driver: Driver, path: str) -> None:
    id_, node, use = driver.create().volume_id, driver.rpc, capability()
    stage = csi.NodeStageVolumeRequest(volume_id=id_, staging_target_path=path, volume_capability=use)
    publish = csi.NodePublishVolumeRequest(
        volume_id=id_, staging_target_path=str(driver.kubelet), target_path=path, volume_capability=use
    )
    calls: list[tuple[Any, Any]] = [
        (node.NodeStageVolume, stage),
        (node.NodePublishVolume, publish),
        (node.NodeUnpublishVolume, csi.NodeUnpublishVolumeRequest(volume_id=id_, target_path=path)),
        (node.NodeUnstageVolume, csi.NodeUnstageVolumeRequest(volume_id=id_, staging_target_path=path)),
    ]
    for call, request in calls:
        with refused(Code.INVALID_ARGUMENT, naming="bytes"):
            call(request)


def test_missing_fields_are_named(driver: Driver) -> None:
    controller, node = driver.controller, driver.rpc
    calls: list[tuple[str, Any, Any]] = [
        ("name", controller.CreateVolume, csi.CreateVolumeRequest()),
        ("volume_capabilities", controller.CreateVolume, csi.CreateVolumeRequest(name="a")),
        ("volume_id", controller.DeleteVolume, csi.DeleteVolumeRequest()),
        ("volume_id", controller.ValidateVolumeCapabilities, csi.ValidateVolumeCapabilitiesRequest()),
        ("volume_id", node.NodeStageVolume, csi.NodeStageVolumeRequest()),
        ("staging_target_path", node.NodeStageVolume, csi.NodeStageVolumeRequest(volume_id="a")),
        (
            "volume_capability",
            node.NodeStageVolume,
            csi.NodeStageVolumeRequest(volume_id="a", staging_target_path="/x"),
        ),
        ("volume_id", node.NodePublishVolume, csi.NodePublishVolumeRequest()),
        ("target_path", node.NodePublishVolume, csi.NodePublishVolumeRequest(volume_id="a")),
        ("target_path", node.NodeUnpublishVolume, csi.NodeUnpublishVolumeRequest(volume_id="a")),
        ("staging_target_path", node.NodeUnstageVolume, csi.NodeUnstageVolumeRequest(volume_id="a")),
    ]
    for naming, call, request in calls:
        with refused(Code.INVALID_ARGUMENT, naming=naming):
            call(request)


def test_no_secret_reaches_the_log_or_an_error(driver: Driver) -> None:
    marker = "s3cr3t-marker"
    mount = csi.VolumeCapability.MountVolume(mount_flags=[marker])
    wanted = csi.VolumeCapability(mount=mount, access_mode=capability().access_mode)
    request = csi.CreateVolumeRequest(name="a", volume_capabilities=[wanted], secrets={"key": marker})
    with pytest.raises(grpc.RpcError) as caught:
        driver.controller.CreateVolume(request)
    volume = driver.create()
    with pytest.raises(grpc.RpcError):
        driver.rpc.NodePublishVolume(
            csi.NodePublishVolumeRequest(
                volume_id=volume.volume_id,
                target_path="/x",
                staging_target_path="relative",
                volume_capability=wanted,
                secrets={"k": marker},
                volume_context={"csi.storage.k8s.io/serviceAccount.tokens": marker},
            )
        )
    driver.stop()
    assert marker not in str(caught.value)
    assert marker not in driver.log.read_text()
    assert "mount_flags[0]" in driver.log.read_text()


def test_every_log_line_is_one_json_object_with_ids(driver: Driver) -> None:
    volume = driver.create()
    driver.stop()
    lines = [json.loads(line) for line in driver.log.read_text().splitlines()]
    assert any(line.get("method") == "CreateVolume" and line["code"] == "OK" for line in lines)
    assert volume.volume_id


def test_the_socket_is_for_root_only_and_alone_in_its_folder(driver: Driver) -> None:
    assert stat.S_IMODE(driver.socket.stat().st_mode) == 0o600


def test_a_socket_left_by_a_killed_driver_is_taken_over(driver: Driver) -> None:
    driver.kill()
    assert driver.socket.exists()
    driver.restart()
    driver.create()


def test_a_socket_in_use_is_not_taken_over(driver: Driver, csi_command: Run) -> None:
    second = csi_command(*driver.arguments[driver.arguments.index("--mode") :], env={"UB_ROOT": str(driver.root)})
    assert second.returncode == 1
    assert f"another process serves {driver.socket}" in second.stderr
    driver.create()


def test_sigterm_answers_what_is_in_flight_and_ends_with_0(driver: Driver) -> None:
    driver.create()
    assert driver.stop() == 0
    assert not driver.socket.exists()


def test_a_mode_offers_its_own_services_only(start: StartDriver) -> None:
    node, controller = start("node0", mode="node"), start("node0", mode="controller", suffix="-c")
    with refused(Code.UNIMPLEMENTED):
        node.create()
    with refused(Code.UNIMPLEMENTED):
        controller.rpc.NodeGetInfo(csi.NodeGetInfoRequest())
    volume = controller.create()
    assert volumes_in(node.pool) == [volume.volume_id]
    assert node.identity.GetPluginCapabilities(
        csi.GetPluginCapabilitiesRequest()
    ) == controller.identity.GetPluginCapabilities(csi.GetPluginCapabilitiesRequest())


def test_probe_says_when_a_pool_has_gone(driver: Driver) -> None:
    assert driver.identity.Probe(csi.ProbeRequest()).ready.value
    driver.pool.rename(driver.pool.with_name("moved"))
    with refused(Code.INTERNAL, naming="default"):
        driver.identity.Probe(csi.ProbeRequest())


def test_an_expansion_that_whole_blocks_would_put_over_its_limit_is_refused(driver: Driver) -> None:
    request = csi.CreateVolumeRequest(name="a", volume_capabilities=[capability(block=True)])
    request.parameters["type"] = "block"
    request.capacity_range.required_bytes = MiB
    volume = driver.controller.CreateVolume(request).volume

    def expand(required: int, limit: int) -> int:
        wanted = csi.ControllerExpandVolumeRequest(volume_id=volume.volume_id)
        wanted.capacity_range.required_bytes, wanted.capacity_range.limit_bytes = required, limit
        return driver.controller.ControllerExpandVolume(wanted).capacity_bytes

    with refused(Code.OUT_OF_RANGE, naming="whole blocks"):
        expand(MiB + 1, MiB + 1)
    assert expand(MiB + 1, 2 * MiB) == MiB + 4096
