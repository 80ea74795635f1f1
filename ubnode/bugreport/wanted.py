"""What a report is made of. Values only: the most telling first, because a report that is full takes no more."""

from dataclasses import dataclass

# Nothing that is a user's: no volume, no pool, no shared memory, no log of a container but our own, no Secret.


@dataclass(frozen=True, slots=True)
class Command:
    """What a program says. ``own`` ones are commands of ubnode."""

    name: str
    argv: tuple[str, ...]
    own: bool = False


@dataclass(frozen=True, slots=True)
class Files:
    """Files below the root of the node, by glob; never through a link."""

    glob: str


@dataclass(frozen=True, slots=True)
class Tree:
    """Attributes of the kernel below folders, by glob, in one text: links inside ``within`` count as its own."""

    name: str
    globs: tuple[str, ...]
    within: str = "sys"


Item = Command | Files | Tree

ITEMS: tuple[Item, ...] = (
    Command("show", ("show", "--json"), own=True),
    Command("capacity", ("show", "capacity", "--json"), own=True),
    Command("doctor", ("doctor", "--json"), own=True),
    Command("attachments", ("attachments", "--json"), own=True),
    Command("paths", ("show", "paths", "--json"), own=True),
    Command("volumes", ("volumes", "--json"), own=True),
    Command("qos", ("qos", "--json"), own=True),
    Command("conf", ("conf", "--json"), own=True),
    Files("etc/ub-node/*.yaml"),
    Files("etc/cni/net.d/**/*"),
    Files("etc/cdi/*.json"),
    Files("run/cdi/*.json"),
    Files("run/ub-node/*.json"),
    Files("run/ub-node/nri-qos.journal"),
    Files("run/ub-node/volumes/*"),
    Files("run/ub-node/zerocopy/records/*.json"),
    Files("var/lib/ub-node/*.json"),
    Files("var/lib/ub-node/attachments/*"),
    Files("var/lib/ub-node/attached/*"),
    Command("log", ("journalctl", "-q", "-n", "5000", "-o", "short-iso", *(
        option for unit in ("ub-agent", "ub-csi", "nri-qos") for option in ("-u", unit)))),
    Files("var/log/pods/*_*ub-node-*/*/*.log"),
    Command("units", ("systemctl", "--no-pager", "status", "ub-agent", "ub-csi", "nri-qos")),
    Files("etc/systemd/system/ub-*.service"),
    Files("etc/systemd/system/nri-qos.service"),
    Files("etc/containerd/config.toml"),
    Files("etc/containerd/conf.d/*.toml"),
    Files("etc/crio/crio.conf.d/*"),
    Files("var/lib/kubelet/config.yaml"),
    Files("var/lib/kubelet/cpu_manager_state"),
    Files("var/lib/kubelet/memory_manager_state"),
    Files("proc/version"),
    Files("proc/cmdline"),
    Files("proc/modules"),
    Files("proc/meminfo"),
    Files("proc/pressure/*"),
    Files("sys/fs/cgroup/cgroup.controllers"),
    Files("proc/self/mountinfo"),
    Files("var/lib/cni/results/*"),
    Command("links", ("ip", "-details", "address", "show")),
    Command("kernel-log", ("journalctl", "-q", "-k", "-n", "2000", "-o", "short-iso")),
    Tree("urma", ("sys/class/ubcore/*", "sys/class/uburma/*")),
    Tree("rdma", ("sys/class/infiniband/*",)),
    Tree("memory", ("sys/class/obmm/*", "sys/devices/obmm/*", "sys/devices/system/node/node*")),
    Tree("bus", ("sys/bus/ub/devices/*",)),
    Tree("modules", ("sys/module/ub*", "sys/module/obmm", "sys/module/udma", "sys/module/ummu", "sys/module/smc")),
)  # fmt: skip
