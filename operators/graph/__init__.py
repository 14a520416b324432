"""The memory graph: writing it with each memory event, and following its edges for a query."""
