"""Points in time: from which moment a question is answered, and the index an owner had then.

What the engine knew at a moment is built from the versions that were in by then, with the code that builds the present:
word statistics, centroids and neighbours are all of then. So is what had happened by a moment, where a memory has been
edited since: an update is of its own event time, and the version of then is shown. Episodes are joined anew in the
order of the log, since a later message may have widened or merged what stood then. Forgotten memories are in no past.
"""

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple, Self, TypeVar

from recallflow.operators.episodes import end, join, opening
from recallflow.operators.events import Ask
from recallflow.owner import Owner
from recallflow.queries import EpisodesList, GraphExplore, GraphFacts, GraphTrace, MemoriesList, Recall, UserStats
from recallflow.state import keys
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner, with_changes
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, EpisodeMark, EpisodeRow, Vectors
from recallflow.state.scoped_index import ScopedIndex

AT_ONCE = 1_000  # records of one step: some 10 ms
SCOPES_KEPT = 2  # indexes of an owner's projects, each for senders who may read nothing else

# Queries that may be about another moment than now.
OfMoment = Recall | MemoriesList | GraphTrace | GraphExplore | GraphFacts
OfIndex = OfMoment | EpisodesList | UserStats  # queries that are answered out of an index

T = TypeVar("T")
Steps = Generator[None, None, T]
Records = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Moment:
    """All times in epoch milliseconds. `now_ms`: when ages and validity are judged; `happened_by_ms`: nothing later is
    in the answer; `known_by_ms`: nothing that came in later is; `history`: what was replaced, superseded or expired is
    in the answer too. `projects`: nothing else is there than memories of these, None where all is."""

    now_ms: int
    happened_by_ms: int | None
    known_by_ms: int | None
    history: bool
    projects: tuple[str, ...] | None = None

    @classmethod
    def of(cls, query: OfMoment, asked_ms: int, projects: tuple[str, ...] | None) -> Self:
        """The moment a query is about. Of two given, validity is judged at the event time. `projects`: those that its
        sender may read."""
        history = isinstance(query, Recall) and query.include_history
        if query.as_of is None:
            return cls(asked_ms, None, None, history, projects)
        event_ms, ingestion_ms = query.as_of.event_time, query.as_of.ingestion_time
        now_ms = next(at for at in (event_ms, ingestion_ms, asked_ms) if at is not None)
        return cls(now_ms, event_ms, ingestion_ms, history, projects)

    @classmethod
    def of_ask(cls, ask: Ask) -> Self | None:
        """The moment that a query is about; None for one that no index answers."""
        if isinstance(ask.query, OfMoment):
            return cls.of(ask.query, ask.asked_ms, ask.projects)
        is_of_index = isinstance(ask.query, OfIndex) or (
            ask.projects is not None and ask.query.type == "memory.history"
        )
        return cls.now(ask.asked_ms, ask.projects) if is_of_index else None

    @classmethod
    def now(cls, asked_ms: int, projects: tuple[str, ...] | None) -> Self:
        """The moment of asking."""
        return cls(asked_ms, None, None, history=False, projects=projects)

    @property
    def is_now(self) -> bool:
        """Whether the present index serves, with what use and feedback added to it."""
        return self.happened_by_ms is None and self.is_of_present

    @property
    def is_of_present(self) -> bool:
        """Whether it is about what is known now."""
        return self.known_by_ms is None and not self.history

    def saw(self, updated_ms: int) -> bool:
        """Whether a version of this event time was there by then."""
        return self.happened_by_ms is None or updated_ms <= self.happened_by_ms

    def is_within(self, project_id: str | None) -> bool:
        """Whether what belongs to a project is there at all."""
        return self.projects is None or project_id in self.projects

    def is_of(self, mark: EpisodeMark) -> bool:
        """Whether what shaped episodes is there: an end always, a member that is forgotten where its project is."""
        return mark.opened is None or self.is_within(mark.project_id)

    def knows(self, ingested_ms: int) -> bool:
        """Whether what came in then is known."""
        return self.known_by_ms is None or ingested_ms <= self.known_by_ms


def present_index(hot: HotOwner, moment: Moment, model: str, dimension: int) -> OwnerIndex | None:
    """The owner's present index, if it serves: unless something that had happened has been edited since. That of some
    projects alone, where it has been built."""
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
    """The owner's index as of the moment; built anew unless the present one serves, or one was built in steps."""
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
    """Keeps the index of some projects for the questions to come, if it is of now; each event keeps it so."""
    if moment.projects is not None and moment.is_now:
        hot.scoped[moment.projects] = ScopedIndex(index, gap_ms)
        while len(hot.scoped) > SCOPES_KEPT:
            hot.scoped.popitem(last=False)


def graph_at(hot: HotOwner, index: OwnerIndex, moment: Moment) -> OwnerGraph:
    """The owner's graph as of the moment; `index`: the owner's index of then."""
    if moment.projects is not None:
        return hot.scoped_graph(index, moment.known_by_ms, moment.happened_by_ms)
    if moment.known_by_ms is None and moment.happened_by_ms is None:
        return hot.graph
    return hot.past_graph(index, moment.known_by_ms, moment.happened_by_ms)


def newest(index: OwnerIndex, moment: Moment) -> list[int]:
    """`seq` of the memories that had happened by the moment, newest first."""
    facts = index.conversation.facts
    seqs = facts["seq"] if moment.happened_by_ms is None else facts["seq"][facts["created_ms"] <= moment.happened_by_ms]
    return sorted({*seqs.tolist()}, reverse=True)


def filtered_graph(hot: HotOwner, index: OwnerIndex, moment: Moment) -> OwnerGraph:
    """The graph by which memories are filtered: with history, by the links of each version."""
    if moment.history and moment.projects is not None:
        return hot.scoped_version_graph(index, moment.known_by_ms, moment.happened_by_ms)
    if moment.history:
        return hot.version_graph(index, moment.known_by_ms, moment.happened_by_ms)
    return graph_at(hot, index, moment)


def build(hot: HotOwner, moment: Moment, model: str, dimension: int, gap_ms: int) -> Steps[OwnerIndex]:
    """Builds the index of a past moment in steps of some thousand records, of what is committed at the first one."""
    tables = {
        table: _opened(hot.scan(table))
        for table in (keys.ENTRY, keys.PAST_ENTRY, keys.VECTORS, keys.PAST_VECTORS, keys.EPISODE, keys.EPISODE_LOG)
    }
    yield
    with unswept:
        return (yield from _built(hot.owner, tables, moment, model, dimension, gap_ms))


def _built(
    owner: Owner, tables: Mapping[bytes, Records], moment: Moment, model: str, dimension: int, gap_ms: int
) -> Steps[OwnerIndex]:
    """The index, out of records. A function of its own, so that all it read is freed before the search for cycles is on
    again: that would look through 100,000 entries at once."""
    known = yield from _known(tables, moment)
    episodes, episode_of = yield from _episodes(owner, tables, moment, known.versions, gap_ms)
    index = OwnerIndex(model, dimension)
    index.projects = moment.projects
    for part in _parts(sorted(episodes, key=attrgetter("number"))):
        index.load(part, (), {})
        yield
    past = yield from _read(
        tables[keys.PAST_VECTORS], lambda key, value: (keys.seq_and_version(key), Vectors.decode(value))
    )
    vectors: dict[tuple[int, int], Vectors | None] = dict(past)
    for some in _parts(known.versions) if moment.history else ():
        others = [entry for entry in some if known.latest[entry.seq] is not entry and moment.saw(entry.updated_ms)]
        index.load((), (), vectors, past=[entry._replace(episode=episode_of[entry.seq]) for entry in others])
        yield
    left = [*known.latest.values()]
    known.latest.clear()
    yield from _let_go(known.versions)
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
    """What was known at a moment. `versions`: of memories in their order; `latest`: of each memory the version of then,
    and `current`: the number of the version of now."""

    versions: list[Entry]
    latest: dict[int, Entry]
    current: dict[int, int]


def _known(tables: Mapping[bytes, Records], moment: Moment) -> Steps[_Known]:
    """Reads entries, and sorts out those of the moment."""
    now = yield from _read(tables[keys.ENTRY], lambda _, value: Entry.decode(value))
    past = yield from _read(tables[keys.PAST_ENTRY], lambda _, value: Entry.decode(value))
    found, seen = _Known([], {}, {}), dict[int, Entry]()
    for some in _parts(merge(past, now, key=attrgetter("seq"))):  # of each memory the past versions first
        known = [one for one in some if moment.knows(one.ingested_ms) and moment.is_within(one.project_id)]
        found.versions.extend(known)
        found.latest.update((entry.seq, entry) for entry in known)
        found.current.update((entry.seq, entry.version) for entry in some)
        seen.update((entry.seq, entry) for entry in known if moment.saw(entry.updated_ms))
        yield
    # What had not happened by then stays in, and out of answers, as it does in the present index.
    found.latest.update(seen)
    yield from _let_go(past, now)
    return found


class _InOrder:
    """Records by sequence number, asked for in its order, each once: not all of them are held at a time."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._next = next(records, None)

    def up_to(self, seq: int) -> Records:
        """Those that come next, up to a sequence number."""
        while self._next is not None and keys.sequence(self._next[0]) <= seq:
            yield self._next
            self._next = next(self._records, None)


def _let_go(*lists: list[Any]) -> Steps[None]:
    """Empties lists in steps: to free so many objects takes as long as to read them."""
    for one in lists:
        while one:
            del one[-AT_ONCE:]
            yield


def _opened(records: Records) -> Records:
    """Records as they are now, whatever is committed until they are read."""
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
    """All episodes of the moment, and the number of each memory's episode: those that are stored, or, as of an earlier
    knowledge or of some projects, those that messages join in the order of the log."""
    episode_of = {entry.seq: entry.episode for entry in versions}
    if moment.known_by_ms is None and moment.projects is None:
        return (yield from _read(tables[keys.EPISODE], lambda _, value: EpisodeRow.decode(value))), episode_of
    marks: list[EpisodeMark] = []
    standing: dict[str | None, list[EpisodeRow]] = {}
    episodes: dict[int, EpisodeRow] = {}
    for some in _parts(versions):
        openers = (entry for entry in some if entry.version == 0 and entry.episode >= 0)
        marks += [EpisodeMark.of_member(e, opening(owner, e)) for e in openers]
        yield
    stored = yield from _read(tables[keys.EPISODE_LOG], lambda _, value: EpisodeMark.decode(value))
    marks += [one for one in stored if moment.knows(one.ingested_ms) and moment.is_of(one)]
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
    yield from _let_go(marks)
    return list(episodes.values()), episode_of


class Unswept:
    """Turns Python's search for cycles off within any `with` of it, in whatever thread; what holds no cycle is freed as
    ever.

    The search looks at all objects each time a quarter has been added: 100,000 entries and what is in them kept a
    worker for up to 400 ms at once, between steps of 30.
    """

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


unswept = Unswept()
