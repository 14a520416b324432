"""Pages of a user's memories."""

from recallflow.errors import UsageError
from recallflow.verbs.results import Page

PAGE = 1_000


def listed_whole(page: Page) -> Page:
    """The page itself. Raises UsageError where a memory was cut to fit the response topic: it would not come back as it
    went in."""
    if cut := [memory.id for memory in page if memory.truncated]:
        raise UsageError(f"{cut[0]} is larger than its response topic takes: raise its max.message.bytes")
    return page
