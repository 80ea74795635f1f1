"""What a volume costs: calls of the driver, and bytes through an engine."""
