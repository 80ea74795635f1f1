"""What makes a device one that no pod should get."""

from dataclasses import replace

import pytest

from cni_ub.agent.health import faults
from ubhost.model import Eid, PortState, UrmaDevice, UrmaPort
from ubhost.provider import Device

EID = Eid.from_words(7, 1, 2, 3)
DEVICE = Device("urma_1", ("bonding_dev_1", "udma2"))
WELL = {
    name: UrmaDevice(name, eids=(EID, Eid(0)), ports=(UrmaPort(0, state=PortState.ACTIVE),)) for name in DEVICE.members
}


def with_port(state: PortState | None, index: int = 0) -> dict[str, UrmaDevice]:
    return {**WELL, "udma2": replace(WELL["udma2"], ports=(UrmaPort(index, state=state),))}


def test_a_device_of_which_all_is_well_has_no_fault() -> None:
    assert faults(DEVICE, WELL, held=False) == ()


@pytest.mark.parametrize("state", [PortState.DOWN, PortState.INIT, PortState.ARMED])
def test_a_port_that_is_not_up_is_one(state: PortState) -> None:
    assert faults(DEVICE, with_port(state), held=True) == (f"port 0 of udma2 is {state.name}",)


@pytest.mark.parametrize("state", [PortState.ACTIVE, PortState.ACTIVE_DEFER, PortState.NOP, None])
def test_a_port_that_is_up_or_of_which_nothing_is_told_is_none(state: PortState | None) -> None:
    assert faults(DEVICE, with_port(state), held=False) == ()


def test_ports_that_todays_driver_does_not_fill_in_say_nothing() -> None:
    assert faults(DEVICE, with_port(PortState.DOWN, index=1), held=False) == ()


def test_a_device_that_cannot_be_read_says_what_was_read() -> None:
    kernel = {**WELL, "udma2": UrmaDevice("udma2", fault="port0/state: 'x' makes no sense")}
    assert faults(DEVICE, kernel, held=False) == ("udma2 cannot be read: port0/state: 'x' makes no sense",)


def test_every_fault_is_told() -> None:
    kernel = {"udma2": replace(with_port(PortState.DOWN)["udma2"], eids=(Eid(0),))}
    assert faults(DEVICE, kernel, held=False) == (
        "bonding_dev_1 is gone",
        "port 0 of udma2 is DOWN",
        "udma2 has lost its EID",
    )


def test_an_eid_in_a_pod_is_no_loss() -> None:
    kernel = {**WELL, "udma2": replace(WELL["udma2"], eids=(Eid(0),))}
    assert faults(DEVICE, kernel, held=True) == ()


def test_what_ubse_says_counts_where_nothing_else_is_seen() -> None:
    sick = replace(DEVICE, is_healthy=False)
    assert faults(sick, WELL, held=False) == ("urma_1 is reported unhealthy",)
    assert faults(sick, with_port(PortState.DOWN), held=False) == ("port 0 of udma2 is DOWN",)


def test_on_a_host_without_the_urma_driver_the_providers_word_is_all_there_is() -> None:
    assert faults(Device("mlx5_0", ("mlx5_0",)), None, held=False) == ()
    assert faults(Device("mlx5_0", ("mlx5_0",), is_healthy=False), None, held=False) == (
        "mlx5_0 is reported unhealthy",
    )
