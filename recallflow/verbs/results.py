"""What the verbs give: sequences of what was found, with all that the engine said beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from recallflow.fields import Cuttable, Model
from recallflow.graphs import ExploredEdge, Fact
from recallflow.records import Position
from recallflow.responses import (
    Context,
    EpisodeInfo,
    ListedMemory,
    MemoryUsage,
    RecalledEpisode,
    RecalledMemory,
    Response,
    Warn,
)

T = TypeVar("T")
SHOWN = 100  # characters of a text


@dataclass(frozen=True, slots=True)
class Added:
    """What was added: the memories' ids, and where their events stand."""

    ids: tuple[str, ...]
    positions: tuple[Position, ...]

    @property
    def id(self) -> str:
        """The id of the last memory: of the only one, where one was added."""
        return self.ids[-1]

    @property
    def position(self) -> Position:
        """Of the last event: who reads after it sees all that was added."""
        return self.positions[-1]


class Answered(Sequence[T]):
    """What was asked for, as a sequence. `response`: all that the engine answered."""

    def __init__(self, items: Sequence[T], response: Response) -> None:
        self._items = tuple(items)
        self.response = response

    @property
    def warnings(self) -> list[Warn]:
        """What whoever asks should know about the answer: each has a `code` and a `detail`."""
        return self.response.warnings

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...

    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        items = "".join(f"\n  {_line(item)}," for item in self._items)
        warned = f", warnings={[warning.code for warning in self.warnings]}" if self.warnings else ""
        return f"{type(self).__name__}([{items}" + "\n" * bool(items) + f"]{warned})"

    def __str__(self) -> str:
        lines = [_line(item) for item in self._items] or ["(nothing found)"]
        return "\n".join([*lines, *(f"warning: {warning.code}: {warning.detail}" for warning in self.warnings)])


class Found(Answered[RecalledMemory]):
    """The memories that answer a question, best first: each says how it came in (`why`, `score`, `relevance`)."""

    @property
    def context(self) -> Context | None:
        """What fits into `max_tokens`, for a prompt; None where the search names none."""
        return self.response.context

    @property
    def episodes(self) -> list[RecalledEpisode]:
        """The episodes that the memories are of, best first, in the mode `episode`."""
        return [one for one in self.response.episodes or () if isinstance(one, RecalledEpisode)]

    @property
    def answerable(self) -> float | None:
        """The probability that any memory tells what is asked for."""
        return self.response.answerable


class Page(Answered[ListedMemory]):
    """Some of a user's memories, newest first. `total`: how many there are on all pages; `after`: what the next page is
    asked for with, None where this is the last."""

    def __init__(self, response: Response) -> None:
        page = response.memory_page
        super().__init__(() if page is None else page.memories, response)
        self.total = 0 if page is None else page.total
        self.after = None if page is None else page.after


class MemoryVersion(Cuttable):
    """A memory as it was told, in one of its versions, counted from 0. Times are RFC 3339 in UTC. `usage`: what answers
    and feedback made of it, where one memory was asked for."""

    id: str
    version: int
    content: str
    summary: str | None = None
    kind: str | None = None
    layer: str | None = None
    category: str | None = None
    role: str | None = None
    name: str | None = None
    tags: list[str] = []
    topics: list[str] = []
    entities: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    session_id: str | None = None
    project_id: str | None = None
    importance: float | None = None
    confidence: float | None = None
    metadata: dict[str, Any] | None = None
    derived_from: dict[str, Any] | None = None
    created_at: str | None = None
    updated_at: str | None = None
    ingested_at: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    expires_at: str | None = None
    usage: MemoryUsage | None = None


class History(Answered[MemoryVersion]):
    """All versions of a memory, oldest first; none where there is no such memory."""

    def __init__(self, response: Response) -> None:
        super().__init__(versions_in(response), response)

    @property
    def edges(self) -> list[ExploredEdge]:
        """What the memory relates to, and what replaced it."""
        return self.response.edges or []


class Episodes(Answered[EpisodeInfo]):
    """The episodes of a user's conversations, newest first."""

    def __init__(self, response: Response) -> None:
        super().__init__([one for one in response.episodes or () if isinstance(one, EpisodeInfo)], response)


class FoundFacts(Answered[Fact]):
    """Relations, best first. `complete`: whether all that could be meant was looked at."""

    def __init__(self, response: Response) -> None:
        facts = response.graph_facts
        super().__init__(() if facts is None else facts.facts, response)
        self.complete = facts is None or facts.complete


class Stats(Model):
    """What is held of a user, and what may be: no limit is None. `expired`: how many of the memories are past their
    time; `text_bytes`, `edges`: of all projects, for who may read all of them."""

    memories: int
    by_kind: dict[str, int]
    episodes: int
    expired: int
    participants: int
    index_bytes: int
    text_bytes: int | None = None
    edges: int | None = None
    limits: dict[str, int | None]


def versions_in(response: Response) -> list[MemoryVersion]:
    """The versions that a response tells of."""
    return [MemoryVersion.model_validate(one) for one in response.versions or ()]


def _line(item: object) -> str:
    """Return an item of an answer as one line of text."""
    match item:
        case RecalledMemory():
            return f"{item.rank}. {_cut(item.content)} (score {item.score:.2f}, {item.created_at[:10]})"
        case ListedMemory():
            return f"{_cut(item.content)} ({item.id} v{item.version}, {item.created_at[:10]})"
        case MemoryVersion():
            at = item.updated_at or item.created_at or ""
            return f"{_cut(item.content)} ({item.id} v{item.version}, {at[:10]})"
        case EpisodeInfo():
            return f"{item.started_at[:16]} session {item.session_id}, {item.messages} memories: {_cut(item.summary)}"
        case Fact():
            return f"{item.source_name} {item.type} {item.target_name}"
    return repr(item)


def _cut(text: str) -> str:
    """Return the beginning of a text in one line, without characters that move a terminal's cursor."""
    shown = "".join(one if one.isprintable() else " " for one in text[: 2 * SHOWN])
    words = " ".join(shown.split())
    return words if len(words) <= SHOWN and len(text) <= 2 * SHOWN else f"{words[: SHOWN - 1]}…"
