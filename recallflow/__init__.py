"""recallflow: an event-driven memory engine for chat platforms on Kafka."""
