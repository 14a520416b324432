"""The view of one event: reads of its owner's records, and effects that apply only as a whole."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

from recallflow.operators.episodes import follow_change, opened_episode
from recallflow.operators.events import Write
from recallflow.operators.graph.changes import GraphChanges
from recallflow.operators.graph.write import ForgottenMemory, GraphWriter, RememberedMemory
from recallflow.operators.quotas import NO_LIMITS
from recallflow.operators.rules import Rules
from recallflow.owner import Owner
from recallflow.records import Position
from recallflow.state import keys, rows, segments
from recallflow.state.graph_codec import encode_row
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Counts, Partition, Values
from recallflow.state.rows import Entry, EpisodeRow, MemoryRow, Vectors
from recallflow.state.usage import Usage


class View:
    """One event's view of its owner. Its changes have no effect before `stage`, so a failed event changes nothing."""

    def __init__(
        self, partition: Partition, hot: HotOwner, write: Write, rules: Rules, change: int | None = None
    ) -> None:
        """`change` is the event's number among the owner's events, if an earlier step has reserved one."""
        self._partition, self._hot, self.rules = partition, hot, rules
        self._staged: Values = {}
        self._projects = write.projects
        self._next_seq = hot.next_seq
        self.language = hot.language  # of the owner's last text whose language is certain
        self._counts = hot.counts
        self.limits = NO_LIMITS  # the owner's quotas
        self.change = hot.next_change if change is None else change
        self._indexed: list[tuple[Entry, Vectors | None]] = []  # memories with a new entry or vector
        self._removed: list[int] = []
        self._ends: list[rows.EpisodeLogEntry] = []
        self.touched: list[RememberedMemory | ForgottenMemory] = []
        self.refusal_outcome: str | None = None  # why the event has no effect, if stored data excludes it
        self._graph: GraphChanges | None = None
        # The episodes that the event opened or changed, by session. `episodes` returns their earlier states.
        self.changed_episodes: dict[str | None, list[EpisodeRow]] = {}
        self._usage: dict[int, Usage] = {}
        self.ingested_ms, self.ingested_logged, self._clock_ms = _ingestion(write, hot.clock_ms)

    @property
    def owner(self) -> Owner:
        return self._hot.owner

    @property
    def graph(self) -> GraphChanges:
        if self._graph is None:
            self._graph = GraphChanges(self._partition, self._hot, self.change, self.ingested_ms, self.limits.edges)
        return self._graph

    @cached_property
    def writer(self) -> GraphWriter:
        return self.rules.graph_writer(self.graph, self.rules.similarity)

    @property
    def counts(self) -> rows.OwnerCounts:
        """The owner's counts, including the event's changes."""
        more = 0 if self._graph is None else self._graph.staged.edge_count_delta
        return self._counts._replace(edges=self._counts.edges + more) if more else self._counts

    @property
    def newest(self) -> int:
        """The sequence number of the owner's newest memory; -1 if there never was one."""
        return self._next_seq - 1

    def current(self, memory_id: str) -> rows.MemoryHead | None:
        """Return the head of the memory with an id, also of a forgotten one; None if no memory ever had the id."""
        return self._hot.memory_head(memory_id)

    def may_change(self, entry: Entry) -> bool:
        """Return whether the sender's credentials include the memory's project."""
        return self._projects is None or entry.project_id in self._projects

    def changeable(self, memory_id: str) -> rows.MemoryHead | None:
        """Return a current memory that the sender may change."""
        current = self.current(memory_id)
        if current is None or current.forgotten:
            return None
        return current if self._projects is None or self.may_change(self.entry(current.seq)) else None

    def was_forgotten(self, memory_id: str) -> bool:
        """Return whether a memory that is not changeable was forgotten. A forgotten memory's project is unknown, so the
        result is False for senders with credentials for some projects."""
        return self._projects is None and self.current(memory_id) is not None

    def row(self, memory_id: str, version: int) -> MemoryRow:
        stored = self._partition.get(keys.row(self._hot.key, self._hot.stored_name(memory_id), version))
        if stored is None:
            raise KeyError(f"version {version} of a current memory is missing")
        return MemoryRow.decode(stored)

    def next_version(self, row: MemoryRow, edited: tuple[int, bool], **columns: Any) -> MemoryRow:
        """Return the next version of a row. `edited`: the event time, and whether it comes from the log."""
        columns |= {"ingested_ms": self.ingested_ms, "ingested_logged": self.ingested_logged}
        columns |= {"edited_ms": edited[0], "edited_logged": edited[1]}
        return replace(row, version=row.version + 1, change=self.change, **columns)

    def rows_of(self, entries: Iterable[Entry]) -> list[MemoryRow]:
        """Return the rows of index entries, in one batched read."""
        name, key = self._hot.stored_name, self._hot.key
        stored = self._partition.get_many([keys.row(key, name(one.id), one.version) for one in entries])
        return [MemoryRow.decode(row) for row in stored if row is not None]

    def entry(self, seq: int) -> Entry:
        """Return a memory's index entry, as changed by the event."""
        key = keys.entry(self._hot.key, seq)
        stored = self._staged.get(key) or self._partition.get(key)
        if stored is None:
            raise KeyError(f"index entry {seq} of a current memory is missing")
        return Entry.decode(stored)

    def entries_of(self, seqs: Sequence[int]) -> list[Entry]:
        """Return the index entries of memories that exist before the event, in one batched read."""
        stored = self._partition.get_many([keys.entry(self._hot.key, seq) for seq in seqs])
        return Entry.decode_all([entry for entry in stored if entry is not None])

    def vectors(self, seq: int) -> Vectors | None:
        return self._partition.read(keys.vectors(self._hot.key, seq), Vectors.decode)

    def entries(self, first: int) -> Iterator[Entry]:
        """Yield current memories from a sequence number on, in order of arrival."""
        end = keys.after(keys.table(self._hot.key, keys.ENTRY))
        return (Entry.decode(value) for _, value in self._partition.scan_range(keys.entry(self._hot.key, first), end))

    def seqs(self, memory_ids: Iterable[str]) -> list[int]:
        """Return the distinct sequence numbers of memories, forgotten ones included."""
        found = map(self.current, memory_ids)
        return [*dict.fromkeys(current.seq for current in found if current is not None)]

    def source_seqs(self, row: MemoryRow) -> list[int]:
        """Return the sequence numbers of the memories from which a memory was derived."""
        return self.seqs(one["memory_id"] for one in stored_sources(row))

    def derivatives(self, seq: int) -> rows.Derivatives:
        """Return the derivatives of a memory, including the event's changes."""
        key = keys.derivatives(self._hot.key, seq)
        stored = self._staged[key] if key in self._staged else self._partition.get(key)
        return rows.Derivatives.decode(stored) if stored else rows.Derivatives([], [], [])

    def is_forgotten(self, seq: int) -> bool:
        """Return whether this event has forgotten a memory."""
        return seq in self._removed

    def episodes(self, session_id: str | None) -> list[EpisodeRow]:
        return self._hot.episodes(session_id)

    def episode_id(self, session_id: str | None, number: int) -> str | None:
        """Return the id of the current episode of a message in episode `number`; None for -1."""
        episode = self._current_episode(session_id, number)
        return None if episode is None else episode.id

    def merged_episodes(self) -> list[tuple[str, str]]:
        """Return the ids of episodes that the event merged into others, each with the id of that other episode."""
        merged = [one for one in chain(*self.changed_episodes.values()) if one.merged_into is not None]
        pairs = [(one.id, self.episode_id(one.session_id, one.number)) for one in merged]
        return [(merged_id, into_id) for merged_id, into_id in pairs if into_id is not None]

    def summary(self, category: str) -> str | None:
        stored = next((value for _, value in self._partition.scan_back(self._summary_prefix(category))), None)
        return None if stored is None else rows.CategorySummaryRow.decode(stored).summary

    def digest(self, content: bytes) -> str:
        return self._partition.keyring.digest(self._hot.key, content).hex()

    def applied_digest(self, event_id: str) -> str | None:
        """Return the digest of the event that was applied under an id; None if there is none."""
        return self._partition.read(keys.event_id(self._hot.key, self._hot.stored_name(event_id)), bytes.decode)

    def next_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def put(
        self,
        row: MemoryRow,
        entry: Entry,
        vectors: Vectors | None,
        digest: str,
        content_changed: bool = True,
        *,
        ended: bool = False,
    ) -> None:
        """Store a version of a memory as the current one; queries about the past still read the previous version.
        `content_changed`: the text or vector changed. `ended`: the memory is no longer valid."""
        key, name, effects = self._hot.key, self._hot.stored_name(row.id), self._staged
        text_bytes = len(row.content.encode())
        memories, held_bytes, edges = self._counts
        self._counts = rows.OwnerCounts(memories + (row.version == 0), held_bytes + text_bytes, edges)
        if row.version > 0:
            text_bytes += self._text_bytes(row.id)
            before, old = self.entry(row.seq), self.vectors(row.seq)
            effects[keys.past_entry(key, row.seq, before.version)] = encode_row(before)
            effects[keys.past_vectors(key, row.seq, before.version)] = old.encode() if old else None
            effects[keys.stale(key, row.seq)] = b""
        effects[keys.row(key, name, row.version)] = row.encode()
        effects[keys.current(key, name)] = encode_row(rows.MemoryHead(row.seq, row.version, digest, False, text_bytes))
        effects[keys.entry(key, row.seq)] = encode_row(entry)
        effects[keys.vectors(key, row.seq)] = vectors.encode() if vectors else None
        self._indexed.append((entry, vectors))
        may_exist = row.seq < self._hot.next_seq
        compared = None if ended else vectors
        self.touched.append(RememberedMemory(row, entry.episode, compared, content_changed, may_exist, ended=ended))

    def forget(self, entry: Entry) -> None:
        """Remove all versions of a memory. Its head becomes a tombstone, so that a repeated event does not restore the
        memory. The time of an episode's member is kept, because it may be the reason why later members joined."""
        key, name, current = self._hot.key, self._hot.stored_name(entry.id), self.current(entry.id)
        if current is None:
            raise KeyError(f"memory {entry.seq} has no head")
        self._detach(entry)
        first = self._first_entry(entry)
        if first.episode >= 0:
            self.drop_episode_summary(entry)
            self._log_episode(rows.EpisodeLogEntry.of_member(first, opened_episode(self.owner, first)))
        self._forget_versions(name, current.seq, self._versions(name, current.version))
        self._staged |= dict.fromkeys([*segments.segment_keys(key, current.seq), keys.stale(key, current.seq)])
        self._staged[keys.entry(key, current.seq)] = None
        self._staged[keys.vectors(key, current.seq)] = None
        self._staged[keys.current(key, name)] = encode_row(current._replace(forgotten=True, text_bytes=0))
        memories, held_bytes, _ = self._counts
        self._counts = self._counts._replace(memories=memories - 1, text_bytes=held_bytes - current.text_bytes)
        self._staged[keys.usage(key, current.seq)] = None
        self._usage[current.seq] = Usage()
        self._removed.append(current.seq)
        self.touched.append(ForgottenMemory(entry.id, current.seq))

    def forget_versions(self, entry: Entry, at_most: int) -> bool:
        """Remove versions after the first and before the current one, up to a limit. Return whether any existed."""
        name = self._hot.stored_name(entry.id)
        versions = [version for version in self._versions(name, at_most) if 0 < version < entry.version]
        self._forget_versions(name, entry.seq, versions)
        return bool(versions)

    def add_feedback(self, current: rows.MemoryHead, useful: bool) -> None:
        key = keys.usage(self._hot.key, current.seq)
        usage = (self._partition.read(key, Usage.decode) or Usage()).with_feedback(useful)
        self._staged[key] = usage.encode()
        self._usage[current.seq] = usage

    def end_episode(self, session_id: str | None, at_ms: int, ended: EpisodeRow) -> None:
        """Store an explicitly ended episode, and its end in the episode log."""
        self._ends.append(rows.EpisodeLogEntry(self.change, self.ingested_ms, session_id, at_ms, None))
        self._log_episode(self._ends[-1])
        self.put_episodes(session_id, [ended])

    def put_vectors(self, row: MemoryRow, vectors: Vectors) -> None:
        key, entry = self._hot.key, self.entry(row.seq)
        self._staged[keys.vectors(key, row.seq)] = vectors.encode()
        self._staged[keys.stale(key, row.seq)] = b""
        self._indexed.append((entry, vectors))
        self.touched.append(RememberedMemory(row, entry.episode, vectors, content_changed=False, only_vector=True))

    def put_derivatives(self, seq: int, derivatives: rows.Derivatives) -> None:
        self._staged[keys.derivatives(self._hot.key, seq)] = encode_row(derivatives) if any(derivatives) else None

    def put_summary(self, category: str, summary: str, sources: list[int]) -> None:
        """Store a category's new summary. A derived summary replaces the previous derived one."""
        if sources:
            for _, value in self._partition.scan(self._summary_prefix(category)):
                if (row := rows.CategorySummaryRow.decode(value)).sources:
                    self.drop_summary(category, row.change)
        key = keys.category_summary(self._hot.key, self._hot.stored_name(category), self.change)
        row = rows.CategorySummaryRow(self.change, self.ingested_ms, category, summary, sources)
        self._staged[key] = encode_row(row)
        for seq in sources:
            derivatives = self.derivatives(seq)
            self.put_derivatives(seq, derivatives._replace(summaries=[*derivatives.summaries, (category, self.change)]))

    def drop_summary(self, category: str, change: int) -> None:
        key = keys.category_summary(self._hot.key, self._hot.stored_name(category), change)
        stored = self._staged[key] if key in self._staged else self._partition.get(key)
        if stored is None:
            return
        self._staged[key] = None
        for seq in rows.CategorySummaryRow.decode(stored).sources:
            derivatives = self.derivatives(seq)
            others = [one for one in derivatives.summaries if one != (category, change)]
            self.put_derivatives(seq, derivatives._replace(summaries=others))

    def put_episode_summary(self, episode: EpisodeRow, summary: str) -> None:
        row = rows.EpisodeSummaryRow(self.change, self.ingested_ms, episode.number, summary)
        self._staged[keys.episode_summary(self._hot.key, episode.number)] = encode_row(row)
        self.put_episodes(episode.session_id, [episode._replace(summarised=True)])

    def drop_episode_summary(self, entry: Entry) -> None:
        """Delete the summary of a changed memory's episode."""
        episode = self._current_episode(entry.session_id, entry.episode)
        if episode is not None and episode.summarised:
            others = [one for one in self.changed_episodes.get(entry.session_id, []) if one.number != episode.number]
            self.grow_episodes(entry.session_id, [*others, episode])

    def grow_episodes(self, session_id: str | None, changed: list[EpisodeRow]) -> None:
        """Store episodes with new members, and delete their outdated summaries."""
        for episode in changed:
            if episode.summarised:
                self._staged[keys.episode_summary(self._hot.key, episode.number)] = None
        self.put_episodes(session_id, [one._replace(summarised=False) if one.summarised else one for one in changed])

    def put_episodes(self, session_id: str | None, changed: list[EpisodeRow]) -> None:
        session = self._hot.session_name(session_id)
        for episode in changed:
            self._staged[keys.episode(self._hot.key, session, episode.number)] = encode_row(episode)
        self.changed_episodes[session_id] = changed

    def mark_applied(self, event_id: str, digest: str) -> None:
        self._staged[keys.event_id(self._hot.key, self._hot.stored_name(event_id))] = digest.encode()

    def begin_owner(self) -> None:
        """Stage the first records of a new owner. Raise DecryptionFailed, also for a known owner without a readable
        key: the commit of the batch would fail."""
        if not self._staged and (self._graph is None or not self._graph.staged.effects):
            return
        if self._hot.next_change == 0:
            self._partition.begin_owner(self._hot.owner, self._hot.key)
        else:
            self._partition.check_owner_key(self._hot.key)

    def stage(self, further: Values, position: Position | None = None) -> None:
        """Add the effects of the successful event to the transaction, with further values and its position."""
        staged = self._staged
        if self._graph is not None:
            staged |= self._graph.staged.effects
        if staged:
            head = self._next_seq, self.change + 1, self._clock_ms, self.language, self.counts
            staged[keys.head(self._hot.key)] = rows.OwnerHead(self._hot.owner, *head).encode()
        owners = int(self._hot.next_change == 0 and bool(staged))
        difference = Counts(owners, self._counts.memories - self._hot.counts.memories)
        self._partition.stage(staged | further if further else staged, position, difference)

    def publish(self) -> None:
        """Update the owner's in-memory data with the staged changes."""
        if self._staged:
            self._hot.next_seq, self._hot.next_change = self._next_seq, self.change + 1
            self._hot.clock_ms, self._hot.language = self._clock_ms, self.language
            self._hot.counts = self.counts
        for session_id, changed in self.changed_episodes.items():
            self._hot.put_episodes(session_id, changed)
        self._hot.put_usage(self._usage)
        if self._hot.index is not None:
            self._hot.index.remove(*self._removed)
            if self._indexed:
                vectors = {(entry.seq, entry.version): vectors for entry, vectors in self._indexed}
                self._hot.index.add([entry for entry, _ in self._indexed], vectors)
        for projects, scoped in [*self._hot.scoped_indexes.items()]:
            follow_change(scoped, self.owner, self._indexed, self._removed, self._ends)
            if scoped.index.needs_rebuild():
                del self._hot.scoped_indexes[projects]
        if self._graph is not None:
            self._graph.publish()
            for seq in self._removed:
                self._graph.hot_graph.put_vectors(seq, None)
            for entry, vector in self._indexed:
                self._graph.hot_graph.put_vectors(entry.seq, vector)

    def _text_bytes(self, memory_id: str) -> int:
        """Return the bytes of all versions of a memory's text, including the event's changes."""
        stored = self._staged.get(keys.current(self._hot.key, self._hot.stored_name(memory_id)))
        current = self.current(memory_id) if stored is None else rows.MemoryHead.decode(stored)
        return 0 if current is None else current.text_bytes

    def _detach(self, entry: Entry) -> None:
        """Detach a forgotten memory from its sources, and delete the summaries derived from it."""
        for seq in self.source_seqs(self.row(entry.id, entry.version)):
            self.put_derivatives(seq, self.derivatives(seq).without(entry.seq))
        for category, change in self.derivatives(entry.seq).summaries:
            self.drop_summary(category, change)

    def _summary_prefix(self, category: str) -> bytes:
        return keys.table(self._hot.key, keys.CATEGORY_SUMMARY) + self._hot.stored_name(category)

    def _versions(self, name: bytes, at_most: int) -> list[int]:
        """Return the numbers of a memory's first existing versions, at most one more than `at_most`."""
        if at_most == 0:
            return [0]
        prefix = keys.table(self._hot.key, keys.ROW) + name
        return [keys.version(key) for key in self._partition.first_keys(prefix, at_most + 1)]

    def _forget_versions(self, name: bytes, seq: int, versions: list[int]) -> None:
        key = self._hot.key
        for version in versions:
            self._staged[keys.row(key, name, version)] = None
            self._staged[keys.past_entry(key, seq, version)] = None
            self._staged[keys.past_vectors(key, seq, version)] = None

    def _first_entry(self, entry: Entry) -> Entry:
        if entry.version == 0:
            return entry
        stored = self._partition.get(keys.past_entry(self._hot.key, entry.seq, 0))
        if stored is None:
            raise KeyError(f"the first version of memory {entry.seq} is missing")
        return Entry.decode(stored)

    def _current_episode(self, session_id: str | None, number: int) -> EpisodeRow | None:
        """Return the current episode of a member of episode `number`; None for -1."""
        changed = {episode.number: episode for episode in self.changed_episodes.get(session_id, [])}
        into: int | None = number if number >= 0 else None
        episode = None
        while into is not None:
            episode = changed.get(into) or self._episode(session_id, into)
            into = episode.merged_into
        return episode

    def _episode(self, session_id: str | None, number: int) -> EpisodeRow:
        stored = self._partition.get(keys.episode(self._hot.key, self._hot.session_name(session_id), number))
        if stored is None:
            raise KeyError(f"episode {number} of a current memory is missing")
        return EpisodeRow.decode(stored)

    def _log_episode(self, entry: rows.EpisodeLogEntry) -> None:
        self._staged[keys.episode_log(self._hot.key, entry.change)] = encode_row(entry)


def stored_sources(row: MemoryRow) -> list[dict[str, Any]]:
    """Return the sources of a memory, each with `memory_id` and `content_hash`; empty if it was not derived."""
    derived = row.derived_from
    return [] if derived is None else [derived, *derived.get("others", [])]


def _ingestion(write: Write, clock_ms: int | None) -> tuple[int, bool, int | None]:
    """Return the ingestion time of an event, whether a log provides this time, and the owner's clock after the event
    (docs/internals/decisions/01). The ingestion time is the log's append time, but never before the clock. Lines of a
    file have only their event time, which does not advance the clock. So a replay of a file always gives the same
    state, and a line with a far future time affects only itself."""
    record = write.record
    if record.append_logged:
        at_ms = record.append_ms if clock_ms is None else max(record.append_ms, clock_ms)
        return at_ms, True, at_ms
    if write.event.timestamp is not None:
        return write.event.timestamp, True, clock_ms
    return record.append_ms, False, clock_ms
