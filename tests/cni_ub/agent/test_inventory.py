"""What the agent knows of its devices, and when it tells."""

import time
from pathlib import Path

import pytest

from cni_ub.agent.glance import Glance
from cni_ub.agent.inventory import Inventory, Snapshot
from tests.cni_ub.agent.host import Host
from ubhost.errors import Busy, HostFault
from ubhost.ledger import Ledger
from ubhost.model import Eid
from ubhost.record import Record
from ubhost.ubse.bodies import UrmaPaths


def looking(host: Host) -> Inventory:
    ledger = Ledger(host.roots, boot_id="boot")
    return Inventory(lambda: host.provider, host.roots, ledger, Glance(host.roots))


def faults(inventory: Inventory, device: str) -> tuple[str, ...]:
    inventory.look()
    return inventory.snapshot.by_id[device].faults


def test_every_device_is_found_well_and_in_its_place(host: Host) -> None:
    inventory = looking(host)
    inventory.look()
    states = inventory.snapshot.devices
    assert [state.device.id for state in states] == ["urma_1", "urma_2", "urma_3", "urma_4"]
    assert all(state.is_healthy for state in states)
    assert states[0].place.die != states[1].place.die  # devices alternate between the two chips
    assert states[0].place == states[2].place
    assert len(states[0].place.planes) == 2


def test_a_port_that_is_down_makes_its_device_unhealthy_and_says_which(host: Host) -> None:
    inventory = looking(host)
    host.set_port("udma2", 1)
    assert faults(inventory, "urma_1") == ("port 0 of udma2 is DOWN",)
    assert faults(inventory, "urma_2") == ()
    host.set_port("udma2", 4)
    assert faults(inventory, "urma_1") == ()


def test_a_lost_eid_makes_its_device_unhealthy(host: Host) -> None:
    inventory = looking(host)
    host.lose_eid("udma3")
    assert faults(inventory, "urma_1") == ("udma3 has lost its EID",)


def test_eids_that_a_pod_holds_are_not_lost(host: Host) -> None:
    inventory = looking(host)
    inventory.look()
    members = inventory.snapshot.by_id["urma_1"].device.members
    Ledger(host.roots, boot_id="boot").write(Record("urma_1", "c1", "net1", pod="default/web", members=members))
    host.lose_eid("udma3")
    assert faults(inventory, "urma_1") == ()
    holder = inventory.snapshot.by_id["urma_1"].holder
    assert holder
    assert (holder.container, holder.ifname, holder.pod) == ("c1", "net1", "default/web")


def test_one_device_that_makes_no_sense_does_not_blind_us_to_the_others(host: Host) -> None:
    inventory = looking(host)
    host.attribute("udma2", "port0/state").write_text("nonsense\n")
    assert "udma2 cannot be read" in faults(inventory, "urma_1")[0]
    assert faults(inventory, "urma_2") == ()


def test_what_ubse_says_counts(host: Host) -> None:
    inventory = looking(host)
    host.provider.sick.add("urma_2")
    assert faults(inventory, "urma_2") == ("urma_2 is reported unhealthy",)


def test_while_the_hosts_own_manager_is_away_the_last_word_counts_and_then_nobody_gets_a_device(host: Host) -> None:
    now = [0.0]
    inventory = Inventory(
        lambda: host.provider, host.roots, Ledger(host.roots, boot_id="boot"), Glance(host.roots), clock=lambda: now[0]
    )
    inventory.look()
    host.provider.is_down = True
    for at, healthy in ((1.0, 4), (10.9, 4), (11.0, 0)):
        now[0] = at
        with pytest.raises(Busy):
            inventory.look()
        assert sum(state.is_healthy for state in inventory.snapshot.devices) == healthy
    assert inventory.snapshot.by_id["urma_1"].faults == ("UBSE does not answer",)
    host.provider.is_down = False
    inventory.look()
    assert all(state.is_healthy for state in inventory.snapshot.devices)


def test_an_agent_that_starts_while_the_manager_is_away_says_nothing(host: Host) -> None:
    inventory = looking(host)
    written: list[Snapshot] = []
    inventory.before_announcing(written.append)
    host.provider.is_down = True
    with pytest.raises(Busy):
        inventory.look()
    assert (inventory.snapshot, written) == (Snapshot(), [])


def test_a_device_that_was_pulled_out_is_dropped_unless_a_pod_holds_it(host: Host) -> None:
    inventory = looking(host)
    inventory.look()
    Ledger(host.roots, boot_id="boot").write(Record("urma_1", "c1", "net1"))
    host.provider.listed[:] = ["urma_3", "urma_4"]
    inventory.look()
    assert [(s.device.id, s.faults) for s in inventory.snapshot.devices] == [
        ("urma_1", ("urma_1 is gone",)),
        ("urma_3", ()),
        ("urma_4", ()),
    ]
    assert inventory.snapshot.by_id["urma_1"].device.members  # what it was is not forgotten


@pytest.mark.parametrize("name", ["../../etc/passwd", "urma 1", "urma_1::2", "x" * 60, "-urma", "urma=1", ""])
def test_a_device_with_a_name_that_could_do_harm_is_not_offered(host: Host, name: str) -> None:
    host.provider.listed.append(name)
    inventory = looking(host)
    inventory.look()
    assert name not in inventory.snapshot.by_id
    assert len(inventory.snapshot.devices) == 4


@pytest.mark.parametrize("member", ["udma\nLD_PRELOAD=evil", "../../sda", "a,b"])
def test_a_device_made_of_something_with_such_a_name_is_not_offered(host: Host, member: str) -> None:
    host.provider.listed.append("urma_77")
    host.provider.made_of["urma_77"] = UrmaPaths("bonding_dev_1", ("udma2", member), Eid(1))
    host.provider.allocate("urma_77")
    inventory = looking(host)
    inventory.look()
    assert "urma_77" not in inventory.snapshot.by_id


def test_nothing_new_is_no_news(host: Host) -> None:
    inventory = looking(host)
    inventory.look()
    version = inventory.snapshot.version
    inventory.look()
    assert inventory.snapshot.version == version


def test_what_must_be_written_first_is_written_again_until_it_succeeds(host: Host) -> None:
    inventory = looking(host)
    written: list[Snapshot] = []

    def write(snapshot: Snapshot) -> None:
        written.append(snapshot)
        if len(written) == 1:
            raise HostFault("disk full")

    inventory.before_announcing(write)
    with pytest.raises(HostFault, match="disk full"):
        inventory.look()
    inventory.look()
    inventory.look()
    assert len(written) == 2


class CountingGlance(Glance):
    """Counts how often it was taken."""

    taken = 0

    def __call__(self) -> object:
        self.taken += 1
        return super().__call__()


def test_a_change_without_an_event_is_seen_at_the_next_glance(host: Host) -> None:
    glance = CountingGlance(host.roots)
    inventory = Inventory(lambda: host.provider, host.roots, Ledger(host.roots, boot_id="boot"), glance)
    inventory.start()
    try:
        first = inventory.wait(0, 20)
        assert first.by_id["urma_1"].is_healthy
        before = glance.taken
        host.set_port("udma2", 1)
        seen = inventory.wait(first.version, 20)
        assert not seen.by_id["urma_1"].is_healthy
        assert glance.taken - before <= 2  # one may have been half-way
        assert inventory.ready() is None
    finally:
        inventory.stop()


def test_a_host_that_cannot_be_read_keeps_the_last_snapshot_and_is_named(host: Host, tmp_path: Path) -> None:
    inventory = looking(host)
    inventory.start()
    try:
        first = inventory.wait(0, 60)
        no_driver_gives = host.attribute("udma2", "port0/state").parents[2] / "a b"
        no_driver_gives.mkdir()
        deadline = time.monotonic() + 60
        while inventory.ready() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "a b: not a device name" in (inventory.ready() or "")
        assert inventory.snapshot == first
    finally:
        inventory.stop()
