"""The in-memory data of owners: episodes, search index, graph and usage, and the cache of all owners."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter

from recallflow.errors import DecryptionFailed
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.arrays import Ints
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_graph import HotGraph
from recallflow.state.index import OwnerIndex
from recallflow.state.partition import Partition
from recallflow.state.rows import EpisodeRow, EpisodeSummaryRow, MemoryHead, OwnerHead
from recallflow.state.scoped import ScopedIndex
from recallflow.state.segments import Segments
from recallflow.state.usage import OwnerUsage, Usage, decode_seqs
from recallflow.stepped import SteppedWork

_OWNER_BYTES = 1_000
_EPISODE_BYTES = 300


class HotOwner:
    """One owner in memory. A write loads only the head and the episodes of its session. The first query loads the
    search index, and each later event updates it."""

    def __init__(self, partition: Partition, owner: Owner) -> None:
        self.owner = owner
        self.key = partition.keyring.owner(owner)
        self.partition = partition
        stored = partition.get(keys.head(self.key))
        # An owner without a head has no stored records, so later loads need not read any.
        self._was_empty = stored is None
        head = OwnerHead.decode(stored) if stored else OwnerHead(owner, 0, 0)
        self.next_seq, self.next_change, self.clock_ms = head.next_seq, head.next_change, head.clock_ms
        self.language, self.counts = head.language, head.counts
        self.erased_ms = partition.erased_ms(owner, self.key)
        self.stored_graph = OwnerGraph(partition, self.key)
        self.index: OwnerIndex | None = None
        self._segments: Segments | None = None
        self.past_index: tuple[object, OwnerIndex] | None = None  # (moment, index) of the historical query in progress
        self.scoped_indexes: OrderedDict[tuple[str, ...], ScopedIndex] = OrderedDict()  # by projects
        self._hot_graph: HotGraph | None = None
        self._usage: OwnerUsage | None = None
        self._sessions: dict[str | None, list[EpisodeRow]] = {}
        self._episode_count = 0  # in `_sessions`

    def stored_name(self, text: str) -> bytes:
        """Return the keyed hash that storage keys have in place of an id, a session or a category of this owner."""
        return self.partition.keyring.name(self.key, text)

    def memory_head(self, memory_id: str) -> MemoryHead | None:
        """Return the head of a memory, also of a deleted one; None if there was none."""
        return self.partition.read(keys.current(self.key, self.stored_name(memory_id)), MemoryHead.decode)

    def session_name(self, session_id: str | None) -> bytes:
        """Return the stored name of a session. Messages without a session form one session, with an empty id."""
        return self.stored_name(session_id or "")

    def episodes(self, session_id: str | None) -> list[EpisodeRow]:
        """Return the session's current episodes, by time. Episodes of one session never overlap."""
        if session_id not in self._sessions and self._was_empty:
            self._sessions[session_id] = []
        elif session_id not in self._sessions:
            # All changes of the session are committed: a change loads it first, and an eviction follows a commit.
            prefix = keys.table(self.key, keys.EPISODE) + self.session_name(session_id)
            stored = [EpisodeRow.decode(value) for _, value in self.partition.scan_committed(prefix)]
            self._sessions[session_id] = _current_episodes(stored)
            self._episode_count += len(self._sessions[session_id])
        return self._sessions[session_id]

    def put_episodes(self, session_id: str | None, changed: list[EpisodeRow]) -> None:
        current = self.episodes(session_id)
        self._episode_count -= len(current)
        self._sessions[session_id] = with_changes(current, changed)
        self._episode_count += len(self._sessions[session_id])
        if self.index is not None:
            for episode in changed:
                self.index.put_episode(episode)

    def episode_summary(self, number: int) -> str | None:
        """Return the summary of an episode. Raise DecryptionFailed."""
        row = self.partition.read(keys.episode_summary(self.key, number), EpisodeSummaryRow.decode)
        return None if row is None else row.summary

    def hot_graph(self) -> HotGraph:
        if self._hot_graph is None:
            self._hot_graph = HotGraph(self.partition, self.key, was_empty=self._was_empty)
        return self._hot_graph

    def search_index(self, model: str, dimension: int) -> OwnerIndex:
        """Return the owner's index, loaded from committed records on first use."""
        if self.index is None or self.index.needs_rebuild():
            segments = self.segments(model, dimension)
            index = OwnerIndex(model, dimension, segments.read_vectors)
            index.load_episodes({keys.sequence(key): value for key, value in self.scan(keys.EPISODE)})
            segments.load(index, self.next_seq)
            self.index = index
        return self.index

    def pack_tail(self) -> int:
        """Pack the newest memories before the owner's eviction. Return their number. Call it between batches only."""
        if self._segments is None or self.partition.is_staging:
            return 0
        packing = SteppedWork(partial(_if_readable, self._segments.pack_tail, self.next_seq))
        return packing.outcome if any(packing.step() for _ in range(MAX_TAIL_STEPS)) else 0

    def segments(self, model: str, dimension: int) -> Segments:
        """Return the owner's stored segments. Packing reads committed records, so it runs only between batches."""
        if self._segments is None:
            self._segments = Segments(self.partition, self.key, model, dimension)
        return self._segments

    def usage(self) -> OwnerUsage:
        """Return the memories' usage by queries and feedback, loaded from committed records on first use."""
        if self._usage is None:
            self._usage = OwnerUsage((keys.sequence(key), value) for key, value in self.scan(keys.USAGE))
        return self._usage

    def put_usage(self, changed: Mapping[int, Usage]) -> None:
        if self._usage is not None:
            for seq, usage in changed.items():
                self._usage.put(seq, usage)

    def returned_seqs(self, session_id: str) -> Ints:
        """Return the memories (`seq`) that queries of the session returned, the latest last."""
        return decode_seqs(self.partition.get(keys.session(self.key, self.stored_name(session_id))) or b"")

    def scan(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the committed records of one of the owner's tables, in key order."""
        return self.partition.scan(keys.table(self.key, table))

    def size_bytes(self) -> int:
        index = self.index.size_bytes() if self.index is not None else 0
        for scoped in self.scoped_indexes.values():
            index += scoped.index.size_bytes() + _EPISODE_BYTES * sum(map(len, scoped.sessions.values()))
        hot_graph = self._hot_graph.size_bytes() if self._hot_graph is not None else 0
        usage = self._usage.size_bytes() if self._usage is not None else 0
        episodes = _EPISODE_BYTES * self._episode_count
        return _OWNER_BYTES + episodes + index + hot_graph + usage + self.stored_graph.size_bytes()


def _if_readable(work: Callable[..., int], *arguments: int) -> int:
    """Return the result of `work`, or 0 if a record cannot be decrypted: the owner's next query reports that."""
    try:
        return work(*arguments)
    except DecryptionFailed:
        return 0


def with_changes(current: list[EpisodeRow], changed: list[EpisodeRow]) -> list[EpisodeRow]:
    """Return a session's current episodes after changes. The list `current` may be modified in place."""
    if len(changed) == 1 and current and current[-1].number == changed[0].number:
        current[-1] = changed[0]  # the usual case: the next message of the latest episode
        return current
    # Episodes do not overlap, so that only episodes that begin in the changed range can differ.
    start_ms = attrgetter("start_ms")
    first = bisect_left(current, min(map(start_ms, changed)), key=start_ms)
    end = bisect_right(current, max(episode.last_ms for episode in changed), lo=first, key=start_ms)
    numbers = {episode.number for episode in changed}
    unchanged = [episode for episode in current[first:end] if episode.number not in numbers]
    current[first:end] = _current_episodes([*unchanged, *changed])
    return current


def _current_episodes(episodes: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    # Two episodes may start at the same time: one that ended at this time, and the next one.
    return sorted((e for e in episodes if e.merged_into is None), key=lambda e: (e.start_ms, e.last_ms, e.number))


MAX_PACKED = 2_048  # memories packed between two batches
MAX_TAIL_STEPS = 4  # of packing an evicted owner's newest memories; if they need more, they stay unpacked
MAX_PACKED_AT_CLOSE = 16_384  # memories that all workers pack when the process ends, in about half a second


class HotOwners:
    """A least-recently-used cache of owners, limited in bytes.

    The worker calls `shrink` between batches only, because in-memory data may contain changes of the current batch."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._owners: OrderedDict[Owner, HotOwner] = OrderedDict()
        self._sizes_bytes: dict[Owner, int] = {}
        self._touched: set[Owner] = set()  # since the last `shrink`
        # The step function of each owner's unfinished work (see `begin`). Further events of these owners wait.
        self._unfinished: dict[Owner, Callable[[], bool]] = {}
        self.total_bytes = 0

    def get(self, partition: Partition, owner: Owner) -> HotOwner:
        """Return the owner, loaded on first use."""
        hot = self._owners.get(owner)
        if hot is None:
            hot = self._owners[owner] = HotOwner(partition, owner)
        else:
            self._owners.move_to_end(owner)
        self._touched.add(owner)
        return hot

    def drop(self, owner: Owner) -> None:
        """Evict an owner without packing its newest memories."""
        if self._owners.pop(owner, None) is not None:
            self._touched.discard(owner)
            self._unfinished.pop(owner, None)
            self.total_bytes -= self._sizes_bytes.pop(owner, 0)

    def drop_all(self, matches: Callable[[HotOwner], bool]) -> None:
        for owner in [owner for owner, hot in self._owners.items() if matches(hot)]:
            self.drop(owner)

    def begin(self, owner: Owner, step: Callable[[], bool]) -> bool:
        """Run a step of work on an owner. Return whether steps remain. `step` returns whether the work has ended."""
        if step():
            return False
        self._unfinished[owner] = step
        return True

    def is_at_work(self, owner: Owner) -> bool:
        return owner in self._unfinished

    def has_steps(self, partition: Partition) -> bool:
        return any(self._owners[owner].partition is partition for owner in self._unfinished)

    def advance(self, partition: Partition) -> None:
        """Run the next step of unfinished work on one owner of a partition. Owners take turns."""
        for owner in self._unfinished:
            if self._owners[owner].partition is partition:
                self.begin(owner, self._unfinished.pop(owner))
                self._touched.add(owner)
                return

    def pack_segments(self, model: str, dimension: int) -> None:
        """Pack complete segments of the owners used since the last `shrink`. A limit keeps other work from waiting; the
        rest is packed after the owner's next use."""
        packed = 0
        for owner in self._touched - self._unfinished.keys():
            hot = self._owners[owner]
            segments = hot.segments(model, dimension)
            while packed < MAX_PACKED and _if_readable(segments.can_pack, hot.next_seq):
                packing = SteppedWork(partial(_if_readable, segments.pack))
                if self.begin(owner, packing.step) or not packing.outcome:
                    break
                packed += packing.outcome

    def shrink(self) -> None:
        """Measure the owners used since the last call, and evict the least recently used ones over the budget."""
        for owner in self._touched:
            size_bytes = self._owners[owner].size_bytes()
            self.total_bytes += size_bytes - self._sizes_bytes.get(owner, 0)
            self._sizes_bytes[owner] = size_bytes
        self._touched.clear()
        packed = 0
        while self.total_bytes > self._budget_bytes:
            evicted = next((owner for owner in self._owners if owner not in self._unfinished), None)
            if evicted is None:
                return
            hot = self._owners.pop(evicted)
            self.total_bytes -= self._sizes_bytes.pop(evicted)
            if packed < MAX_PACKED:
                hot.partition.commit()
                packed += hot.pack_tail()

    def pack_tails(self, limit: int, partition: Partition | None = None) -> None:
        """Pack the newest memories of all owners or of one partition's, most recently used first, up to a limit."""
        packed = 0
        for hot in reversed(self._owners.values()):
            if packed >= limit:
                return
            if partition is None or hot.partition is partition:
                packed += hot.pack_tail()


class Owners:
    """The owners of one state partition."""

    def __init__(self, hot_owners: HotOwners, partition: Partition) -> None:
        self._hot_owners = hot_owners
        self._partition = partition

    def get(self, owner: Owner) -> HotOwner:
        return self._hot_owners.get(self._partition, owner)

    def begin(self, owner: Owner, step: Callable[[], bool]) -> bool:
        return self._hot_owners.begin(owner, step)

    def drop(self, owner: Owner) -> None:
        """Commit, and evict an owner whose in-memory state may be inconsistent. Raise StorageError."""
        self._partition.commit()
        self._hot_owners.drop(owner)

    def drop_all(self, matches: Callable[[Owner], bool]) -> None:
        """Commit, and evict all owners that match. Raise StorageError."""
        self._partition.commit()
        self._hot_owners.drop_all(lambda hot: matches(hot.owner))
