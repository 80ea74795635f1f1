"""Which class a pod is of, and why. Pure.

First to last: our own key; foreign keys in the order of the table; static pods are the node's own; the namespace;
selectors. An annotation goes before a label of the same name. A value that nobody knows is a typo: the pod counts as
undeclared, since taking it for online would let a typo pin CPUs, and for offline, throttle somebody's service.

Source: design section 8; reference/nri.md sections 2.1 and 5 (C14).
"""

from dataclasses import dataclass

from nri_qos import cpulist
from nri_qos.config import Config
from nri_qos.model import CPUS_KEY, NUMA_KEY, OWN_KEY, SCOPE_KEY, NumaPolicy, NumaScope, Pod, QosClass
from ubhost.errors import InvalidRequest

LONGEST = 256  # characters of a value that are read or remembered: a pod may say anything, and it is logged
_STATIC = "kubernetes.io/config.source"
_MIRROR = "kubernetes.io/config.mirror"
_OWN = {qos.value: qos for qos in QosClass if qos is not QosClass.UNDECLARED}


@dataclass(frozen=True, slots=True)
class Classified:
    qos: QosClass
    reason: str
    invalid: tuple[tuple[str, str], ...] = ()  # keys with a value that means nothing, and the value


def classify(pod: Pod, config: Config) -> Classified:
    """Return the class of ``pod``; never fails."""
    own = pod.says(OWN_KEY)
    if own is not None:
        if own in _OWN:
            return Classified(_OWN[own], f"{OWN_KEY}={own}")
        own = own[:LONGEST]
        return Classified(QosClass.UNDECLARED, f"{OWN_KEY}={own} is unknown", ((OWN_KEY, own),))
    invalid: list[tuple[str, str]] = []
    for key, meanings in config.foreign_keys.items():
        value = pod.says(key)
        if value is None:
            continue
        if value not in meanings:
            invalid.append((key, value[:LONGEST]))
        elif meanings[value] is not QosClass.UNDECLARED:
            return Classified(meanings[value], f"{key}={value}", tuple(invalid))
    if invalid:
        key, value = invalid[0]
        return Classified(QosClass.UNDECLARED, f"{key}={value} is unknown", tuple(invalid))
    qos, reason = _by_rule(pod, config)
    return Classified(qos, reason)


def _by_rule(pod: Pod, config: Config) -> tuple[QosClass, str]:
    if pod.annotations.get(_STATIC, "api") != "api" or _MIRROR in pod.annotations:
        return QosClass.SYSTEM, "static pod"
    if pod.namespace in config.namespaces:
        return config.namespaces[pod.namespace], f"namespace {pod.namespace}"
    for number, selector in enumerate(config.selectors):
        in_namespace = not selector.namespaces or pod.namespace in selector.namespaces
        if in_namespace and selector.labels.items() <= pod.labels.items():
            return selector.qos, f"selectors[{number}]"
    return QosClass.UNDECLARED, "no class declared"


def cpu_list(pod: Pod, qos: QosClass, config: Config) -> tuple[frozenset[int] | None, tuple[tuple[str, str], ...]]:
    """Return the CPUs that an online pod wants to run on, and what it says that it may not say or that means nothing.

    A list of CPUs is the node's business, not the pod's: only namespaces of the configuration may give one. Of labels
    none is taken, which can hold no comma.
    """
    asked = pod.annotations.get(CPUS_KEY)
    if asked is None:
        return None, ()
    refused = ((CPUS_KEY, asked[:LONGEST]),)
    if not qos.is_online or pod.namespace not in config.cpu_list_namespaces or len(asked) > LONGEST:
        return None, refused  # unread: what anybody can write must not cost anything
    try:
        cpus = cpulist.parse(asked)
    except InvalidRequest:
        cpus = frozenset()
    return (cpus, ()) if cpus else (None, refused)


def numa_policy(pod: Pod, qos: QosClass, config: Config) -> tuple[NumaPolicy, tuple[tuple[str, str], ...]]:
    """Return the NUMA policy of an online pod, and what it says that means nothing."""
    asked = pod.says(NUMA_KEY)
    default = config.numa.get(qos, NumaPolicy.NONE)
    if asked is None:
        return default, ()
    try:
        return NumaPolicy(asked), ()
    except ValueError:
        return default, ((NUMA_KEY, asked[:LONGEST]),)


def numa_scope(pod: Pod) -> tuple[NumaScope, tuple[tuple[str, str], ...]]:
    """Return what the NUMA policy of a pod is about, and what it says that means nothing."""
    asked = pod.says(SCOPE_KEY)
    try:
        return NumaScope(asked or NumaScope.CONTAINER.value), ()
    except ValueError:
        return NumaScope.CONTAINER, ((SCOPE_KEY, (asked or "")[:LONGEST]),)
