"""Adapters to frameworks for agents. Each needs the extra of its name."""
