"""Node labels by way of Node Feature Discovery."""

import re
from dataclasses import replace
from pathlib import Path

from cni_ub.agent.glance import Glance
from cni_ub.agent.inventory import Inventory, Snapshot
from cni_ub.agent.nodefeatures import FeatureFile, labels
from tests.cni_ub.agent.host import Host
from ubhost.ledger import Ledger
from ubhost.roots import Roots


def snapshot_of(host: Host) -> Snapshot:
    inventory = Inventory(lambda: host.provider, host.roots, Ledger(host.roots, boot_id="b"), Glance(host.roots))
    inventory.look()
    return inventory.snapshot


def test_a_node_says_where_it_is_what_it_has_and_how_real_that_is(host: Host) -> None:
    host.set_port("udma2", 1)
    cables = sum(bool(port.linkup) for entity in host.model.entities for port in entity.ports)
    assert cables
    assert labels(snapshot_of(host)) == {
        "unifiedbus.com/super-node": "1",
        "unifiedbus.com/slot": "0",
        "unifiedbus.com/level": "stand-in",
        "unifiedbus.com/devices": "4",
        "unifiedbus.com/devices-healthy": "3",
        "unifiedbus.com/planes": "4",
        "unifiedbus.com/bandwidth-mbps": str(cables * 400_000),
        "unifiedbus.com/numa": "0_1",
    }


def test_what_is_not_known_has_no_label_and_every_value_is_fit_for_one() -> None:
    found = labels(replace(Snapshot(), level="soft device"))
    assert found == {
        "unifiedbus.com/level": "soft-device",
        "unifiedbus.com/devices": "0",
        "unifiedbus.com/devices-healthy": "0",
    }


def test_the_file_holds_a_line_for_each_label(host: Host) -> None:
    (host.root / "etc/kubernetes/node-feature-discovery").mkdir(parents=True)
    file = FeatureFile(host.roots)
    snapshot = snapshot_of(host)
    file.update(snapshot)
    lines = file.path.read_text().splitlines()
    assert dict(line.split("=", 1) for line in lines) == labels(snapshot)
    assert all(re.fullmatch(r"[a-z.]+/[a-z-]+=[A-Za-z0-9_.-]+", line) for line in lines)
    assert list(file.path.parent.iterdir()) == [file.path]


def test_nothing_is_made_where_node_feature_discovery_is_not(tmp_path: Path) -> None:
    FeatureFile(Roots(tmp_path)).update(Snapshot())
    assert list(tmp_path.iterdir()) == []
