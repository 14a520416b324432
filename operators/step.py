"""The state step: all stateful processing, item by item, with one atomic write per batch.

1. A memory event is applied (`writes.py`); a query is answered, or waits (`answers/queries.py`). An item that follows a
   large event waits until that is applied (`large.py`).
2. At the end of the batch, all effects, stored outputs and positions form one WriteBatch. Then owners are evicted from
   memory until the rest fits the byte budget.
3. A barrier starts the sync to disk without waiting. Its offsets are committed once the sync has returned."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Self

from recallflow.embedder import Embedder, TokenCounter
from recallflow.events import UserErase
from recallflow.operators import outbox
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.models import Models
from recallflow.operators.answers.parked_queries import ModelQueries
from recallflow.operators.answers.queries import Queries
from recallflow.operators.async_call import CallCompletion
from recallflow.operators.events import Ask, Batch, Item, Misrouted, Refused, Write, key_of_partition
from recallflow.operators.graph.rollout import Expansions
from recallflow.operators.large import Queue
from recallflow.operators.prepare import prepare
from recallflow.operators.recall.model_calls import ModelKind
from recallflow.operators.recall.shared import Shared
from recallflow.operators.rules import Rules
from recallflow.operators.writes import MemoryWrites
from recallflow.outputs import Ack, Output, OutputBarrier, Reroute
from recallflow.owner import Owner
from recallflow.records import Barrier, PartitionStart, Position, Signal
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import Owners


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of partition logic. They affect neither stored data nor ranking."""

    timer: Callable[[], float] = time.perf_counter  # seconds, for processing_time_ms
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # epoch, for the deadlines of waiting queries


class StateStep:
    """One open state partition."""

    def __init__(
        self,
        directory: StateDirectory,
        shared: Shared,
        rules: Rules,
        clocks: Clocks,
        describe_missing: Callable[[int], str],
        number: int,
        models: Models | None = None,
    ) -> None:
        """`describe_missing` describes the records that a state partition has not applied yet."""
        self._directory, self._rules, self._shared = directory, rules, shared
        self._partition = directory.partition(number)
        self._hot_owners = directory.hot_owners()
        owners = Owners(self._hot_owners, self._partition)
        self._embedder = shared.questions.embedder
        expansions = Expansions(rules.decisions, shared.gates, enabled=rules.graph_enabled)
        model_kinds = frozenset[ModelKind]() if models is None else models.kinds
        answerer = Answerer(self._partition, owners, shared, rules, clocks.timer, expansions, model_kinds)
        key = key_of_partition(number)
        missing = partial(describe_missing, number)
        model_queries = None if models is None else ModelQueries(models, key, clocks.timer, answerer)
        self._queries = Queries(
            self._partition, owners, answerer, expansions, rules, clocks.now_ms, missing, model_queries, shared.rotation
        )
        forget = partial(_forget, self._queries, shared, partial(directory.clean, self._partition))
        self._writes = MemoryWrites(self._partition, owners, rules, expansions, forget)
        writes, hot_owners = self._writes, self._hot_owners
        # The items of an owner wait while the owner's event or index has steps left.
        self._is_at_work = lambda owner: writes.is_at_work(owner) or hot_owners.is_at_work(owner)
        self._queue = Queue(self._is_at_work, rules.query_topic)
        self._received: dict[str, int] = {}
        # The completed offsets of each source at the last two barriers. The older barrier is certainly committed.
        self._completed: tuple[dict[str, int], dict[str, int]] = ({}, self._completed_now())

    @classmethod
    def opener(
        cls,
        directory: StateDirectory,
        embedder: Embedder,
        rules: Rules,
        clocks: Clocks | None = None,
        *,
        fallback: Embedder | None = None,
        exact_tokens: Callable[[], TokenCounter | None] = lambda: None,
        describe_missing: Callable[[int], str] = lambda _: "",
        models: Models | None = None,
    ) -> Callable[[int], Self]:
        """Return a function that opens state partitions, which share caches for answers. Arguments: see `Shared`."""
        clocks = clocks or Clocks()
        shared = Shared.of(embedder, clocks.timer, fallback, exact_tokens)
        return lambda number: cls(directory, shared, rules, clocks, describe_missing, number, models)

    def take(self, values: Iterable[Batch | CallCompletion | Signal]) -> list[Output]:
        """Process the inputs of the state partition: finished model calls, and batches."""
        inputs = [*values]
        finished = [value.call for value in inputs if isinstance(value, CallCompletion)]
        # Finished calls belong to earlier queries, so they come first.
        outputs = self._queries.receive(finished, self._is_at_work) if finished else []
        return outputs + self.apply(chain.from_iterable(value.items for value in inputs if isinstance(value, Batch)))

    def apply(self, items: Iterable[Item]) -> list[Output]:
        """Process one batch. Return the outputs of its items, then the acknowledgements of its records."""
        outputs: list[Output] = []
        offsets: dict[str, list[int]] = defaultdict(list)
        for item in items:
            position = item.record.position
            offsets[position.source].append(position.offset)
            if self._queue.must_wait(item):
                self._queue.hold(item)
            else:
                outputs += self._apply(item)
        self._received |= {source: found[-1] for source, found in offsets.items()}
        outputs += self.advance()
        # A log that ends has a single reader, so steps are not interleaved.
        while self._rules.input_ends and self._has_steps():
            outputs += self.advance()
        outputs += [Ack(source, tuple(found)) for source, found in offsets.items()]
        return outputs

    def advance(self, *, end: bool = False) -> list[Output]:
        """Do one step of each large event, process due items, and commit. At the `end`, all queries are answered."""
        outputs: list[Output] = []
        if self._has_steps():
            self._writes.advance()
            self._hot_owners.advance(self._partition)
            for item in self._queue.release():
                outputs += self._apply(item)
        outputs += self._queries.advance(self._is_at_work, end)
        self._partition.commit_due()
        self._hot_owners.pack_segments(self._embedder.name, self._embedder.dimension)
        self._hot_owners.shrink()
        return outputs

    def end(self) -> list[Output]:
        """Finish at the end of the input. Queries of a topic keep waiting."""
        outputs = self.advance(end=self._rules.input_ends)
        self.commit()
        return outputs

    def commit(self) -> None:
        """Commit the effects of answers, such as usage counters, which otherwise wait for the next write."""
        self._partition.commit()

    def due_ms(self) -> int | None:
        """Return the time (epoch ms) at which `advance` is due without a batch; 0 is immediately, None is never."""
        return 0 if self._has_steps() else self._queries.due_ms()

    def _has_steps(self) -> bool:
        return bool(self._queue) or self._writes.has_steps or self._hot_owners.has_steps(self._partition)

    def _apply(self, item: Item) -> Sequence[Output]:
        outputs = self._apply_here(item)
        if (moved_from := item.record.moved_from) is not None and not isinstance(item, Misrouted):
            self._writes.advance_past(moved_from)  # producers wait for the original position
        return outputs

    def _apply_here(self, item: Item) -> Sequence[Output]:
        match item:
            case Ask():
                answered = self._queries.ask(item)
                if answered is None:
                    self._queue.hold(item, first=True)
                return answered or []
            case Misrouted():
                self._writes.advance_past(item.record.position)
                moved = Reroute(item.record, item.owner.record_key, item.owning_partition)
                return [] if item.record.silent else [moved]
            case Refused():
                letters = self._writes.refuse(item)
                return [*letters, self._queries.failure(item)] if letters and item.query_id is not None else letters
            case Write():
                event = item.event
                covers = event.covers if isinstance(event, UserErase) else item.owner.__eq__
                answered = self._queries.finish(covers)
                outputs = self._writes.apply(item)
                if outputs is not None:
                    return [*answered, *outputs]
                self._queue.hold(item, first=True)
                return answered

    def begin_sync(self, barrier: Barrier) -> OutputBarrier:
        """Start the sync of all applied records at a barrier, and return the partition's progress. At the last barrier,
        only one earlier barrier may still wait for the disk or for deliveries; at other barriers, none may."""
        partition = self._partition
        partition.commit()
        # After the last barrier, `close` waits for the disk.
        is_synced = partition.sync_check() if barrier.last else self._directory.begin_sync(partition)
        if barrier.progress is not None:
            partition.stage_progress(barrier.progress)  # older progress only causes more records to be read again
        self._forget_delivered()
        found: dict[str, list[int]] = defaultdict(list)
        for item in [*self._unapplied(), *self._queries.waiting()]:
            found[item.record.position.source].append(item.record.position.offset)
        open_offsets = {source: tuple(sorted(offsets)) for source, offsets in found.items()}
        return OutputBarrier(partition.number, barrier.number, open_offsets, barrier.last, is_synced)

    def close(self) -> None:
        """Close the state partition, so that another process may open it. Unfinished records are read again there."""
        self._queries.close()
        self._directory.close_partition(self._partition.number)
        self._shared.candidates.drop_freed()  # candidates of evicted owners

    def hold_unfinished(self, source: str) -> None:
        """Let the unfinished events of a log wait, because the log cannot be read again."""
        for item in prepare(self._embedder, self._writes.unfinished(source)):
            self._queue.hold(item)

    def next_offset(self, source: str) -> int:
        """Return the offset after all applied and waiting records of a log."""
        waiting = (item.record.position for item in self._queue.items())
        offsets = [position.offset for position in waiting if position.source == source]
        return 1 + max(self._partition.applied.get(source, -1), *offsets, -1)

    def settled(self, source: str) -> tuple[int, str]:
        """Return the last offset up to which a log is applied and delivered, or -1, and the digest up to it."""
        offset, _, digest = (self._partition.get(keys.settled(source)) or b"-1").decode().partition(" ")
        return int(offset), digest

    def settle(self, position: Position, digest: str) -> None:
        """Store that a log is applied and delivered up to a position, and delete its stored outputs."""
        stale = outbox.delivered(self._partition, {position.source: position.offset})
        self._partition.stage(stale | {keys.settled(position.source): f"{position.offset} {digest}".encode()})
        self._partition.commit(needs_sync=False)

    def _forget_delivered(self) -> None:
        """Delete the stored outputs of records that were completed and delivered at the last barrier but one."""
        self._partition.stage(outbox.delivered(self._partition, self._completed[0]))
        self._queries.effects.forget_marks()
        self._partition.commit(needs_sync=False)
        self._completed = (self._completed[1], self._completed_now())

    def _unapplied(self) -> list[Item]:
        return [*self._queue.items(), *self._queries.held()]

    def _completed_now(self) -> dict[str, int]:
        completed = dict(self._received)
        for item in self._unapplied():
            source, offset = item.record.position.source, item.record.position.offset
            completed[source] = min(completed.get(source, offset - 1), offset - 1)
        return completed


def _forget(queries: Queries, shared: Shared, clean_files: Callable[[], None], owners: Collection[Owner]) -> None:
    """Drop the in-memory data of erased owners, and start to clean files."""
    queries.restart(owners)
    shared.candidates.drop_freed()
    clean_files()


class PartitionLogic:
    """The inputs of one state partition in order. `PartitionStart`, or else the first batch, opens the step."""

    def __init__(self, open_step: Callable[[int], StateStep]) -> None:
        self._open_step = open_step
        self._step: StateStep | None = None

    def on_batch(self, values: list[Batch | CallCompletion | Signal]) -> tuple[list[Output | OutputBarrier], bool]:
        """Return outputs, and whether the partition is closed."""
        outputs: list[Output | OutputBarrier] = []
        inputs: list[Batch | CallCompletion] = []
        for value in values:
            if isinstance(value, PartitionStart | Barrier):
                outputs += self._take(inputs)
                inputs = []
                if isinstance(value, PartitionStart):
                    self._step = self._open_step(value.partition)
                    continue
                outputs.append(self._opened.begin_sync(value))
                if value.last:
                    self._opened.close()
                    self._step = None
            else:
                inputs.append(value)
        outputs += self._take(inputs)
        return outputs, self._step is None

    def _take(self, values: list[Batch | CallCompletion]) -> list[Output]:
        if self._step is None:
            batches = [value for value in values if isinstance(value, Batch)]
            if not batches:  # completions of a closed step
                return []
            self._step = self._open_step(batches[0].partition)
        return self._step.take(values) if values else []

    def on_notify(self) -> list[Output]:
        return self._opened.advance()

    def on_eof(self) -> list[Output]:
        return [] if self._step is None else self._step.end()

    def due_ms(self) -> int | None:
        """Return the time (epoch ms) of the next `on_notify`; 0 is immediately, None is never."""
        return None if self._step is None else self._step.due_ms()

    @property
    def _opened(self) -> StateStep:
        if self._step is None:
            raise RuntimeError("the partition is not open")
        return self._step
