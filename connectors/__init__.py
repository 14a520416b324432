"""The outside world: sources and sinks, log files, embedding models."""
