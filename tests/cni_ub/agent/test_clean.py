"""Taking away what the agent published."""

import json

from cni_ub.agent.clean import clean
from cni_ub.agent.services import services
from cni_ub.agent.settings import ConfMode, ConfSettings, Settings
from tests.cni_ub.agent.host import Host
from tests.cni_ub.agent.test_confplan import CALICO
from tests.waiting import wait_for
from ubhost.ledger import Ledger


def test_a_node_looks_as_before_even_when_the_agent_was_killed(host: Host) -> None:
    folder = host.root / "etc/cni/net.d"
    folder.mkdir(parents=True)
    (folder / "10-calico.conflist").write_text(json.dumps(CALICO))
    features = host.root / "etc/kubernetes/node-feature-discovery/features.d"
    features.mkdir(parents=True)
    settings = Settings(conf=ConfSettings(ConfMode.CONFLIST))
    parts = services(settings, host.roots, lambda: host.provider, Ledger(host.roots, boot_id="b"))
    published = [
        folder / "00-ub-cni.conflist",
        host.root / "var/run/cdi/unifiedbus.com-urma.json",
        features / "ub-node",
        *(
            host.root / f"var/run/k8s.cni.cncf.io/devinfo/dp/unifiedbus.com-ub_net_device-urma_{n}-device.json"
            for n in range(1, 5)
        ),
    ]
    running = [
        part for part in parts if part.name in ("devices", "CNI configuration")
    ]  # device info files stay: killed
    for part in running:
        part.start()
    wait_for(lambda: all(path.exists() for path in published))
    for part in running:
        part.stop()
    assert clean(settings, host.roots) == published
    assert not any(path.exists() for path in published)
    assert [path.name for path in folder.iterdir()] == ["10-calico.conflist"]
    assert clean(settings, host.roots) == []
