"""What happens to an event, from its bytes to its effects or its answer."""
