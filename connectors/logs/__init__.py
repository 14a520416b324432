"""Importers of other programs' conversation logs as memory events."""
