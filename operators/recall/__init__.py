"""Recall: ranks an owner's memories for a query and composes the response."""
