"""A simulated super-node for tests that look at a live host; a driver and a UBSE, played, for those of the provider."""

from tests.ubhost.ubcore_driver import driver, home, netns, provider, roots
from tests.ubhost.ubse_server import ubse
from ubsim.pytest_plugin import pytest_configure, supernode, ub_node

__all__ = ["driver", "home", "netns", "provider", "pytest_configure", "roots", "supernode", "ub_node", "ubse"]
