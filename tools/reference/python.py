"""What Python imports; mkdocstrings makes the text out of the docstrings."""

from tools.reference import markdown

CLASSES = ("recallflow.client.RecallClient", "recallflow.client.AsyncRecallClient")


def page() -> str:
    """The page on the classes that people call."""
    told = "The events and queries that `send` and `ask` take are in [events](events.md) and [queries](queries.md)."
    return markdown.page("Python", told, *(f"## {name.rpartition('.')[2]}\n\n::: {name}" for name in CLASSES))
