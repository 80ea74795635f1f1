import pytest

from nri_qos.classes import classify, cpu_list, numa_policy
from nri_qos.config import FOREIGN_KEYS, Config, Selector
from nri_qos.model import CPUS_KEY, NUMA_KEY, OWN_KEY, NumaPolicy, Pod, QosClass


def pod(namespace: str = "shop", labels: dict[str, str] | None = None, **annotations: str) -> Pod:
    return Pod("id", "web", "uid", namespace, labels or {}, {k.replace("__", "/"): v for k, v in annotations.items()})


def annotated(key: str, value: str, **more: str) -> Pod:
    return Pod("id", "web", "uid", "shop", {}, {key: value, **more})


@pytest.mark.parametrize("value", ["HLS", "LS", "BE", "system"])
def test_our_key_declares_the_class_as_annotation_and_as_label(value: str) -> None:
    for declared in (annotated(OWN_KEY, value), pod(labels={OWN_KEY: value})):
        assert classify(declared, Config()).qos is QosClass(value)


def test_an_annotation_goes_before_a_label() -> None:
    both = Pod("id", labels={OWN_KEY: "BE"}, annotations={OWN_KEY: "LS"})
    assert classify(both, Config()).qos is QosClass.LS


@pytest.mark.parametrize(
    ("key", "value", "qos"), [(k, v, qos) for k, meanings in FOREIGN_KEYS.items() for v, qos in meanings.items()]
)
def test_foreign_keys_are_understood(key: str, value: str, qos: QosClass) -> None:
    assert classify(annotated(key, value), Config()).qos is qos


def test_our_key_wins_over_foreign_ones_even_when_it_is_a_typo() -> None:
    got = classify(annotated(OWN_KEY, "hls", **{"koordinator.sh/qosClass": "BE"}), Config())
    assert (got.qos, got.invalid) == (QosClass.UNDECLARED, ((OWN_KEY, "hls"),))


def test_a_foreign_typo_is_told_and_the_next_key_counts() -> None:
    got = classify(annotated("volcano.sh/qos-level", "XX", **{"koordinator.sh/qosClass": "BE"}), Config())
    assert (got.qos, got.invalid) == (QosClass.BE, (("volcano.sh/qos-level", "XX"),))


def test_a_typo_never_makes_a_pod_what_a_rule_would() -> None:
    config = Config(namespaces={"shop": QosClass.BE})
    assert classify(annotated("koordinator.sh/qosClass", "LSX"), config).qos is QosClass.UNDECLARED


def test_the_table_of_foreign_keys_is_the_users() -> None:
    config = Config(foreign_keys={"example.com/tier": {"gold": QosClass.HLS}})
    assert classify(annotated("example.com/tier", "gold"), config).qos is QosClass.HLS
    assert classify(annotated("koordinator.sh/qosClass", "BE"), config).qos is QosClass.UNDECLARED


def test_static_pods_are_the_nodes_own_whatever_their_namespace() -> None:
    config = Config(namespaces={"shop": QosClass.BE})
    for key, value in (("kubernetes.io/config.source", "file"), ("kubernetes.io/config.mirror", "abc")):
        assert classify(annotated(key, value), config).qos is QosClass.SYSTEM
    assert classify(annotated("kubernetes.io/config.source", "api"), config).qos is QosClass.BE


def test_kube_system_is_system_unless_a_pod_declares_itself() -> None:
    assert classify(pod("kube-system"), Config()).qos is QosClass.SYSTEM
    assert classify(Pod("i", namespace="kube-system", labels={OWN_KEY: "BE"}), Config()).qos is QosClass.BE


def test_selectors_need_all_their_labels_and_one_of_their_namespaces() -> None:
    config = Config(selectors=[Selector(QosClass.BE, {"tier": "batch", "team": "a"}, ["shop", "lab"])])
    assert classify(pod("lab", {"tier": "batch", "team": "a", "x": "y"}), config).qos is QosClass.BE
    assert classify(pod("lab", {"tier": "batch"}), config).qos is QosClass.UNDECLARED
    assert classify(pod("prod", {"tier": "batch", "team": "a"}), config).qos is QosClass.UNDECLARED


def test_the_numa_policy_is_declared_or_the_class_default() -> None:
    assert numa_policy(pod(), QosClass.HLS, Config()) == (NumaPolicy.BEST_EFFORT, ())
    assert numa_policy(pod(), QosClass.LS, Config()) == (NumaPolicy.NONE, ())
    assert numa_policy(annotated(NUMA_KEY, "restricted"), QosClass.LS, Config()) == (NumaPolicy.RESTRICTED, ())
    assert numa_policy(annotated(NUMA_KEY, "0-3"), QosClass.LS, Config()) == (NumaPolicy.NONE, ((NUMA_KEY, "0-3"),))


@pytest.mark.parametrize(
    ("namespace", "qos", "value", "expected"),
    [
        ("lab", QosClass.LS, "2-3,6", {2, 3, 6}),
        ("lab", QosClass.BE, "2-3", None),
        ("lab", QosClass.UNDECLARED, "2-3", None),
        ("lab", QosClass.LS, "two", None),
        ("lab", QosClass.LS, "", None),
        ("shop", QosClass.HLS, "2-3", None),
    ],
)
def test_only_online_pods_of_listed_namespaces_may_name_cpus(
    namespace: str, qos: QosClass, value: str, expected: set[int] | None
) -> None:
    """(C17)"""
    asking = Pod("id", namespace=namespace, annotations={CPUS_KEY: value})
    cpus, refused = cpu_list(asking, qos, Config(cpu_list_namespaces=["lab"]))
    assert cpus == expected
    assert refused == (() if expected else ((CPUS_KEY, value),))


def test_a_list_of_cpus_that_is_endless_costs_nothing() -> None:
    """An annotation can have 256 KiB, and handlers have no time."""
    endless = Pod("id", namespace="lab", annotations={CPUS_KEY: "0-65535," * 30_000 + "1"})
    for allowed in ([], ["lab"]):
        cpus, refused = cpu_list(endless, QosClass.LS, Config(cpu_list_namespaces=allowed))
        assert (cpus, [key for key, _ in refused]) == (None, [CPUS_KEY])
