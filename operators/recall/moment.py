"""Moments: the point in time that a query is about, and the owner's index as of that time.

The index as of an ingestion time is built from the versions stored by then, with the code of the present index. Word
statistics, centroids and neighbours are therefore as of that time. The same holds for an event time if a memory was
edited later: an update has its own event time, and the answer shows the version before it. Episodes are joined again in
log order, because later messages may have extended or merged them. Deleted memories are in no past index."""

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from operator import attrgetter
from threading import Lock
from typing import Any, Self, TypeVar

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
from recallflow.stepped import spend

AT_ONCE = 1_000  # records per step of building a past index: some 10 ms
SCOPED_INDEXES_MAX = 2  # indexes of project subsets per owner
# Queries that may be about a past moment.
MomentQuery = Recall | MemoriesList | GraphTrace | GraphExplore | GraphFacts
IndexQuery = MomentQuery | EpisodesList | UserStats  # queries that an index answers
T = TypeVar("T")
Snapshot = Mapping[bytes, Iterator[tuple[bytes, bytes]]]  # records of an owner by table, in key order


@dataclass(frozen=True, slots=True)
class Moment:
    """The point in time that a query is about. All times are in epoch milliseconds."""

    now_ms: int  # the time for ages and validity
    happened_by_ms: int | None = None  # latest event time in the answer; None without a bound
    known_by_ms: int | None = None  # latest ingestion time in the answer; None without a bound
    history: bool = False  # whether replaced, superseded and expired memories are included
    projects: tuple[str, ...] | None = None  # the readable projects; None for all

    @classmethod
    def of(cls, query: MomentQuery, asked_ms: int, projects: tuple[str, ...] | None) -> Self:
        """Return the moment of a query. If `as_of` has both times, its event time decides validity. `projects` are
        those that the sender may read."""
        history = isinstance(query, Recall) and query.include_history
        if query.as_of is None:
            return cls(asked_ms, history=history, projects=projects)
        event_ms, ingestion_ms = query.as_of.event_time, query.as_of.ingestion_time
        now_ms = next(at for at in (event_ms, ingestion_ms, asked_ms) if at is not None)
        return cls(now_ms, event_ms, ingestion_ms, history, projects)

    @classmethod
    def of_ask(cls, ask: Ask) -> Self | None:
        """Return the moment of a query, or None if no index answers it."""
        if isinstance(ask.query, MomentQuery):
            return cls.of(ask.query, ask.asked_ms, ask.projects)
        is_of_index = isinstance(ask.query, IndexQuery) or (
            ask.projects is not None and ask.query.type == "memory.history"
        )
        return cls(ask.asked_ms, projects=ask.projects) if is_of_index else None

    @property
    def is_now(self) -> bool:
        """Return whether the moment is the present, so that usage and feedback apply."""
        return self.happened_by_ms is None and self.has_present_knowledge

    @property
    def has_present_knowledge(self) -> bool:
        """Return whether the moment has all present memories, and only their latest versions."""
        return self.known_by_ms is None and not self.history

    def had_happened(self, updated_ms: int) -> bool:
        return self.happened_by_ms is None or updated_ms <= self.happened_by_ms

    def may_read(self, project_id: str | None) -> bool:
        return self.projects is None or project_id in self.projects

    def had_ingested(self, ingested_ms: int) -> bool:
        return self.known_by_ms is None or ingested_ms <= self.known_by_ms


def present_index(hot: HotOwner, moment: Moment, model: str, dimension: int) -> OwnerIndex | None:
    """Return the owner's present index if it serves the moment. Return None if a memory of the moment was edited later,
    or if the index of the projects has not been built."""
    if not moment.has_present_knowledge:
        return None
    if moment.projects is None:
        index = hot.search_index(model, dimension)
    elif (scoped := hot.scoped_indexes.get(moment.projects)) is not None:
        hot.scoped_indexes.move_to_end(moment.projects)
        index = scoped.index
    else:
        return None
    if moment.happened_by_ms is None:
        return index
    facts = index.conversation.facts
    edited = (facts["created_ms"] <= moment.happened_by_ms) & (facts["edited_ms"] > moment.happened_by_ms)
    return None if edited.any() else index


def index_at(hot: HotOwner, moment: Moment, model: str, dimension: int, gap_ms: int) -> OwnerIndex:
    """Return the owner's index as of the moment: the present one, the cached past one, or a new one."""
    if (index := present_index(hot, moment, model, dimension)) is not None:
        return index
    if hot.past_index is not None and hot.past_index[0] == moment:
        return hot.past_index[1]
    built = build(hot.owner, snapshot(hot), moment, model, dimension, gap_ms)
    cache_scoped_index(hot, moment, built, gap_ms)
    return built


def cache_scoped_index(hot: HotOwner, moment: Moment, index: OwnerIndex, gap_ms: int) -> None:
    """Cache the index of a project subset if it is of the present. Events keep it up to date."""
    if moment.projects is not None and moment.is_now:
        hot.scoped_indexes[moment.projects] = ScopedIndex(index, gap_ms)
        while len(hot.scoped_indexes) > SCOPED_INDEXES_MAX:
            hot.scoped_indexes.popitem(last=False)


def graph_at(hot: HotOwner, index: OwnerIndex, moment: Moment, *, of_versions: bool = False) -> OwnerGraph:
    """Return the owner's graph as of the moment. For `of_versions`, it has the links of each version."""
    is_scoped, times_ms = moment.projects is not None, (moment.known_by_ms, moment.happened_by_ms)
    if of_versions:
        return (ScopedVersionGraph if is_scoped else VersionGraph)(hot.partition, hot.key, index, *times_ms)
    if is_scoped or times_ms != (None, None):
        return (ScopedGraph if is_scoped else PastGraph)(hot.partition, hot.key, index, *times_ms)
    return hot.stored_graph


def newest_seqs(index: OwnerIndex, moment: Moment) -> list[int]:
    """Return `seq` of the memories that had happened by the moment, the newest first."""
    facts = index.conversation.facts
    seqs = facts["seq"] if moment.happened_by_ms is None else facts["seq"][facts["created_ms"] <= moment.happened_by_ms]
    return sorted({*seqs.tolist()}, reverse=True)


def snapshot(hot: HotOwner) -> Snapshot:
    """Return iterators over the committed records from which a past index is built. Later commits do not change
    them."""
    tables = keys.ENTRY, keys.PAST_ENTRY, keys.VECTORS, keys.PAST_VECTORS, keys.EPISODE, keys.EPISODE_LOG
    scans = {table: hot.scan(table) for table in tables}
    return {table: chain([*islice(scan, 1)], scan) for table, scan in scans.items()}  # a scan opens at its first record


def build(owner: Owner, records: Snapshot, moment: Moment, model: str, dimension: int, gap_ms: int) -> OwnerIndex:
    """Build the index of a past moment. In `SteppedWork`, it pauses between parts."""
    with paused_collection:
        return _built(owner, records, moment, model, dimension, gap_ms)


def _built(owner: Owner, records: Snapshot, moment: Moment, model: str, dimension: int, gap_ms: int) -> OwnerIndex:
    """Build the index from records. This is a separate function so that its records are freed before cyclic garbage
    collection resumes, which would traverse 100,000 entries at once."""
    versions, as_of_moment, present_version = _versions(records, moment)
    episodes, episode_of = _episodes(owner, records, moment, versions, gap_ms)
    index = OwnerIndex(model, dimension)
    index.projects = moment.projects
    for episode in chain.from_iterable(_parts(sorted(episodes, key=attrgetter("number")))):
        index.put_episode(episode)
    past_vectors = {keys.seq_and_version(key): Vectors.decode(value) for key, value in records[keys.PAST_VECTORS]}
    for part in _parts(versions if moment.history else ()):
        others = [one for one in part if as_of_moment[one.seq] is not one and moment.had_happened(one.updated_ms)]
        index.append_versions([entry._replace(episode=episode_of[entry.seq]) for entry in others], past_vectors)
    remaining = [*as_of_moment.values()]
    as_of_moment.clear()
    _free(versions)
    present, following = records[keys.VECTORS], next(records[keys.VECTORS], None)  # in the order of `seq`
    while remaining:
        part = [entry._replace(episode=episode_of[entry.seq]) for entry in remaining[:AT_ONCE]]
        del remaining[:AT_ONCE]
        vectors = {id_: past_vectors[id_] for one in part if (id_ := (one.seq, one.version)) in past_vectors}
        while following is not None and (seq := keys.sequence(following[0])) <= part[-1].seq:
            vectors[seq, present_version[seq]] = Vectors.decode(following[1])
            following = next(present, None)
        index.add(part, vectors)
        spend(len(part))
    return index


def _versions(records: Snapshot, moment: Moment) -> tuple[list[Entry], dict[int, Entry], dict[int, int]]:
    """Return the versions that were known at the moment, in the order of `seq`; and by `seq`, each memory's version as
    of the moment, and its present version number."""
    present = [Entry.decode(value) for _, value in records[keys.ENTRY]]
    past = [Entry.decode(value) for _, value in records[keys.PAST_ENTRY]]
    versions, latest, seen, present_version = list[Entry](), dict[int, Entry](), dict[int, Entry](), dict[int, int]()
    for part in _parts(merge(past, present, key=attrgetter("seq"))):  # each memory's past versions come first
        known = [one for one in part if moment.had_ingested(one.ingested_ms) and moment.may_read(one.project_id)]
        versions += known
        latest.update((entry.seq, entry) for entry in known)
        seen.update((entry.seq, entry) for entry in known if moment.had_happened(entry.updated_ms))
        present_version.update((entry.seq, entry.version) for entry in part)
    # Memories that had not happened by then stay in the index, and filters exclude them, as in the present index.
    latest.update(seen)
    _free(past, present)
    return versions, latest, present_version


def _free(*lists: list[Any]) -> None:
    """Empty lists in parts, because freeing many objects takes as long as reading them."""
    for items in lists:
        while items:
            spend(min(len(items), AT_ONCE))
            del items[-AT_ONCE:]


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in parts, and spend the cost of each."""
    remaining = iter(items)
    while part := [*islice(remaining, AT_ONCE)]:
        yield part
        spend(len(part))


def _episodes(
    owner: Owner, records: Snapshot, moment: Moment, versions: list[Entry], gap_ms: int
) -> tuple[list[EpisodeRow], dict[int, int]]:
    """Return all episodes of the moment, and each memory's episode number. Stored episodes are used unless the moment
    has an earlier ingestion time or a project subset. In that case messages are joined again in log order."""
    episode_of = {entry.seq: entry.episode for entry in versions}
    if moment.known_by_ms is None and moment.projects is None:
        return [EpisodeRow.decode(value) for _, value in records[keys.EPISODE]], episode_of
    log: list[EpisodeLogEntry] = []
    for part in _parts(versions):
        joined = (entry for entry in part if entry.version == 0 and entry.episode >= 0)
        log += [EpisodeLogEntry.of_member(entry, opened_episode(owner, entry)) for entry in joined]
    stored = (EpisodeLogEntry.decode(value) for _, value in records[keys.EPISODE_LOG])
    # An explicit end always applies, a deleted member only if its project is readable.
    known = (one for one in stored if moment.had_ingested(one.ingested_ms))
    log += [one for one in known if one.opened is None or moment.may_read(one.project_id)]
    log.sort(key=attrgetter("change"))
    sessions: dict[str | None, list[EpisodeRow]] = {}
    episodes: dict[int, EpisodeRow] = {}
    for one in chain.from_iterable(_parts(log)):
        session = sessions.setdefault(one.session_id, [])
        changed: list[EpisodeRow] = []
        if one.opened is not None:
            found = join(session, one.opened, gap_ms)
            changed = found.changed
            episode_of[one.opened.number] = found.episode.number
        elif one.ended_ms is not None and (ended := end(session, one.ended_ms, gap_ms)) is not None:
            changed = [ended]
        if changed:
            sessions[one.session_id] = with_changes(session, changed)
            episodes.update((episode.number, episode) for episode in changed)
    _free(log)
    return list(episodes.values()), episode_of


class PausedCollection:
    """Suspends Python's cyclic garbage collection within any `with` block, in any thread. Reference counting still
    frees objects without cycles. A full collection runs whenever the number of objects has grown by a quarter. With
    100,000 entries it blocked a worker for up to 400 ms, between steps of 30 ms."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open_blocks = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._open_blocks == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._open_blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open_blocks -= 1
            if self._open_blocks == 0 and self._was_enabled:
                gc.enable()


paused_collection = PausedCollection()
