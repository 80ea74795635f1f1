"""The channel between the drivers of a super-node: a few verbs, JSON in and out (docs/decisions/0013)."""
