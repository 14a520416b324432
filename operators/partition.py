"""The state-partition step: everything stateful happens here, one event after the other, in one atomic write a batch.

1. An event at or below the applied position of its source was applied before a crash: nothing changes, and what it put
   out then is put out again, from the outbox.
2. A memory event is applied through a view of its own; what it stages counts only if it succeeds.
3. A query first commits what is pending, then reads what is committed. One that waits for a position is set aside until
   the position is applied or its time is up.
4. At the end of the batch all effects, outbox entries and positions become one WriteBatch; then owners over the byte
   budget leave memory.
5. A snapshot syncs the database first, so that the database is always at or ahead of what Bytewax remembers.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from bytewax.operators import StatefulBatchLogic

from recallflow.embedder import Embedder
from recallflow.errors import FieldProblem, InvalidRecord, StateBehind
from recallflow.operators import outbox
from recallflow.operators.answer import Answerer
from recallflow.operators.apply import Rules, apply
from recallflow.operators.events import Ask, Item, Prepared, Refused
from recallflow.operators.outbox import Kept
from recallflow.operators.view import View
from recallflow.operators.waiting import Waiting
from recallflow.outputs import Answer, DeadLetter, Done, Output, Receipted
from recallflow.owner import Owner, state_partition
from recallflow.records import Position, Record
from recallflow.responses import ErrorBody, Response, Warn
from recallflow.state.directory import StateDirectory

STEP = "state"


@dataclass(frozen=True, slots=True)
class Clocks:
    """The times that partition logic is given: neither changes what is stored or how it ranks."""

    timer: Callable[[], float] = time.perf_counter  # seconds, for processing_time_ms
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # epoch, for the deadlines of waiting queries


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What Bytewax keeps of a state partition. `received`: the last offset of each source that came by in this run;
    `waiting`: waiting queries, sealed."""

    partition: int
    applied: dict[str, int]
    received: dict[str, int]
    waiting: tuple[bytes, ...]


def partition_key(item: Item, partitions: int) -> str:
    """The Bytewax key of an item's state partition, zero-padded so that keys sort as numbers. A refused record goes
    where its log's key says, so that its position moves for the user who waits for it."""
    if isinstance(item, Refused):
        tenant_id, _, user_id = (item.record.key or b"").decode(errors="replace").partition("/")
        return f"{state_partition(tenant_id, user_id, partitions):03d}"
    owner = item.write.owner if isinstance(item, Prepared) else item.owner
    return f"{state_partition(owner.tenant_id, owner.user_id, partitions):03d}"


class PartitionLogic(StatefulBatchLogic[tuple[str, Item], Output, Snapshot]):
    """One state partition's events in order. Built without knowing which partition it is: the number comes with the
    first item, or with the snapshot."""

    def __init__(
        self, directory: StateDirectory, embedder: Embedder, rules: Rules, clocks: Clocks, resumed: Snapshot | None
    ) -> None:
        self._directory = directory
        self._embedder = embedder
        self._rules = rules
        self._clocks = clocks
        self._opened = False
        self._received: dict[str, int] = {}
        # Received offsets as of the last two snapshots: the older one's epoch is surely committed by the next.
        self._snapshots: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._waiting: list[Waiting] = []
        if resumed is not None:
            self._resume(resumed)

    @classmethod
    def builder(
        cls, directory: StateDirectory, embedder: Embedder, rules: Rules, clocks: Clocks | None = None
    ) -> Callable[[Snapshot | None], Self]:
        """What Bytewax's `stateful_batch` asks for."""
        return lambda resumed: cls(directory, embedder, rules, clocks or Clocks(), resumed)

    # ------------------------------------------------------------------ Bytewax's calls

    def on_batch(self, values: list[tuple[str, Item]]) -> tuple[Iterable[Output], bool]:
        if not self._opened:
            self._open(int(values[0][0]))
        outputs: list[Output] = []
        done: dict[str, list[int]] = {}
        for _, item in values:
            position = _record(item).position
            outputs += self._take(item)
            self._received[position.source] = position.offset
            done.setdefault(position.source, []).append(position.offset)
        outputs += self._settle()
        outputs += [Done(source, tuple(offsets)) for source, offsets in done.items()]
        return outputs, StatefulBatchLogic.RETAIN

    def on_notify(self) -> tuple[Iterable[Output], bool]:
        return self._settle(), StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[Output], bool]:
        """A log that ends brings no position any more: what waits is answered as it is. A topic's queries wait on."""
        outputs = self._settle(give_up=self._rules.input_ends) if self._opened else []
        return outputs, StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        if not self._waiting:
            return None
        return datetime.fromtimestamp(min(w.deadline_ms for w in self._waiting) / 1000, UTC)

    def snapshot(self) -> Snapshot:
        outbox.prune(self._partition, self._snapshots[0])
        self._snapshots = (self._snapshots[1], dict(self._received))
        self._partition.commit()
        self._partition.sync()
        seal = self._partition.keyring.seal
        waiting = tuple(seal(b"waiting", query.encode()) for query in self._waiting)
        return Snapshot(self._partition.number, dict(self._partition.applied), dict(self._received), waiting)

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
        record = item.write.record
        if self._partition.is_applied(record.position):
            return [] if record.silent else [*outbox.kept(self._partition, record)]
        outputs: list[Kept] = []
        try:
            # Before the view, which moves the ingestion clock: queries come in no order with memories.
            self._check_topic(item)
            view = View(self._partition, self._answerer.hot_owner(item.write.owner), item.write)
            receipt = apply(view, item, self._rules)
        except InvalidRecord as error:
            outputs.append(DeadLetter(record, 0, error, STEP))
        else:
            view.keep()
            if item.write.event.receipt:
                outputs.append(Receipted(record.position, 0, _key(item), receipt.model_dump_json().encode()))
        self._move(record.position)
        if record.silent:
            return []
        outbox.keep(self._partition, record.position, outputs)
        return [*outputs]

    def _refuse(self, item: Refused) -> list[Output]:
        # Computed from the record alone, so there is nothing to keep: it comes out the same again.
        self._move(item.record.position)
        if item.record.silent:
            return []
        outputs: list[Output] = [DeadLetter(item.record, 0, item.error, item.step)]
        if item.query_id is not None:
            outputs.append(self._failed(item.record, 1, _key(item), item.query_id, item.error))
        return outputs

    def _move(self, position: Position) -> None:
        """Positions are about memories: a query leaves nothing behind that a rebuild would have to read again."""
        if position.topic != self._rules.query_topic:
            self._partition.move(position)

    def _check_topic(self, item: Prepared) -> None:
        if item.write.record.position.topic == self._rules.query_topic:
            problem = f"{item.write.event.type} changes memory: send it to the memory topic, where its order holds"
            raise InvalidRecord("invalid_event", [FieldProblem("type", problem)])

    def _ask(self, ask: Ask) -> list[Output]:
        if ask.record.silent:
            return []
        waiting = Waiting.of(ask)
        if waiting is None or not waiting.missing(self._partition.applied):
            return [self._answer(ask, [])]
        self._waiting.append(waiting)
        return []

    def _answer(self, ask: Ask, warnings: list[Warn]) -> Answer:
        self._partition.commit()
        query_id = ask.query.id or str(ask.record.position)
        try:
            self._check_reply(ask)
            response = self._answerer.answer(ask, query_id)
        except InvalidRecord as error:
            return self._failed(ask.record, 0, _key(ask), query_id, error)
        changes: dict[str, object] = {"applied": self._applied()}
        if warnings:
            changes |= {"warnings": [*response.warnings, *warnings], "status": "degraded"}
        body = response.model_copy(update=changes).model_dump_json(exclude_unset=True).encode()
        return Answer(ask.record.position, 0, _key(ask), body, ask.query.reply_to)

    def _applied(self) -> list[str]:
        return [f"{source}:{offset}" for source, offset in sorted(self._partition.applied.items())]

    def _failed(self, record: Record, number: int, key: bytes, query_id: str, error: InvalidRecord) -> Answer:
        response = Response(query_id=query_id, status="error", error=ErrorBody.of(error), applied=self._applied())
        return Answer(record.position, number, key, response.model_dump_json(exclude_unset=True).encode())

    def _check_reply(self, ask: Ask) -> None:
        wanted, known = ask.query.reply_to, self._rules.reply_topics
        if wanted is None or known is None:
            return
        if wanted.topic not in known:
            problem = FieldProblem(
                "reply_to.topic", f"not among the reply topics: {', '.join(sorted(known)) or 'none'}"
            )
            raise InvalidRecord("invalid_event", [problem])
        if wanted.partition is not None and wanted.partition >= known[wanted.topic]:
            problem = FieldProblem("reply_to.partition", f"{wanted.topic} has {known[wanted.topic]} partitions")
            raise InvalidRecord("invalid_event", [problem])

    def _settle(self, give_up: bool = False) -> list[Output]:
        """Ends a batch: commits, answers waiting queries whose positions are there or whose time is up, and lets go of
        owners over the budget."""
        self._partition.commit()
        outputs: list[Output] = []
        if self._waiting:
            now_ms, waiting = self._clocks.now_ms(), self._waiting
            self._waiting = []
            for query in waiting:
                if query.missing(self._partition.applied) and now_ms < query.deadline_ms and not give_up:
                    self._waiting.append(query)
                else:
                    outputs.append(self._answer(query.ask, query.stale(self._partition.applied)))
        self._hot_owners.shrink()
        return outputs

    # ------------------------------------------------------------------ opening

    def _open(self, number: int) -> None:
        self._opened = True
        self._partition = self._directory.partition(number)
        self._hot_owners = self._directory.hot_owners()
        self._answerer = Answerer(
            self._partition, self._hot_owners, self._embedder, self._rules.episode_gap_ms, self._clocks.timer
        )

    def _resume(self, resumed: Snapshot) -> None:
        self._open(resumed.partition)
        if not self._directory.rebuilding:
            self._check_not_behind(resumed)
        self._received = dict(resumed.received)
        self._snapshots = ({}, dict(resumed.received))
        unseal = self._partition.keyring.open
        self._waiting = [Waiting.decode(unseal(b"waiting", sealed)) for sealed in resumed.waiting]

    def _check_not_behind(self, resumed: Snapshot) -> None:
        for source, offset in resumed.applied.items():
            stored = self._partition.applied.get(source, -1)
            if stored < offset:
                raise StateBehind(
                    f"state partition {resumed.partition} has applied {source} up to {stored}, but the recovery store "
                    f"says {offset}: events would be missing. Read them again: recallflow state rebuild"
                )


def _record(item: Item) -> Record:
    return item.write.record if isinstance(item, Prepared) else item.record


def _key(item: Item) -> bytes:
    """The record's key; where it has none, the owner's as a producer would have made it."""
    record = _record(item)
    if record.key is not None or isinstance(item, Refused):
        return record.key or b""
    return owner_key(item.write.owner if isinstance(item, Prepared) else item.owner)


def owner_key(owner: Owner) -> bytes:
    """The Kafka key of an owner's records."""
    return f"{owner.tenant_id}/{owner.user_id}".encode()
