"""Which rates a configuration asks for."""

import pytest

from cni_ub.protocol import Shape, read_conf


@pytest.mark.parametrize("prefix", ["ingress", "Ingress"])
def test_a_rate_counts_however_its_key_begins(prefix: str) -> None:
    """containerd writes IngressRate where the conventions say ingressRate."""
    bandwidth = {f"{prefix}Rate": 8_000_000, f"{prefix}Burst": 2**32 - 1}
    conf = read_conf({"cniVersion": "1.0.0", "name": "n", "runtimeConfig": {"bandwidth": bandwidth}})
    assert conf.qos.shape == Shape(8_000_000, 2**32 - 1, 0, 0)
