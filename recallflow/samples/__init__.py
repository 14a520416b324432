"""Sample conversations, and questions about them, for `recallflow demo`.

`conversations.jsonl` holds memory events in time order: a person with her assistant (`maya`), a group chat
(`team-atlas`) and two friends (`theo`), all of tenant `demo`. `questions.jsonl` holds recall queries with two more
fields: `_note` explains the query, `_expect` lists the ids of the memories that would answer it."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from recallflow.events import MemoryEvent
from recallflow.parsing import parse


class SampleQuestion(NamedTuple):
    """A query, its explanation, and the ids of relevant memories: at least one should be among the first three."""

    note: str
    expect: tuple[str, ...]
    query: dict[str, Any]


def sample_path(name: str) -> Path:
    """Return the path of a bundled file (`conversations.jsonl`, `questions.jsonl`)."""
    return Path(__file__).parent / name


def sample_events() -> list[MemoryEvent]:
    """Return the sample conversations in time order."""
    return [cast(MemoryEvent, parse(line)) for line in sample_path("conversations.jsonl").read_bytes().splitlines()]


def sample_questions() -> list[SampleQuestion]:
    """Return the sample questions in the order of the demo."""
    lines = sample_path("questions.jsonl").read_bytes().splitlines()
    return [SampleQuestion(q.pop("_note"), tuple(q.pop("_expect")), q) for q in map(orjson.loads, lines)]
