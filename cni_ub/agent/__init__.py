"""The node agent: one warm engine behind a root-only socket."""
