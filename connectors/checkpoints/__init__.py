"""Checkpoints of state partitions in an object store. Saves are incremental, and a generation is complete or absent."""
