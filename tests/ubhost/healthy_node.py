"""What the doctor sees of a node that is well, to be made ill in one place."""

import stat

from ubhost.discovery import Discovery, Level
from ubhost.doctor import report
from ubhost.doctor.facts import ConfigFile, Daemon, Facts, Node
from ubhost.doctor.findings import Finding, Verdict
from ubhost.model import UbHost
from ubhost.provider import Device, Kind, Sharing
from ubhost.topology import Topology

SOCKET, FILE, CHAR = stat.S_IFSOCK | 0o660, stat.S_IFREG | 0o755, stat.S_IFCHR | 0o666
NRI_ON = {
    "plugins": {"io.containerd.nri.v1.nri": {"disable": False}, "io.containerd.grpc.v1.cri": {"enable_cdi": True}}
}
CDI_FILE = ConfigFile("/var/run/cdi/unifiedbus.com-urma.json", {"kind": "unifiedbus.com/urma", "devices": [1, 2]})

AGENT = Daemon("ub-agent", Node("/run/ub-node/agent.sock", SOCKET), answers=True)
CSI = Daemon("ub-csi", Node("/var/lib/kubelet/plugins/csi-ub.unifiedbus.com/csi.sock"), answers=False)
QOS = Daemon("nri-qos", Node("/run/ub-node/nri-qos.sock", SOCKET), answers=True, unit="nri-qos.service")

HEALTHY = Facts(
    kernel="6.6.0-98.oe2403sp3",
    machine="aarch64",
    has_ubrt=True,
    modules=frozenset({"ubcore", "uburma", "udma", "ubagg", "ipourma"}),
    found=Discovery(
        Kind.UBCORE, Level.HARDWARE, UbHost(True), Topology(), Sharing.EXCLUSIVE, (Device("urma_1", ("udma2",)),)
    ),
    ubse=Node("/run/ubse/ubse.sock", SOCKET),
    has_ubse_group=True,
    device_nodes=(Node("/dev/uburma/udma2", CHAR),),
    libraries=("liburma.so.0",),
    cgroup="v2",
    controllers=frozenset({"cpu", "cpuset", "memory", "io", "rdma"}),
    kubelet_sockets=(Node("/var/lib/kubelet/device-plugins/kubelet.sock", SOCKET),),
    containerd=ConfigFile("/etc/containerd/config.toml", NRI_ON),
    containerd_socket=Node("/run/containerd/containerd.sock", SOCKET),
    nri_socket=Node("/var/run/nri/nri.sock", SOCKET),
    cdi=(CDI_FILE,),
    cni=(ConfigFile("/etc/cni/net.d/05-ub.conflist", {"plugins": [{"type": "bridge"}, {"type": "ub-cni"}]}),),
    cni_plugin=Node("/opt/cni/bin/ub-cni", FILE),
    daemons=(AGENT, CSI, QOS),
    versions={"containerd": "containerd github.com/containerd/containerd 1.7.24 hash"},
)
assert HEALTHY.found is not None
FOUND: Discovery = HEALTHY.found


def only(facts: Facts) -> list[Finding]:
    """What is not well."""
    return [finding for finding in report.examine(facts) if finding.verdict in (Verdict.PROBLEM, Verdict.WARNING)]
