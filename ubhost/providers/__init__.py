"""Ways to command a UB host: the simulator, the ubcore kernel driver, ordinary RDMA."""
