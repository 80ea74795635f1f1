"""The CNI plugin: a fast shim, one engine, and the node agent that keeps the engine warm."""
