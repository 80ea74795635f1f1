"""UBSE, the daemon that manages a UB super-node: its wire protocol, both sides, and a client.

``wire`` has headers, operations and primitives, ``bodies`` what each operation says, ``status`` the meaning of
failures (all pure); ``client`` talks to ``<root>/run/ubse/ubse.sock``.
"""
