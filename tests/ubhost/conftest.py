"""The simulated super-node for the tests that look at a live host."""

from ubsim.pytest_plugin import pytest_configure, supernode, ub_node

__all__ = ["pytest_configure", "supernode", "ub_node"]
