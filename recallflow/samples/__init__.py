"""Sample conversations, and questions about them, for `recallflow demo`.

`conversations.jsonl` holds memory events in time order: a person with her assistant (`maya`), a group chat
(`team-atlas`) and two friends (`theo`), all of tenant `demo`. `questions.jsonl` holds recall queries, each with two
fields of its own: `_note` says what it shows, `_expect` names the memories that would answer it.
"""

from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from recallflow.events import MemoryEvent
from recallflow.parsing import parse


class SampleQuestion(NamedTuple):
    """A recall query as it is sent, with what it shows and the memory ids of which one should be in the first three;
    none where nothing that was said answers it."""

    note: str
    expect: tuple[str, ...]
    query: dict[str, Any]


def sample_path(name: str) -> Path:
    """The path of a bundled file (`conversations.jsonl`, `questions.jsonl`)."""
    return Path(__file__).parent / name


def sample_events() -> list[MemoryEvent]:
    """The sample conversations, in the order of their times."""
    return [cast(MemoryEvent, parse(line)) for line in sample_path("conversations.jsonl").read_bytes().splitlines()]


def sample_questions() -> list[SampleQuestion]:
    """The sample questions, in the order in which the demo asks them."""
    lines = sample_path("questions.jsonl").read_bytes().splitlines()
    return [SampleQuestion(q.pop("_note"), tuple(q.pop("_expect")), q) for q in map(orjson.loads, lines)]
