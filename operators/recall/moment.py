"""Moments: the point in time that a query is about, and the owner's index as of that time.

The index as of an ingestion time is built from the versions stored by then, with the code of the present index. Word
statistics, centroids and neighbours are therefore as of that time. The same holds for an event time if a memory was
edited later: an update has its own event time, and the answer shows the version before it. Episodes are joined again in
log order, because later messages may have extended or merged them. Deleted memories are in no past index."""

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple, Self, TypeVar

from recallflow.operators.episodes import end, join, opened_episode
from recallflow.operators.events import Ask
from recallflow.owner import Owner
from recallflow.queries import EpisodesList, GraphExplore, GraphFacts, GraphTrace, MemoriesList, Recall, UserStats
from recallflow.state import keys
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner, with_changes
from recallflow.state.index import OwnerIndex
from recallflow.state.past_graph import PastGraph, VersionGraph
from recallflow.state.rows import Entry, EpisodeLogEntry, EpisodeRow, Vectors
from recallflow.state.scoped import ScopedGraph, ScopedIndex, ScopedVersionGraph

AT_ONCE = 1_000  # records per step: some 10 ms
SCOPES_KEPT = 2  # indexes of project subsets per owner

# Queries that may be about a past moment.
OfMoment = Recall | MemoriesList | GraphTrace | GraphExplore | GraphFacts
OfIndex = OfMoment | EpisodesList | UserStats  # queries that an index answers

T = TypeVar("T")
Steps = Generator[None, None, T]
Records = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Moment:
    """The point in time that a query is about. All times are in epoch milliseconds."""

    now_ms: int  # the time for ages and validity
    happened_by_ms: int | None = None  # latest event time in the answer; None without a bound
    known_by_ms: int | None = None  # latest ingestion time in the answer; None without a bound
    history: bool = False  # whether replaced, superseded and expired memories are included
    projects: tuple[str, ...] | None = None  # the readable projects; None for all

    @classmethod
    def of(cls, query: OfMoment, asked_ms: int, projects: tuple[str, ...] | None) -> Self:
        """Return the moment of a query. If it has both times, the event time decides validity. `projects` are those
        that the sender may read."""
        history = isinstance(query, Recall) and query.include_history
        if query.as_of is None:
            return cls(asked_ms, history=history, projects=projects)
        event_ms, ingestion_ms = query.as_of.event_time, query.as_of.ingestion_time
        now_ms = next(at for at in (event_ms, ingestion_ms, asked_ms) if at is not None)
        return cls(now_ms, event_ms, ingestion_ms, history, projects)

    @classmethod
    def of_ask(cls, ask: Ask) -> Self | None:
        """Return the moment of a query, or None if no index answers it."""
        if isinstance(ask.query, OfMoment):
            return cls.of(ask.query, ask.asked_ms, ask.projects)
        is_of_index = isinstance(ask.query, OfIndex) or (
            ask.projects is not None and ask.query.type == "memory.history"
        )
        return cls(ask.asked_ms, projects=ask.projects) if is_of_index else None

    @property
    def is_now(self) -> bool:
        """Return whether the moment is the present, so that usage and feedback apply."""
        return self.happened_by_ms is None and self.is_of_present

    @property
    def is_of_present(self) -> bool:
        """Return whether the moment has the present knowledge."""
        return self.known_by_ms is None and not self.history

    def saw(self, updated_ms: int) -> bool:
        return self.happened_by_ms is None or updated_ms <= self.happened_by_ms

    def is_within(self, project_id: str | None) -> bool:
        return self.projects is None or project_id in self.projects

    def knows(self, ingested_ms: int) -> bool:
        return self.known_by_ms is None or ingested_ms <= self.known_by_ms


def present_index(hot: HotOwner, moment: Moment, model: str, dimension: int) -> OwnerIndex | None:
    """Return the owner's present index if it serves the moment, else None. It does not if a memory of the moment was
    edited later, or if the index of the projects has not been built."""
    if not moment.is_of_present:
        return None
    if moment.projects is None:
        index = hot.search_index(model, dimension)
    elif (scoped := hot.scoped.get(moment.projects)) is not None:
        hot.scoped.move_to_end(moment.projects)
        index = scoped.index
    else:
        return None
    if moment.happened_by_ms is None:
        return index
    facts = index.conversation.facts
    edited = (facts["created_ms"] <= moment.happened_by_ms) & (facts["edited_ms"] > moment.happened_by_ms)
    return None if edited.any() else index


def index_at(hot: HotOwner, moment: Moment, model: str, dimension: int, gap_ms: int) -> OwnerIndex:
    """Return the owner's index as of the moment: the present one, one built in steps before, or a new one."""
    if (index := present_index(hot, moment, model, dimension)) is not None:
        return index
    if hot.past is not None and hot.past[0] == moment:
        return hot.past[1]
    steps = build(hot, moment, model, dimension, gap_ms)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            built: OwnerIndex = ended.value
            keep(hot, moment, built, gap_ms)
            return built


def keep(hot: HotOwner, moment: Moment, index: OwnerIndex, gap_ms: int) -> None:
    """Cache the index of a project subset if it is of the present. Events keep it up to date."""
    if moment.projects is not None and moment.is_now:
        hot.scoped[moment.projects] = ScopedIndex(index, gap_ms)
        while len(hot.scoped) > SCOPES_KEPT:
            hot.scoped.popitem(last=False)


def graph_at(hot: HotOwner, index: OwnerIndex, moment: Moment) -> OwnerGraph:
    if moment.projects is None and moment.known_by_ms is None and moment.happened_by_ms is None:
        return hot.graph
    kind = PastGraph if moment.projects is None else ScopedGraph
    return kind(hot.partition, hot.key, index, moment.known_by_ms, moment.happened_by_ms)


def newest(index: OwnerIndex, moment: Moment) -> list[int]:
    """Return `seq` of the memories that had happened by the moment, the newest first."""
    facts = index.conversation.facts
    seqs = facts["seq"] if moment.happened_by_ms is None else facts["seq"][facts["created_ms"] <= moment.happened_by_ms]
    return sorted({*seqs.tolist()}, reverse=True)


def filtered_graph(hot: HotOwner, index: OwnerIndex, moment: Moment) -> OwnerGraph:
    """Return the graph for filters. With history it has the links of each version."""
    if not moment.history:
        return graph_at(hot, index, moment)
    kind = VersionGraph if moment.projects is None else ScopedVersionGraph
    return kind(hot.partition, hot.key, index, moment.known_by_ms, moment.happened_by_ms)


def build(hot: HotOwner, moment: Moment, model: str, dimension: int, gap_ms: int) -> Steps[OwnerIndex]:
    """Build the index of a past moment in steps of about a thousand records. It reads the state committed before the
    first step."""
    tables = {
        table: _opened(hot.scan(table))
        for table in (keys.ENTRY, keys.PAST_ENTRY, keys.VECTORS, keys.PAST_VECTORS, keys.EPISODE, keys.EPISODE_LOG)
    }
    yield
    with paused_collection:
        return (yield from _built(hot.owner, tables, moment, model, dimension, gap_ms))


def _built(
    owner: Owner, tables: Mapping[bytes, Records], moment: Moment, model: str, dimension: int, gap_ms: int
) -> Steps[OwnerIndex]:
    """Build the index from records. This is a separate function so that its records are freed before cyclic garbage
    collection resumes, which would traverse 100,000 entries at once."""
    known = yield from _known(tables, moment)
    episodes, episode_of = yield from _episodes(owner, tables, moment, known.versions, gap_ms)
    index = OwnerIndex(model, dimension)
    index.projects = moment.projects
    for part in _parts(sorted(episodes, key=attrgetter("number"))):
        for episode in part:
            index.put_episode(episode)
        yield
    past = yield from _read(
        tables[keys.PAST_VECTORS], lambda key, value: (keys.seq_and_version(key), Vectors.decode(value))
    )
    vectors: dict[tuple[int, int], Vectors | None] = dict(past)
    for some in _parts(known.versions) if moment.history else ():
        others = [entry for entry in some if known.latest[entry.seq] is not entry and moment.saw(entry.updated_ms)]
        index.append_versions([entry._replace(episode=episode_of[entry.seq]) for entry in others], vectors)
        yield
    left = [*known.latest.values()]
    known.latest.clear()
    yield from _free(known.versions)
    current = _InOrder(tables[keys.VECTORS])
    while left:
        some = [entry._replace(episode=episode_of[entry.seq]) for entry in left[:AT_ONCE]]
        del left[:AT_ONCE]
        of_current = yield from _read(
            current.up_to(some[-1].seq),
            lambda key, value: ((seq := keys.sequence(key), known.current[seq]), Vectors.decode(value)),
        )
        wanted = [(entry.seq, entry.version) for entry in some]
        index.add(some, {one: vectors[one] for one in wanted if one in vectors} | dict(of_current))
        yield
    return index


class _Known(NamedTuple):
    """The versions known at a moment."""

    versions: list[Entry]  # in the order of `seq`
    latest: dict[int, Entry]  # each memory's version as of the moment
    current: dict[int, int]  # each memory's present version number


def _known(tables: Mapping[bytes, Records], moment: Moment) -> Steps[_Known]:
    now = yield from _read(tables[keys.ENTRY], lambda _, value: Entry.decode(value))
    past = yield from _read(tables[keys.PAST_ENTRY], lambda _, value: Entry.decode(value))
    found, seen = _Known([], {}, {}), dict[int, Entry]()
    for some in _parts(merge(past, now, key=attrgetter("seq"))):  # each memory's past versions come first
        known = [one for one in some if moment.knows(one.ingested_ms) and moment.is_within(one.project_id)]
        found.versions.extend(known)
        found.latest.update((entry.seq, entry) for entry in known)
        found.current.update((entry.seq, entry.version) for entry in some)
        seen.update((entry.seq, entry) for entry in known if moment.saw(entry.updated_ms))
        yield
    # Memories that had not happened by then stay in the index, and filters exclude them, as in the present index.
    found.latest.update(seen)
    yield from _free(past, now)
    return found


class _InOrder:
    """A reader of records in the order of `seq`, each once, without holding all of them."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._next = next(records, None)

    def up_to(self, seq: int) -> Records:
        while self._next is not None and keys.sequence(self._next[0]) <= seq:
            yield self._next
            self._next = next(self._records, None)


def _free(*lists: list[Any]) -> Steps[None]:
    """Empty lists in steps, because freeing many objects takes as long as reading them."""
    for one in lists:
        while one:
            del one[-AT_ONCE:]
            yield


def _opened(records: Records) -> Records:
    """Return the records of the present snapshot. Later commits do not change them."""
    return chain([*islice(records, 1)], records)


def _read(records: Records, decode: Callable[[bytes, bytes], T]) -> Steps[list[T]]:
    found: list[T] = []
    while some := [decode(key, value) for key, value in islice(records, AT_ONCE)]:
        found += some
        yield
    return found


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while some := [*islice(left, AT_ONCE)]:
        yield some


def _episodes(
    owner: Owner, tables: Mapping[bytes, Records], moment: Moment, versions: list[Entry], gap_ms: int
) -> Steps[tuple[list[EpisodeRow], dict[int, int]]]:
    """Return all episodes of the moment, and each memory's episode number. Stored episodes are used unless the moment
    has an earlier ingestion time or a project subset. In that case messages are joined again in log order."""
    episode_of = {entry.seq: entry.episode for entry in versions}
    if moment.known_by_ms is None and moment.projects is None:
        return (yield from _read(tables[keys.EPISODE], lambda _, value: EpisodeRow.decode(value))), episode_of
    marks: list[EpisodeLogEntry] = []
    standing: dict[str | None, list[EpisodeRow]] = {}
    episodes: dict[int, EpisodeRow] = {}
    for some in _parts(versions):
        openers = (entry for entry in some if entry.version == 0 and entry.episode >= 0)
        marks += [EpisodeLogEntry.of_member(e, opened_episode(owner, e)) for e in openers]
        yield
    stored = yield from _read(tables[keys.EPISODE_LOG], lambda _, value: EpisodeLogEntry.decode(value))
    # An end applies always, and a deleted member if its project is readable.
    known = (one for one in stored if moment.knows(one.ingested_ms))
    marks += [one for one in known if one.opened is None or moment.is_within(one.project_id)]
    marks.sort(key=attrgetter("change"))
    for number, mark in enumerate(marks):
        if number % AT_ONCE == 0:
            yield
        session = standing.setdefault(mark.session_id, [])
        changed: list[EpisodeRow] = []
        if mark.opened is not None:
            found = join(session, mark.opened, gap_ms)
            changed = found.changed
            episode_of[mark.opened.number] = found.episode.number
        elif mark.ended_ms is not None and (ended := end(session, mark.ended_ms, gap_ms)) is not None:
            changed = [ended]
        if changed:
            standing[mark.session_id] = with_changes(session, changed)
            episodes.update((episode.number, episode) for episode in changed)
    yield from _free(marks)
    return list(episodes.values()), episode_of


class PausedCollection:
    """Suspends Python's cyclic garbage collection within any `with` block, in any thread. Reference counting still
    frees objects without cycles. A full collection runs whenever the number of objects has grown by a quarter. With
    100,000 entries it blocked a worker for up to 400 ms, between steps of 30 ms."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._within = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0 and self._was_on:
                gc.enable()


paused_collection = PausedCollection()
