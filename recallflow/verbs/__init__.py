"""Calls of the Python API: the same for an engine in the process and for one on Kafka."""
