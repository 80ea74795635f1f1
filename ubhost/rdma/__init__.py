"""Ordinary RDMA devices: values (``model``), what sysfs tells of them (``sysfs``), and RDMA netlink (``netlink``)."""
