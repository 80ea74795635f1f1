"""What UBSE refuses, the stand-in refuses: reference/ub.md sections 5 and 8."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ubhost.model import Eid
from ubhost.provider import Bandwidth
from ubhost.ubse.memory import NumaCreate, encode_mem_name
from ubhost.ubse.status import Status
from ubhost.ubse.wire import MemOp
from ubsim.expansion import expand
from ubsim.scenario import NodeEntry, ScenarioFile
from ubsim.ubse import Rejected, Ubse, Urma
from ubsim.ubse_memory import Desk

MINE, YOURS = 0, 1000


def ubse(**changes: object) -> Ubse:
    device = Urma("urma_1", "bonding_dev_1", ("udma2", "udma3"), Eid(1))
    return Ubse({"urma_1": replace(device, **changes)})  # type: ignore[arg-type]


def test_a_held_device_cannot_be_allocated_again_by_anybody() -> None:
    held = ubse().allocate("urma_1", MINE)
    for uid in (MINE, YOURS):
        with pytest.raises(Rejected) as caught:
            held.allocate("urma_1", uid)
        assert caught.value.code == Status.ENGINE_EXISTED


def test_only_the_holder_may_free_or_limit() -> None:
    held = ubse().allocate("urma_1", MINE)
    strangers: tuple[Callable[[], object], ...] = (
        lambda: held.free("urma_1", YOURS),
        lambda: held.limit("urma_1", Bandwidth(8, 16), YOURS),
        lambda: held.unlimit("urma_1", YOURS),
    )
    for operation in strangers:
        with pytest.raises(Rejected) as caught:
            operation()
        assert caught.value.code == Status.ENGINE_AUTH_FAILED


def test_a_free_device_cannot_be_freed() -> None:
    with pytest.raises(Rejected) as caught:
        ubse().free("urma_1", MINE)
    assert caught.value.code == Status.ENGINE_NOT_EXIST


def test_an_inactive_device_cannot_be_allocated_until_it_is_activated() -> None:
    idle = ubse(is_active=False)
    with pytest.raises(Rejected) as caught:
        idle.allocate("urma_1", MINE)
    assert caught.value.code == Status.ENGINE_ALLOCATE
    assert idle.activate("urma_1").allocate("urma_1", MINE).named("urma_1").holder == MINE


@pytest.mark.parametrize("limits", [(4, 8), (8, 12), (16, 8), (0, 0)])
def test_a_limit_is_in_steps_of_8_and_min_is_not_above_max(limits: tuple[int, int]) -> None:
    with pytest.raises(Rejected) as caught:
        ubse().limit("urma_1", Bandwidth(*limits), MINE)
    assert caught.value.code == Status.ENGINE_OUT_OF_RANGE


def test_a_shared_device_cannot_be_limited() -> None:
    shared = ubse(is_unique=False)
    operations: tuple[Callable[[], object], ...] = (
        lambda: shared.limit("urma_1", Bandwidth(8, 16), MINE),
        lambda: shared.unlimit("urma_1", MINE),
    )
    for operation in operations:
        with pytest.raises(Rejected) as caught:
            operation()
        assert caught.value.code == Status.NOT_SUPPORTED


def test_a_limit_is_told_until_it_is_reset_or_the_device_is_freed() -> None:
    limited = ubse().allocate("urma_1", MINE).limit("urma_1", Bandwidth(8, 16), MINE)
    assert limited.limit_of("urma_1") == Bandwidth(8, 16)
    for state in (limited.unlimit("urma_1", MINE), limited.free("urma_1", MINE)):
        with pytest.raises(Rejected) as caught:
            state.limit_of("urma_1")
        assert caught.value.code == Status.ENGINE_NOT_EXIST


def test_unknown_and_overlong_names_have_codes_of_their_own() -> None:
    for name, code in (("urma_9", Status.ENGINE_NOT_EXIST), ("u" * 32, Status.ENGINE_OUT_OF_RANGE)):
        with pytest.raises(Rejected) as caught:
            ubse().allocate(name, MINE)
        assert caught.value.code == code


def test_a_ubse_without_owners_gives_a_device_to_everybody_and_frees_nothing() -> None:
    state = replace(ubse(), has_owners=False)
    assert state.allocate("urma_1", MINE).allocate("urma_1", YOURS) == state
    assert state.free("urma_1", YOURS) == state.free("urma_9", YOURS) == state
    with pytest.raises(Rejected) as caught:
        state.allocate("urma_9", MINE)
    assert caught.value.code == Status.ENGINE_NOT_EXIST


def test_memory_that_comes_or_goes_has_codes_of_its_own(tmp_path: Path) -> None:
    """1010 and 1011: a driver above must wait and ask again, not take the name for another's."""
    world = expand(ScenarioFile("w", (NodeEntry("node", count=2),)), where="test")
    heard: list[Status] = []

    def happen(_: dict[str, object]) -> None:
        """While the super-node changes, somebody asks for the same name."""
        for op, body in ((MemOp.NUMA_CREATE, asked), (MemOp.NUMA_GET, encode_mem_name("m"))):
            with pytest.raises(Rejected) as caught:
                desk.handlers[op](body, MINE)
            heard.append(caught.value.code)

    desk = Desk("node0", tmp_path, lambda: world, happen)
    asked = NumaCreate("m", 128 << 20).encode()
    desk.handlers[MemOp.NUMA_CREATE](asked, MINE)
    assert heard == [Status.ENGINE_CREATING] * 2
    desk.handlers[MemOp.NUMA_DELETE](encode_mem_name("m"), MINE)
    assert heard[2:] == [Status.ENGINE_DELETING] * 2
