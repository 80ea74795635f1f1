"""Ordinary RDMA devices: what sysfs tells of them (``sysfs``), and RDMA netlink (``netlink``)."""
