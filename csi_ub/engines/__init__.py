"""How the bytes of a volume reach a node: one module for each engine, behind one interface (``base.Engine``)."""
