"""Connections to external systems: Kafka, HTTP, MCP, log files, models and object stores."""
