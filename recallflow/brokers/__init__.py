"""Kafka access of engine and client: options, errors, and exchange of records."""
