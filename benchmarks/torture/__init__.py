"""Hurt the engine in every known way, and judge it from outside by what docs/events.md and docs/operations.md promise."""
