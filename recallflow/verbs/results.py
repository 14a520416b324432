"""Results of the API's calls, and their futures."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from recallflow import responses
from recallflow.fields import Model
from recallflow.graphs import ExploredEdge, Fact
from recallflow.records import Position
from recallflow.responses import EpisodeInfo, ListedMemory, MemoryVersion, RecalledEpisode, RecalledMemory, Response

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")
MAX_CHARS = 100  # longest text of a memory in `str` and `repr`


def new_future() -> "Future[Any]":
    """Return a future that cannot be cancelled: a call continues after the asyncio task that awaits it is cancelled."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def chain_future(future: "Future[S]", convert: Callable[["Future[S]"], R]) -> "Future[R]":
    """Return a future with the result of `convert(future)`, which is called once `future` is done."""
    chained: Future[R] = new_future()
    future.add_done_callback(lambda done: _settle(chained, lambda: convert(done)))
    return chained


def map_future(future: "Future[S]", convert: Callable[[S], R]) -> "Future[R]":
    """Return a future with the converted result, or with the error of `future`."""
    return chain_future(future, lambda done: convert(done.result()))


def _settle(future: "Future[R]", compute: Callable[[], R]) -> None:
    try:
        future.set_result(compute())
    except BaseException as error:  # noqa: BLE001 - raised by `result()`
        future.set_exception(error)


def gather(futures: Sequence["Future[S]"]) -> "Future[list[S]]":
    """Return a future with all results in order, set once all are done; if any failed, with the error of the first."""
    gathered: Future[list[S]] = new_future()
    pending, lock = len(futures), threading.Lock()

    def count(_: object) -> None:
        nonlocal pending
        with lock:
            pending -= 1
            is_last = pending == 0
        if is_last:
            _settle(gathered, lambda: [future.result() for future in futures])

    for future in futures:
        future.add_done_callback(count)
    return gathered


@dataclass(frozen=True, slots=True)
class Added:
    """Result of an addition: memory ids and positions of events."""

    ids: tuple[str, ...]
    positions: tuple[Position, ...]

    @property
    def id(self) -> str:
        """Return the id of the last memory."""
        return self.ids[-1]

    @property
    def position(self) -> Position:
        """Return the position of the last event. A query that waits for it sees all added memories."""
        return self.positions[-1]


class ResultList(Sequence[T]):
    """Results as a sequence. `response` is the complete response of the engine."""

    def __init__(self, items: Sequence[T], response: Response) -> None:
        self._items = tuple(items)
        self.response = response

    @property
    def warnings(self) -> list[responses.Warn]:
        """Return the warnings of the answer, each with a `code` and a `detail`."""
        return self.response.warnings

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        items = "".join(f"\n  {_line(item)}," for item in self._items)
        warned = f", warnings={[warning.code for warning in self.warnings]}" if self.warnings else ""
        return f"{type(self).__name__}([{items}" + "\n" * bool(items) + f"]{warned})"

    def __str__(self) -> str:
        lines = [_line(item) for item in self._items] or ["(nothing found)"]
        return "\n".join([*lines, *(f"warning: {warning.code}: {warning.detail}" for warning in self.warnings)])


class SearchResults(ResultList[RecalledMemory]):
    """Memories that answer a question, best first, with reasons (`why`, `score`, `relevance`)."""

    @property
    def context(self) -> responses.Context | None:
        """Return the prompt context within `max_tokens`; None without that argument."""
        return self.response.context

    @property
    def episodes(self) -> list[RecalledEpisode]:
        """Return the episodes of the memories, best first; empty unless the query has the mode `episode`."""
        return [one for one in self.response.episodes or () if isinstance(one, RecalledEpisode)]

    @property
    def answerable(self) -> float | None:
        """Return the probability that the memories contain the answer."""
        return self.response.answerable


class Page(ResultList[ListedMemory]):
    """A page of a user's memories, newest first. `total` counts all pages; `after` is the next cursor, or None."""

    def __init__(self, response: Response) -> None:
        page = response.memory_page
        super().__init__(() if page is None else page.memories, response)
        self.total = 0 if page is None else page.total
        self.after = None if page is None else page.after


class History(ResultList[MemoryVersion]):
    """All versions of a memory, oldest first; empty for an unknown memory."""

    def __init__(self, response: Response) -> None:
        super().__init__([MemoryVersion.model_validate(one) for one in response.versions or ()], response)

    @property
    def edges(self) -> list[ExploredEdge]:
        """Return the memory's edges, including those to memories that replaced it."""
        return self.response.edges or []


class Episodes(ResultList[EpisodeInfo]):
    """Episodes of a user's conversations, newest first."""

    def __init__(self, response: Response) -> None:
        super().__init__([one for one in response.episodes or () if isinstance(one, EpisodeInfo)], response)


class FoundFacts(ResultList[Fact]):
    """Relations, best first. `complete` is False if only a part of a large neighbourhood was searched."""

    def __init__(self, response: Response) -> None:
        facts = response.graph_facts
        super().__init__(() if facts is None else facts.facts, response)
        self.complete = facts is None or facts.complete


class Stats(Model):
    """Size of a user's data, and the limits (None: unlimited). `expired` is the number of expired memories;
    `text_bytes` and `edges` are None unless the caller may read all projects."""

    memories: int
    by_kind: dict[str, int]
    episodes: int
    expired: int
    participants: int
    index_bytes: int
    text_bytes: int | None = None
    edges: int | None = None
    limits: dict[str, int | None]


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
    """Return the beginning of a text in one line, without terminal control characters."""
    printable = "".join(one if one.isprintable() else " " for one in text[: 2 * MAX_CHARS])
    line = " ".join(printable.split())
    return line if len(line) <= MAX_CHARS and len(text) <= 2 * MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"
