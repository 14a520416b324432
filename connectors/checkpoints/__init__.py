"""Checkpoints of state partitions in an object store: only what it lacks travels, and a generation is whole or not
there."""
