"""The CSI driver: volumes that every node of a super-node shares."""

DRIVER = "csi-ub.unifiedbus.com"
VERSION = "0.1.0"
