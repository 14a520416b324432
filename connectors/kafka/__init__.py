"""Kafka: the source that puts queries first, and the sink that delivers each output once."""
