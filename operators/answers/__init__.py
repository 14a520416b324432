"""Queries: their answers from applied records, in fair order, within the limits of their topics."""
