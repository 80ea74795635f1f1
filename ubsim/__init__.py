"""A simulated super-node: from a scenario file to trees, daemons and real netdevs."""
