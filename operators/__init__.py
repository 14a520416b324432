"""Operators: the processing of an event, from its bytes to its effects or its answer."""
