"""The state-partition step: everything stateful happens here, one event after the other, in one atomic write a batch.

1. An event at or below the applied position of its source was applied before a crash: nothing changes, and what it put
   out then is put out again, from the outbox.
2. A memory event is applied through a view of its own; what it stages counts only if it succeeds. Where our own code
   fails at an event, it is refused, and its owner read from the store again.
3. A query first commits what is pending, then reads what is committed; what its answer leaves behind joins the
   transaction. One that waits for a position is set aside until the position is applied or its time is up.
4. At the end of the batch all effects, outbox entries and positions become one WriteBatch; then owners over the byte
   budget leave memory.
5. A snapshot syncs the database first, so that the database is always at or ahead of what Bytewax remembers.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Self

import orjson
from bytewax.operators import StatefulBatchLogic

from recallflow.embedder import Embedder, TokenCounter
from recallflow.errors import FieldProblem, InvalidRecord, StateBehind
from recallflow.events import MemoryFeedback
from recallflow.operators import outbox, reply
from recallflow.operators.answer import Answerer
from recallflow.operators.apply import Rules, apply
from recallflow.operators.decode import decode
from recallflow.operators.effects import Marks, leave
from recallflow.operators.events import Ask, Batch, Item, Refused, Write
from recallflow.operators.graph.rollout import Expansions
from recallflow.operators.guard import once, twice
from recallflow.operators.outbox import Kept
from recallflow.operators.past import Pasts
from recallflow.operators.prepare import prepare
from recallflow.operators.queue import Queue
from recallflow.operators.recall.pipeline import Effects
from recallflow.operators.recall.shared import Shared
from recallflow.operators.reply import key_of
from recallflow.operators.snapshot import Snapshot
from recallflow.operators.view import View
from recallflow.operators.waiting import Waiting, decode_record, encode_record
from recallflow.operators.work import Work
from recallflow.outputs import Answer, DeadLetter, Done, Output, Receipted, Verdict
from recallflow.owner import Owner
from recallflow.queries import Recall, ReplyTo
from recallflow.records import Position, Record
from recallflow.responses import Warn
from recallflow.state.directory import StateDirectory

STEP = "state"


@dataclass(frozen=True, slots=True)
class Clocks:
    """The times that partition logic is given: neither changes what is stored or how it ranks."""

    timer: Callable[[], float] = time.perf_counter  # seconds, for processing_time_ms
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # epoch, for the deadlines of waiting queries


class PartitionLogic(StatefulBatchLogic[Batch, Output, Snapshot]):
    """One state partition's events in order. Built without knowing which partition it is: the number comes with the
    first item, or with the snapshot."""

    def __init__(
        self,
        directory: StateDirectory,
        shared: Shared,
        rules: Rules,
        clocks: Clocks,
        behind: Callable[[], str],
        resumed: Snapshot | None,
    ) -> None:
        self._directory = directory
        self._shared = shared
        self._rules = rules
        self._clocks = clocks
        self._behind = behind
        self._opened = False
        self._received: dict[str, int] = {}
        # Received offsets as of the last two snapshots: the older one's epoch is surely committed by the next.
        self._snapshots: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._waiting: list[Waiting] = []
        self._lost: dict[str, int] = {}
        if resumed is not None:
            self._resume(resumed)

    @classmethod
    def builder(
        cls,
        directory: StateDirectory,
        embedder: Embedder,
        rules: Rules,
        clocks: Clocks | None = None,
        *,
        fallback: Embedder | None = None,
        exact_tokens: Callable[[], TokenCounter | None] = lambda: None,
        behind: Callable[[], str] = lambda: "",
    ) -> Callable[[Snapshot | None], Self]:
        """What Bytewax's `stateful_batch` asks for. `fallback` and `exact_tokens`: see `Shared`. `behind` says
        what of the log answers do not know yet, empty where they know all of it."""
        given = clocks or Clocks()
        shared = Shared.of(embedder, given.timer, fallback, exact_tokens)
        return lambda resumed: cls(directory, shared, rules, given, behind, resumed)

    # ------------------------------------------------------------------ Bytewax's calls

    def on_batch(self, values: list[Batch]) -> tuple[Iterable[Output], bool]:
        if not self._opened:
            self._open(values[0].partition)
        outputs: list[Output] = []
        done: dict[str, list[int]] = {}
        for item in chain.from_iterable(batch.items for batch in values):
            position = item.record.position
            self._received[position.source] = position.offset
            outputs += self._take(item)
            done.setdefault(position.source, []).append(position.offset)
        outputs += self._settle()
        # A log that ends is answered line by line: nobody else is there to have a turn, and what is through is through
        # before a snapshot says so.
        while self._queue and self._rules.input_ends:
            outputs += self._settle()
        outputs += [Done(source, tuple(offsets)) for source, offsets in done.items()]
        return outputs, StatefulBatchLogic.RETAIN

    def on_notify(self) -> tuple[Iterable[Output], bool]:
        return self._settle(), StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[Output], bool]:
        """A log that ends brings no position any more: what waits is answered as it is. A topic's queries wait on."""
        return self._settle(give_up=self._rules.input_ends) if self._opened else [], StatefulBatchLogic.RETAIN

    def notify_at(self) -> datetime | None:
        if self._opened and (self._queue or self._pasts):
            return datetime.fromtimestamp(0, UTC)  # at once
        if not self._waiting:
            return None
        return datetime.fromtimestamp(min(w.deadline_ms for w in self._waiting) / 1000, UTC)

    def snapshot(self) -> Snapshot:
        self._partition.commit()
        self._directory.sync()  # of all partitions, at the first snapshot of an epoch
        outbox.prune(self._partition, self._snapshots[0])
        self._partition.stage(self._marks.age())
        self._partition.commit()  # nobody misses it if it is lost
        held = [*self._queue.records(), *self._pasts.records()]
        self._snapshots = (self._snapshots[1], self._through(held))
        seal = self._partition.keyring.seal
        waiting = tuple(seal(b"waiting", query.encode()) for query in self._waiting)
        aside = tuple(seal(b"held", orjson.dumps(encode_record(record))) for record in held)
        applied, received = dict(self._partition.applied), dict(self._received)
        return Snapshot(self._partition.number, applied, received, waiting, self._owed(), aside)

    def _through(self, held: Iterable[Record]) -> dict[str, int]:
        """Up to where each source is through: what waits comes again with the snapshot."""
        through = dict(self._received)
        for record in held:
            source, offset = record.position.source, record.position.offset
            through[source] = min(through.get(source, offset - 1), offset - 1)
        return through

    # ------------------------------------------------------------------ one item

    def _take(self, item: Item) -> list[Output]:
        if self._queue.must_wait(item):
            self._queue.hold(item)
            return []
        return self._do(item)

    def _do(self, item: Item) -> list[Output]:
        match item:
            case Ask():
                return self._ask(item)
            case Refused():
                return self._refuse(item)
            case Write():
                return self._write(item)

    def _write(self, write: Write) -> list[Output]:
        record = write.record
        if self._partition.is_applied(record.position):
            return [] if record.silent else [*outbox.kept(self._partition, record)]
        view: View | None = None
        drop = partial(self._drop, write.owner)
        work = self._queue.taken(write)
        try:
            self._check_topic(write)
            if work is not None and work.error is not None:
                raise work.error
            if work is None and twice(STEP, record.position, self._queue.begin, write, undo=drop):
                return []
            view, outputs = twice(STEP, record.position, self._apply, write, work, undo=drop)
            view.stage()
        except InvalidRecord as error:
            outputs = [DeadLetter(record, 0, error, STEP)]
        self._queue.end(write.owner)
        self._move(record.position)
        if not record.silent:
            outbox.keep(self._partition, record.position, outputs)
        if view is not None:
            with suppress(InvalidRecord):  # it is applied, whatever memory makes of it
                once(STEP, record.position, view.follow, undo=drop)
            self._hear(write)
        return [] if record.silent else [*outputs]

    def _hear(self, write: Write) -> None:
        """Feedback is about answers too: about those that the graph added to."""
        if isinstance(write.event, MemoryFeedback):
            event, at_ms = write.event, write.record.append_ms
            self._answerer.expansions.feedback(write.owner, event.memory_id, event.useful, at_ms)

    def _apply(self, write: Write, work: Work | None) -> tuple[View, list[Kept]]:
        change = None if work is None else work.change
        view = View(self._partition, self._answerer.hot_owner(write.owner), write, change)
        receipt = apply(view, write, self._rules, work)
        if receipt is None:
            return view, []
        return view, [Receipted(write.record.position, 0, key_of(write), receipt.model_dump_json().encode())]

    def _drop(self, owner: Owner) -> None:
        """Takes an owner out of memory, who may be half changed there; the store has all of the events before."""
        self._partition.commit()
        self._hot_owners.drop(owner)

    def _refuse(self, item: Refused) -> list[Output]:
        record = item.record
        letter = DeadLetter(record, 0, item.error, item.step)
        # What a record's own fields say comes out the same again; our own code may fail at it once and not again, and
        # an operator says --skip once.
        kept = item.error.code in ("internal_error", "skipped") and item.query_id is None
        if kept and self._partition.is_applied(record.position):
            return [] if record.silent else [*outbox.kept(self._partition, record)]
        self._move(record.position)
        if record.silent:
            return []
        if kept:
            outbox.keep(self._partition, record.position, [letter])
        if item.query_id is None:
            return [letter]
        return [letter, self._failed(item, 1, item.query_id, item.error)]

    def _move(self, position: Position) -> None:
        """Positions are about memories: a query leaves nothing behind that a rebuild would have to read again."""
        if position.topic != self._rules.query_topic:
            self._partition.move(position)

    def _check_topic(self, write: Write) -> None:
        if write.record.position.topic == self._rules.query_topic:
            problem = f"{write.event.type} changes memory: send it to the memory topic, where its order holds"
            raise InvalidRecord("invalid_event", [FieldProblem("type", problem)])

    def _ask(self, ask: Ask) -> list[Output]:
        if ask.record.silent:
            return []
        waiting = Waiting.of(ask)
        if waiting is None or not waiting.missing(self._partition.applied):
            return self._answer(ask, [])
        if self._rules.input_ends:  # line by line: what is not applied at its turn is behind it, or nowhere
            return self._answer(ask, waiting.stale(self._partition.applied))
        self._waiting.append(waiting)
        return []

    def _answer(self, ask: Ask, warnings: list[Warn]) -> list[Output]:
        """Answers a query; one about the past of a large owner is set aside until that is built, unless its line waits
        for it."""
        self._partition.commit()
        with suppress(InvalidRecord):  # where our own code fails at it, the answer says so
            if not self._rules.input_ends and once(STEP, ask.record.position, self._pasts.begin, ask, warnings):
                return []
        return self._answer_now(ask, warnings)

    def _answer_now(self, ask: Ask, warnings: list[Warn]) -> list[Output]:
        record, query_id, drop = ask.record, ask.query.id or str(ask.record.position), partial(self._drop, ask.owner)
        reply_to: ReplyTo | None = None
        try:
            reply_to = reply.checked(ask.query.reply_to, self._rules.reply_topics)
            answer, effects = twice(STEP, record.position, self._respond, ask, query_id, warnings, reply_to, undo=drop)
        except InvalidRecord as error:
            failed = self._failed(ask, 0, query_id, error, reply_to, self._catching_up())
            return [failed] if error.code != "internal_error" else [failed, DeadLetter(record, 1, error, STEP)]
        if effects is not None:
            with suppress(InvalidRecord):  # it is answered, whatever becomes of its effects
                hot = self._answerer.hot_owner(ask.owner)
                once(STEP, record.position, leave, self._partition, self._marks, hot, ask, effects, undo=drop)
        verdict = self._answerer.expansions.verdict(ask.owner.tenant_id, record.append_ms) if _expands(ask) else None
        return [answer] if verdict is None else [answer, Verdict(record.position, 2, record.append_ms, verdict)]

    def _respond(
        self, ask: Ask, query_id: str, warnings: list[Warn], reply_to: ReplyTo | None
    ) -> tuple[Answer, Effects | None]:
        warnings = [*warnings, *self._rebuilding(), *self._catching_up()]
        response, effects = self._answerer.answer(ask, query_id)
        if warnings:
            response = response.warned(warnings)
        response = response.model_copy(update={"applied": self._applied()})
        return reply.answer(ask.record.position, 0, key_of(ask), response, reply_to), effects

    def _owed(self) -> dict[str, int]:
        """The sources of which this state partition had applied more than it has now, and how much."""
        applied = self._partition.applied
        return {source: offset for source, offset in self._lost.items() if applied.get(source, -1) < offset}

    def _rebuilding(self) -> list[Warn]:
        behind = [f"{s} is {o - self._partition.applied.get(s, -1)} records behind" for s, o in self._owed().items()]
        return [Warn(code="rebuilding", detail="; ".join(behind))] if behind else []

    def _catching_up(self) -> list[Warn]:
        return [Warn(code="catching_up", detail=behind)] if (behind := self._behind()) else []

    def _applied(self) -> list[str]:
        return [f"{source}:{offset}" for source, offset in sorted(self._partition.applied.items())]

    def _failed(
        self,
        item: Item,
        number: int,
        query_id: str,
        error: InvalidRecord,
        reply_to: ReplyTo | None = None,
        warnings: Iterable[Warn] = (),
    ) -> Answer:
        response = reply.failure(query_id, error, self._applied(), warnings)
        return reply.answer(item.record.position, number, key_of(item), response, reply_to)

    def _settle(self, give_up: bool = False) -> list[Output]:
        """Ends a batch: commits, answers waiting queries whose positions are there or whose time is up, and lets go of
        owners over the budget."""
        self._partition.commit()
        outputs: list[Output] = []
        if self._queue:
            outputs += self._go_on()
        if self._pasts and (asked := self._pasts.advance()) is not None:
            outputs += self._answer_now(asked.ask, asked.warnings)
            self._pasts.end(asked)
        if self._waiting:
            now_ms, waiting = self._clocks.now_ms(), self._waiting
            self._waiting = []
            for query in waiting:
                missing = query.missing(self._partition.applied) and now_ms < query.deadline_ms
                if self._queue.is_at_work(query.ask.owner) or (missing and not give_up):
                    self._waiting.append(query)
                else:
                    outputs += self._answer(query.ask, query.stale(self._partition.applied))
            self._partition.commit()  # what their answers left behind: an owner leaves memory with nothing pending
        self._answerer.keep_segments()
        self._hot_owners.shrink()
        return outputs

    def _go_on(self) -> list[Output]:
        """One step of an event that takes several, and what no longer has to wait for one."""
        self._queue.advance(self._drop)
        outputs: list[Output] = []
        for item in self._queue.released():
            outputs += self._do(item)
        self._partition.commit()
        return outputs

    # ------------------------------------------------------------------ opening

    def _open(self, number: int) -> None:
        self._opened = True
        self._partition = self._directory.partition(number)
        self._hot_owners = self._directory.hot_owners()
        self._marks = Marks(self._partition)
        self._answerer = Answerer(
            self._partition,
            self._hot_owners,
            self._shared,
            self._rules.episode_gap_ms,
            self._clocks.timer,
            self._rules.decisions,
            Expansions(self._rules.decisions, number, enabled=self._rules.graph_enabled),
        )
        self._queue = Queue(self._partition, self._answerer.hot_owner, self._rules)
        self._pasts = Pasts(self._answerer.hot_owner, self._shared.questions.embedder, self._rules.episode_gap_ms)

    def _resume(self, resumed: Snapshot) -> None:
        self._open(resumed.partition)
        if not self._directory.rebuilding:
            self._check_not_behind(resumed)
        # A run that is killed while it rebuilds leaves snapshots that know less than the first one did.
        self._lost = resumed.applied | resumed.owed
        self._lost = self._owed()
        self._received = dict(resumed.received)
        unseal = self._partition.keyring.open
        held = [decode_record(orjson.loads(unseal(b"held", sealed))) for sealed in resumed.held]
        for item in prepare(self._shared.questions.embedder, [decode(record, self._rules.skips) for record in held]):
            self._queue.hold(item)
        self._snapshots = ({}, self._through(held))
        self._waiting = [Waiting.decode(unseal(b"waiting", sealed)) for sealed in resumed.waiting]

    def _check_not_behind(self, resumed: Snapshot) -> None:
        for source, offset in resumed.applied.items():
            stored = self._partition.applied.get(source, -1)
            if stored < offset:
                raise StateBehind(
                    f"state partition {resumed.partition} has applied {source} up to {stored}, but the recovery store "
                    f"says {offset}: events would be missing. Read them again: recallflow state rebuild"
                )


def _expands(ask: Ask) -> bool:
    return isinstance(ask.query, Recall) and ask.query.strategy == "hybrid_graph"
