"""ttrpc, the wire protocol under NRI, without sockets."""
