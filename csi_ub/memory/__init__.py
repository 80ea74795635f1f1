"""Shared UB memory as volumes: how much of it, what pods see of it, and who must let them open it."""
