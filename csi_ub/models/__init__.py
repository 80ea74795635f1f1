"""Model volumes: versions that come whole, switch under running pods in one step, and can be taken back."""
