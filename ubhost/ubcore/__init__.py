"""Commands to the ubcore kernel driver: generic netlink family ``UBCORE_GENL`` version 1.

``message`` is the codec (pure, both directions), ``transport`` carries messages to the kernel or to the simulator,
``client`` has one method a command.
"""
