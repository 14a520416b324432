"""Pages of a user's memories, as `memories.list` gives them."""

from recallflow.errors import UsageError
from recallflow.responses import ListedMemory, Response

PAGE = 1_000


def listed_whole(response: Response) -> list[ListedMemory]:
    """The memories of a page. Raises UsageError where one was cut to fit the response topic: it would not come back as
    it went in."""
    memories = [] if response.memory_page is None else response.memory_page.memories
    if cut := [memory.id for memory in memories if memory.truncated]:
        raise UsageError(f"{cut[0]} is larger than its response topic takes: raise its max.message.bytes")
    return memories


def end_of(response: Response) -> str | None:
    """Where a page ends, for the next one; None where it is the last."""
    return None if response.memory_page is None else response.memory_page.after
