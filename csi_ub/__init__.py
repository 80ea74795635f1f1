"""The CSI driver: volumes that every node of a super-node shares."""

from ubhost.version import version

DRIVER = "csi-ub.unifiedbus.com"
VERSION = version()
