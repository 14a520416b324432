"""Dataflow recipes: input → operators → output, and the settings they are built with."""
