"""Points in time: from which moment a question is answered, and the index an owner had then.

What the engine knew at a moment is built from the versions that were in by then, with the code that builds the present:
word statistics, centroids and neighbours are all of then. Episodes are joined anew in the order of the log, since a
later message may have widened or merged what stood then. Forgotten memories are in no past.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Self

from recallflow.operators.episodes import end, join, opening
from recallflow.owner import Owner
from recallflow.queries import Recall
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner, settled
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, Episode, EpisodeMark, Vectors


@dataclass(frozen=True, slots=True)
class Moment:
    """All times in epoch milliseconds. `now_ms`: when ages and validity are judged; `happened_by_ms`: nothing later is
    in the answer; `known_by_ms`: nothing that came in later is; `history`: what was replaced, superseded or expired is
    in the answer too."""

    now_ms: int
    happened_by_ms: int | None
    known_by_ms: int | None
    history: bool

    @classmethod
    def of(cls, query: Recall, asked_ms: int) -> Self:
        """The moment a query is about. Of two given, validity is judged at the event time."""
        if query.as_of is None:
            return cls(asked_ms, None, None, query.include_history)
        event_ms, ingestion_ms = query.as_of.event_time, query.as_of.ingestion_time
        now_ms = next(at for at in (event_ms, ingestion_ms, asked_ms) if at is not None)
        return cls(now_ms, event_ms, ingestion_ms, query.include_history)

    @property
    def is_now(self) -> bool:
        """Whether the present index serves, with what use and feedback added to it."""
        return self.known_by_ms is None and self.happened_by_ms is None and not self.history


def index_at(hot: HotOwner, moment: Moment, model: str, dimension: int, gap_ms: int) -> OwnerIndex:
    """The owner's index as of the moment; built anew unless it is the present one."""
    if moment.known_by_ms is None and not moment.history:
        return hot.search_index(model, dimension)
    current = [Entry.decode(value) for _, value in hot.scan(keys.ENTRY)]
    stored = [*current, *(Entry.decode(value) for _, value in hot.scan(keys.PAST_ENTRY))]
    known = [e for e in stored if moment.known_by_ms is None or e.ingested_ms <= moment.known_by_ms]
    versions = sorted(known, key=attrgetter("seq", "version"))
    latest = {entry.seq: entry for entry in versions}
    past = [entry for entry in versions if latest[entry.seq] is not entry] if moment.history else []
    vectors = _vectors(hot, current)
    episodes: Iterable[Episode]
    if moment.known_by_ms is None:
        episodes = [Episode.decode(value) for _, value in hot.scan(keys.EPISODE)]
        joined = {entry.seq: entry.episode for entry in latest.values()}
    else:
        marks = [EpisodeMark.decode(value) for _, value in hot.scan(keys.EPISODE_LOG)]
        in_by_then = [mark for mark in marks if mark.ingested_ms <= moment.known_by_ms]
        episodes, joined = _episodes(hot.owner, versions, in_by_then, gap_ms)
    index = OwnerIndex(model, dimension)
    index.load(
        episodes,
        [entry._replace(episode=joined[entry.seq]) for entry in latest.values()],
        vectors,
        past=[entry._replace(episode=joined[entry.seq]) for entry in past],
    )
    return index


def _vectors(hot: HotOwner, current: list[Entry]) -> dict[tuple[int, int], Vectors | None]:
    """Vectors of all versions, by sequence number and version."""
    found: dict[tuple[int, int], Vectors | None] = {
        keys.seq_and_version(key): Vectors.decode(value) for key, value in hot.scan(keys.PAST_VECTORS)
    }
    version = {entry.seq: entry.version for entry in current}
    for key, value in hot.scan(keys.VECTORS):
        seq = keys.sequence(key)
        found[seq, version[seq]] = Vectors.decode(value)
    return found


def _episodes(
    owner: Owner, versions: list[Entry], marks: list[EpisodeMark], gap_ms: int
) -> tuple[list[Episode], dict[int, int]]:
    """Joins messages to episodes in the order of the log → all episodes, and each memory's episode number."""
    standing: dict[str | None, list[Episode]] = {}
    episodes: dict[int, Episode] = {}
    joined = {entry.seq: entry.episode for entry in versions}
    messages = [
        EpisodeMark(entry.change, entry.ingested_ms, entry.session_id, None, opening(owner, entry))
        for entry in versions
        if entry.version == 0 and entry.episode >= 0
    ]
    for mark in sorted([*messages, *marks], key=attrgetter("change")):
        session = standing.setdefault(mark.session_id, [])
        changed: list[Episode] = []
        if mark.opened is not None:
            found = join(session, mark.opened, gap_ms)
            changed = found.changed
            joined[mark.opened.number] = found.episode.number
        elif mark.ended_ms is not None and (ended := end(session, mark.ended_ms, gap_ms)) is not None:
            changed = [ended]
        if changed:
            standing[mark.session_id] = settled(session, changed)
            episodes.update((episode.number, episode) for episode in changed)
    return list(episodes.values()), joined
