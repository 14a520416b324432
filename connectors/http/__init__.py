"""The gateway: HTTP in, records and responses out."""
