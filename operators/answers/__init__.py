"""Queries: answered from what is applied, each in its turn, within what its topic takes."""
