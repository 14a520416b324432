"""The memory graph: writes for each memory event, and traversal for queries."""
