"""The CSI driver: volumes that every node of a super-node shares."""
