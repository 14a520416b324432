"""Hurt the engine in every known way, and judge it from outside by what the docs of events and operations promise."""
