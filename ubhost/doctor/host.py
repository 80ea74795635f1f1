"""Checks of kernel, driver, devices and UBSE. Pure: from facts to findings."""

from collections.abc import Iterator

from ubhost.discovery import Discovery, Level
from ubhost.doctor.facts import Facts
from ubhost.doctor.findings import Finding, note, ok, problem, warning
from ubhost.provider import Kind, Sharing

URMA_MODULES = ("ubcore", "uburma", "udma", "ubagg")

AT_BOOT = (
    "at boot, before kubelet and the container runtime start: the kernel refuses it while any other namespace exists"
)


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is to be said of the host itself."""
    yield from _provider(facts)
    if facts.found is not None:
        yield from _sysfs(facts.found)
        yield from _modules(facts, facts.found)
        yield from _sharing(facts, facts.found)
        yield from _devices(facts, facts.found)
        yield from _ubse(facts, facts.found)
    yield from _cgroup(facts)
    yield from _selinux(facts)


def _provider(facts: Facts) -> Iterator[Finding]:
    if facts.found is None:
        platform = "firmware has a UBRT table" if facts.has_ubrt else "firmware has no UBRT table: not a UB machine"
        yield problem(
            "provider",
            "no UB or RDMA devices can be used here",
            f"{facts.trouble}; {platform}",
            "load the drivers (systemctl start ub-pkg-urma), or for a trial: ubnode sim up --scenario FILE",
        )
        return
    level, kind = facts.found.level, facts.found.kind
    if level is Level.HARDWARE:
        yield ok("provider", f"provider {kind.value} on hardware")
    else:
        yield note("provider", f"provider {kind.value}, level {level.value}", "no figure measured here is a UB figure")
    if others := [other for other in facts.kinds if other != kind.value]:
        yield note(
            "providers",
            f"{' and '.join(others)} would be possible, too: {kind.value} is taken",
            "`auto` takes the first of sim, ubcore and rdma; `provider` in the configuration of ub-agent names another",
        )
    if kind is Kind.UBCORE and not facts.has_ubrt:
        yield warning(
            "ubrt",
            "the UB driver is loaded, but firmware has no UBRT table",
            "NUMA places of UB entities come from that table and will be unknown",
            "check that UB is enabled in the BIOS",
        )


def _sysfs(found: Discovery) -> Iterator[Finding]:
    """Devices with a fault are told of with their health; this is the rest of the tree."""
    known = {node.id for node in found.host.numa}
    strange = [e for e in found.host.entities if e.numa is not None and known and e.numa not in known]
    faults = [*found.host.faults, *(entity.fault for entity in found.host.entities if entity.fault)]
    faults += [f"entity {entity.number} is on NUMA node {entity.numa}, which is not there" for entity in strange]
    if faults:
        yield warning(
            "sysfs",
            f"the kernel tells {len(faults)} {'thing that makes' if len(faults) == 1 else 'things that make'} no sense",
            "; ".join(faults[:4]),
            "these parts are left out; report it with `ubnode bug-report` to whom the driver or the firmware is from",
        )


def _modules(facts: Facts, found: Discovery) -> Iterator[Finding]:
    if found.kind is not Kind.UBCORE:
        return
    missing = [name for name in URMA_MODULES if name not in facts.modules]
    if missing:
        yield problem(
            "modules",
            f"kernel modules are missing: {' '.join(missing)}",
            "URMA needs ubcore, uburma, udma and ubagg (bonding)",
            "systemctl start ub-pkg-urma, or modprobe them in this order",
        )
    else:
        yield ok("modules", "the URMA kernel modules are loaded")
    if "ipourma" not in facts.modules:
        yield warning(
            "ipourma",
            "module ipourma is not loaded",
            "devices have no IP netdev, so pods get URMA but no IP over UB",
            "modprobe ipourma",
        )


def _sharing(facts: Facts, found: Discovery) -> Iterator[Finding]:
    if found.sharing is None:
        yield warning(
            "sharing",
            "it is unknown who sees a device",
            "the driver cannot be asked: it has no SHOW_SYSTEM",
            "update the ubcore driver (OLK-6.6), or ask for isolation 'shared' only",
        )
    elif found.sharing is Sharing.EXCLUSIVE:
        yield ok("sharing", "devices are exclusive: a pod sees its own and no others")
    else:
        command = (
            "rdma system set netns exclusive" if found.kind is Kind.RDMA else "urma_admin system set dev_sharing off"
        )
        when = "now" if not facts.others else f"{AT_BOOT} ({facts.others} exist)"
        yield problem(
            "sharing",
            "devices are shared with every network namespace",
            "isolation 'exclusive', the default, is refused on such a host; every pod reaches every device",
            f"run `{command}` {when}; or ask for isolation 'shared' in the network configuration",
        )


def _devices(facts: Facts, found: Discovery) -> Iterator[Finding]:
    if not found.devices and any("UBSE is not running" in text for text in found.notes):
        return  # nobody can say which they are; the check of UBSE tells
    if not found.devices:
        yield problem(
            "devices",
            "there is no device to give to a pod",
            "the provider answers, but lists none",
            "see `ubnode show entities`: entities are enabled by writing ub_numues of the managing entity",
        )
        return
    ill = [device.id for device in found.devices if not device.is_healthy]
    if ill:
        yield warning(
            "health",
            f"{len(ill)} of {len(found.devices)} devices are not healthy: {' '.join(ill[:8])}",
            "; ".join(_faults(found)) or "all ports of their entities are down, a member is missing, or UBSE says so",
            "see `ubnode show topology` for the ports, and the cables or the fabric manager behind them",
        )
    else:
        yield ok("health", f"{len(found.devices)} devices, all healthy")
    missing = [node.path for node in facts.device_nodes if not node.exists]
    if missing:
        yield problem(
            "device-nodes",
            f"device nodes are missing: {' '.join(missing[:6])}",
            "a container cannot open what is not there; udev makes the nodes when the driver registers the device",
            "check `udevadm monitor`, and that /dev is the host's own",
        )
    elif facts.device_nodes:
        yield ok("device-nodes", f"{len(facts.device_nodes)} device nodes are in place")


def _faults(found: Discovery) -> list[str]:
    """What kernel devices have that makes no sense."""
    return [device.fault for device in found.host.devices if device.fault][:4]


def _ubse(facts: Facts, found: Discovery) -> Iterator[Finding]:
    if found.kind is Kind.RDMA:
        return
    if not facts.ubse.is_socket:
        yield warning(
            "ubse",
            f"UBSE is not running: no socket at {facts.ubse.path}",
            "without UBSE devices are not bonded, not allocated, and cannot be limited",
            "systemctl start ubse",
        )
        return
    if facts.ubse.is_open_to_others:
        yield problem(
            "ubse-socket",
            f"everybody may talk to UBSE: {facts.ubse.path} has mode {(facts.ubse.mode or 0) & 0o777:o}",
            "who reaches UBSE manages the memory of the node; it trusts the uid that its clients name",
            f"chmod 0660 {facts.ubse.path}",
        )
    half = [text for text in found.notes if "UBSE" in text or "super-node" in text]
    if half:
        yield problem(
            "ubse",
            "UBSE does not answer as it should",
            "; ".join(half),
            "systemctl restart ubse; journalctl -u ubse; ubsectl check",
        )
    else:
        yield ok("ubse", f"UBSE answers, {len(found.topology.nodes)} nodes in the super-node")
    if found.kind is Kind.UBCORE and not facts.has_ubse_group:
        yield warning(
            "ubse-group",
            "there is no group ubse",
            "only root reaches UBSE then; its own services expect the group",
            "reinstall the package ubs-engine",
        )


def _cgroup(facts: Facts) -> Iterator[Finding]:
    if facts.cgroup is None and facts.found is not None and facts.found.kind is Kind.SIM:
        return  # a simulated host has no cgroups of its own
    if facts.cgroup != "v2":
        yield problem(
            "cgroup",
            f"cgroups are {facts.cgroup or 'not mounted'}, not v2",
            "nri-qos writes cgroup v2 files; rdma.max exists there only",
            "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all",
        )
        return
    missing = sorted({"cpu", "cpuset", "memory", "io"} - facts.controllers)
    if missing:
        yield problem(
            "cgroup",
            f"cgroup controllers are missing: {' '.join(missing)}",
            "the kernel was built or booted without them, or v1 holds them",
            "remove cgroup_disable= and v1 mounts of these controllers",
        )
    else:
        yield ok("cgroup", "cgroup v2 with cpu, cpuset, memory and io")
    if "rdma" not in facts.controllers:
        yield note(
            "rdma-cgroup", "no rdma controller", "objects of a pod on a device cannot be limited (CONFIG_CGROUP_RDMA)"
        )


def _selinux(facts: Facts) -> Iterator[Finding]:
    if facts.selinux == "enforcing":
        yield note(
            "selinux",
            "SELinux is enforcing",
            "device nodes and mounts need labels that containers may use; look for denials with `ausearch -m avc`",
        )
