"""UBSE, the daemon that manages a UB super-node: its wire protocol, both sides, and a client.

``wire`` has headers, operations and primitives, ``bodies`` and ``memory`` what each operation says, ``serial`` and
``ubsectl`` the same for what ``ubsectl`` asks, ``status`` the meaning of
failures (all pure); ``client`` talks to ``<root>/run/ubse/ubse.sock``.
"""
