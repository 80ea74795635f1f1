"""The NRI plugin: QoS classes and NUMA placement of containers."""
