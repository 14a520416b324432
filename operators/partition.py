"""The state-partition step: everything stateful happens here, one event after the other, in one atomic write a batch.

1. An event at or below the applied position of its source was applied before a crash: nothing changes.
2. A memory event is applied through a view of its own; what it stages counts only if it succeeds.
3. A query first commits what is pending, then reads what is committed.
4. At the end of the batch all effects and the new positions become one WriteBatch; then owners over the byte budget
   leave memory.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from bytewax.operators import StatefulBatchLogic

from recallflow.embedder import Embedder
from recallflow.errors import InvalidRecord, StateBehind
from recallflow.operators import lookups
from recallflow.operators.apply import Rules, apply
from recallflow.operators.events import Ask, Item, Prepared, Refused
from recallflow.operators.recall.pipeline import Engine, recall
from recallflow.operators.view import View
from recallflow.outputs import Answer, DeadLetter, Done, Output, Receipted
from recallflow.owner import Owner, state_partition
from recallflow.queries import EpisodesList, MemoryGet, MemoryHistory, Recall, UserStats
from recallflow.records import Position
from recallflow.responses import ErrorBody, Response
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Current, MemoryRow

STEP = "state"

Timer = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What Bytewax keeps of a state partition: which one it is and how far it is, never any data."""

    partition: int
    applied: dict[str, int]


def partition_key(item: Item, partitions: int) -> str:
    """The Bytewax key of an item's state partition, zero-padded so that keys sort as numbers. A refused record goes
    where its log's key says, so that its position moves for the user who waits for it."""
    if isinstance(item, Refused):
        tenant_id, _, user_id = (item.record.key or b"").decode(errors="replace").partition("/")
        return f"{state_partition(tenant_id, user_id, partitions):03d}"
    owner = item.write.owner if isinstance(item, Prepared) else item.owner
    return f"{state_partition(owner.tenant_id, owner.user_id, partitions):03d}"


class PartitionLogic(StatefulBatchLogic[tuple[str, Item], Output, Snapshot]):
    """One state partition's events in order. Built without knowing which partition it is: the key comes with the first
    item, or with the snapshot."""

    def __init__(
        self, directory: StateDirectory, embedder: Embedder, rules: Rules, timer: Timer, resumed: Snapshot | None
    ) -> None:
        self._directory = directory
        self._rules = rules
        self._engine = Engine(embedder, self._rows, timer)
        self._opened = False
        if resumed is not None:
            self._open(resumed.partition)
            self._check_not_behind(resumed)

    @classmethod
    def builder(
        cls, directory: StateDirectory, embedder: Embedder, rules: Rules, timer: Timer = time.perf_counter
    ) -> Callable[[Snapshot | None], Self]:
        """What Bytewax's `stateful_batch` asks for."""
        return lambda resumed: cls(directory, embedder, rules, timer, resumed)

    # ------------------------------------------------------------------ Bytewax's calls

    def on_batch(self, values: list[tuple[str, Item]]) -> tuple[Iterable[Output], bool]:
        if not self._opened:
            self._open(int(values[0][0]))
        outputs: list[Output] = []
        done: dict[str, list[int]] = {}
        for _, item in values:
            position = _position(item)
            outputs += self._take(item)
            done.setdefault(position.source, []).append(position.offset)
        self._partition.commit()
        self._hot.shrink()
        outputs += [Done(source, tuple(offsets)) for source, offsets in done.items()]
        return outputs, StatefulBatchLogic.RETAIN

    def snapshot(self) -> Snapshot:
        """The database is synced first, so that it is always at or ahead of the snapshot."""
        self._partition.sync()
        return Snapshot(self._partition.number, dict(self._partition.applied))

    # ------------------------------------------------------------------ one item

    def _take(self, item: Item) -> list[Output]:
        match item:
            case Ask():
                return self._ask(item)
            case Refused():
                return self._refuse(item)
            case Prepared():
                return self._write(item)

    def _write(self, item: Prepared) -> list[Output]:
        record, event = item.write.record, item.write.event
        if self._partition.is_applied(record.position):
            return []
        view = View(self._partition, self._hot_owner(item.write.owner), item.write)
        try:
            receipt = apply(view, item, self._rules)
        except InvalidRecord as error:
            return self._refuse(Refused(record, error, STEP))
        view.keep()
        self._partition.move(record.position)
        return [Receipted(record.position, 0, receipt.model_dump_json().encode())] if event.receipt else []

    def _refuse(self, item: Refused) -> list[Output]:
        position = item.record.position
        if self._partition.is_applied(position):
            return []
        self._partition.move(position)
        outputs: list[Output] = [DeadLetter(item.record, item.error, item.step)]
        if item.query_id is not None:
            outputs.append(_failed(item, item.query_id))
        return outputs

    def _ask(self, item: Ask) -> list[Output]:
        self._partition.commit()
        query_id = item.query.id or str(item.record.position)
        try:
            response = self._answer(item, query_id)
        except InvalidRecord as error:
            return [_failed(Refused(item.record, error, STEP), query_id)]
        applied = [f"{source}:{offset}" for source, offset in sorted(self._partition.applied.items())]
        response = response.model_copy(update={"applied": applied})
        return [Answer(item.record.position, 0, response.model_dump_json(exclude_unset=True).encode())]

    # ------------------------------------------------------------------ queries

    def _answer(self, item: Ask, query_id: str) -> Response:
        query, hot = item.query, self._hot_owner(item.owner)
        now_ms = query.timestamp if query.timestamp is not None else item.record.append_ms
        match query:
            case Recall():
                return recall(self._engine, hot, query, query_id, now_ms)
            case MemoryGet():
                *_, latest = self._versions(hot, query.memory_id)
                return Response(query_id=query_id, status="ok", versions=[lookups.version(latest)])
            case MemoryHistory():
                versions = [lookups.version(row) for row in self._versions(hot, query.memory_id)]
                return Response(query_id=query_id, status="ok", versions=versions)
            case EpisodesList():
                found = lookups.episodes(
                    self._index(hot), lambda slots: self._rows(hot, slots), query, now_ms, self._rules.episode_gap_ms
                )
                return Response(query_id=query_id, status="ok", episodes=found)
            case UserStats():
                return Response(query_id=query_id, status="ok", stats=lookups.stats(self._index(hot), now_ms))
        raise lookups.unsupported(query.type)

    def _versions(self, hot: HotOwner, memory_id: str) -> list[MemoryRow]:
        """All versions of a memory, oldest first. Raises InvalidRecord where there is none."""
        name = hot.name(memory_id)
        stored = self._partition.get(keys.current(hot.key, name))
        if stored is None or (current := Current.decode(stored)).forgotten:
            raise lookups.missing(memory_id)
        wanted = [keys.row(hot.key, name, version) for version in range(current.version + 1)]
        return [MemoryRow.decode(value) for value in self._partition.get_many(wanted) if value is not None]

    def _rows(self, hot: HotOwner, slots: list[int]) -> list[MemoryRow | None]:
        """The current rows of index slots, in one batched read."""
        index = self._index(hot)
        wanted = [keys.row(hot.key, hot.name(index.ids[s]), int(index.facts["version"][s])) for s in slots]
        return [MemoryRow.decode(v) if v is not None else None for v in self._partition.get_many(wanted)]

    # ------------------------------------------------------------------ what is open

    def _open(self, number: int) -> None:
        self._opened = True
        self._partition = self._directory.partition(number)
        self._hot = self._directory.hot_owners()

    def _hot_owner(self, owner: Owner) -> HotOwner:
        return self._hot.get(owner, lambda: HotOwner(self._partition, owner))

    def _index(self, hot: HotOwner) -> OwnerIndex:
        return hot.search_index(self._engine.embedder.name, self._engine.embedder.dimension)

    def _check_not_behind(self, resumed: Snapshot) -> None:
        for source, offset in resumed.applied.items():
            stored = self._partition.applied.get(source, -1)
            if stored < offset:
                raise StateBehind(
                    f"state partition {resumed.partition} has applied {source} up to {stored}, but the recovery store "
                    f"says {offset}: events would be missing. Restore the directory, or replay the log into a new one"
                )


def _position(item: Item) -> Position:
    return (item.write.record if isinstance(item, Prepared) else item.record).position


def _failed(item: Refused, query_id: str) -> Answer:
    response = Response(query_id=query_id, status="error", error=ErrorBody.of(item.error))
    return Answer(item.record.position, 0, response.model_dump_json(exclude_unset=True).encode())
