"""Checks of kubelet, the container runtime, CDI and CNI. Pure: from facts to findings."""

from collections.abc import Iterator, Mapping
from typing import Any

from ubhost.doctor.facts import ConfigFile, Facts
from ubhost.doctor.findings import Finding, note, ok, problem, warning

OURS = "ub-cni"
CDI_KIND = "unifiedbus.com/urma"
NRI = "io.containerd.nri.v1.nri"
CRI_1, CRI_2 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is to be said of the node as a member of a cluster."""
    yield from _kubelet(facts)
    yield from _runtime(facts)
    yield from _cdi(facts)
    yield from _cni(facts)


def _kubelet(facts: Facts) -> Iterator[Finding]:
    if not any(node.exists for node in facts.kubelet_sockets):
        yield note(
            "kubelet", "no kubelet on this machine", "checks of the cluster side are left out where they need one"
        )
        return
    missing = [node.path for node in facts.kubelet_sockets if not node.exists]
    if missing:
        yield warning(
            "kubelet",
            f"kubelet is not running, or has not made {' '.join(missing)}",
            "devices are announced to, and pods' devices learnt from, these sockets",
            "systemctl start kubelet; the agent registers by itself when they appear",
        )
    else:
        yield ok("kubelet", "kubelet's sockets are in place")
    if facts.kubelet is None:
        return
    if facts.kubelet.trouble:
        yield warning(
            "kubelet-config", f"{facts.kubelet.path} cannot be read", facts.kubelet.trouble, "correct the file"
        )
    elif facts.kubelet.content.get("cpuManagerPolicy") == "static":
        yield warning(
            "cpu-manager",
            "kubelet's CPU manager is static",
            "it and nri-qos would both give CPUs to Guaranteed pods",
            "set cpuManagerPolicy: none and remove cpu_manager_state, or give nri-qos no HLS pods",
        )


def _runtime(facts: Facts) -> Iterator[Finding]:
    if facts.containerd is not None:
        yield from _containerd(facts, facts.containerd)
    elif facts.crio:
        yield from _crio(facts)
    elif "containerd" in facts.versions:
        yield from _containerd(facts, ConfigFile("containerd's defaults"))
    else:
        yield note("runtime", "no containerd or CRI-O configuration on this machine")


def _containerd(facts: Facts, file: ConfigFile) -> Iterator[Finding]:
    if file.trouble:
        yield problem("containerd", f"{file.path} cannot be read", file.trouble, "correct the file")
        return
    if not facts.containerd_socket.is_socket:
        yield warning(
            "containerd",
            f"containerd is not running: no socket at {facts.containerd_socket.path}",
            "its configuration is there, but no container can start",
            "systemctl start containerd; journalctl -u containerd",
        )
    plugins = _table(file.content, "plugins")
    is_second = file.content.get("version") == 3 or " v2." in facts.versions.get("containerd", "")
    nri = _table(plugins, NRI)
    if nri.get("disable", not is_second):
        yield problem(
            "nri",
            "containerd has NRI switched off",
            "nri-qos cannot place containers, and 1.7 has it off unless told otherwise",
            f'set disable = false under [plugins."{NRI}"] in {file.path} and restart containerd',
        )
    elif facts.containerd_socket.is_socket and not facts.nri_socket.is_socket:
        yield warning(
            "nri", "NRI is on, but its socket is not there", f"no {facts.nri_socket.path}", "restart containerd"
        )
    else:
        yield ok("nri", "containerd has NRI switched on")
    cri = _table(plugins, CRI_2 if is_second else CRI_1)
    if not cri.get("enable_cdi", is_second):
        yield problem(
            "cdi-runtime",
            "containerd has CDI switched off",
            "device nodes of pods arrive through CDI; 1.7 has it off unless told otherwise",
            f'set enable_cdi = true under [plugins."{CRI_1}"] in {file.path} and restart containerd',
        )
    else:
        yield ok("cdi-runtime", "containerd has CDI switched on")


def _crio(facts: Facts) -> Iterator[Finding]:
    disabled = [f.path for f in facts.crio if _table(_table(f.content, "crio"), "nri").get("enable_nri") is False]
    if disabled:
        yield problem(
            "nri",
            "CRI-O has NRI switched off",
            f"enable_nri = false in {disabled[-1]}",
            "set enable_nri = true under [crio.nri] and restart crio",
        )
    else:
        yield ok("nri", "CRI-O has NRI switched on")


def _cdi(facts: Facts) -> Iterator[Finding]:
    broken = [file for file in facts.cdi if file.trouble]
    if broken:
        yield problem(
            "cdi",
            f"{broken[0].path} is no CDI file",
            f"{broken[0].trouble}; one broken file can hide the devices of all",
            "remove it; the agent writes its own again",
        )
    ours = [file for file in facts.cdi if file.content.get("kind") == CDI_KIND]
    if ours:
        devices = ours[0].content.get("devices")
        count = len(devices) if isinstance(devices, list) else 0
        yield ok("cdi", f"{count} devices are described to the runtime in {ours[0].path}")
    elif any(node.exists for node in facts.kubelet_sockets):
        yield warning("cdi", "no CDI file for UB devices", "the agent writes it when it starts", "start ub-agent")


def _cni(facts: Facts) -> Iterator[Finding]:
    for file in facts.cni:
        if file.trouble:
            yield problem("cni-config", f"{file.path} is no CNI configuration", file.trouble, "correct or remove it")
    good = [file for file in facts.cni if not file.trouble]
    if not good:
        yield note("cni", "no CNI configuration on this machine")
        return
    if not uses_ub_cni(facts):
        yield warning(
            "cni",
            f"no network in {len(good)} configurations uses {OURS}",
            "pods get no UB device by the way of CNI",
            "start ub-agent with conf mode conflist, or write a network (docs: CNI)",
        )
        return
    path = facts.cni_plugin.path
    if facts.cni_plugin.is_executable:
        yield ok("cni", f"{OURS} is configured and installed")
    elif facts.cni_plugin.exists:
        yield problem("cni", f"{OURS} cannot be run", f"{path} is not executable", "run `ubnode install cni`")
    else:
        yield problem("cni", f"{OURS} is configured, but not installed", f"no {path}", "run `ubnode install cni`")


def uses_ub_cni(facts: Facts) -> bool:
    """Whether a CNI configuration of this node names our plugin."""
    return any(plugin.get("type") == OURS for file in facts.cni for plugin in _plugins(file))


def _plugins(file: ConfigFile) -> list[Mapping[str, Any]]:
    plugins = file.content.get("plugins", [file.content])
    return [plugin for plugin in plugins if isinstance(plugin, Mapping)] if isinstance(plugins, list) else []


def _table(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, Mapping) else {}
