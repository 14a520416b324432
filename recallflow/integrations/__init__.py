"""Adapters to agent frameworks. Each needs the extra of its name."""
