"""The embedded engine: an open state directory with its models, and the loop that applies records to it.

The applied position of each state partition is committed in the same write batch as the effects. When a log is read
again, records up to that position change nothing. A file is read again from the position up to which its outputs were
delivered."""

import contextlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.local_inputs import Delivered, Delivery, LocalCalls, batched, split_batches
from recallflow.connectors.model_embedders import load_tiktoken
from recallflow.control import ControlHistory
from recallflow.embedder import Embedder
from recallflow.errors import LogChanged
from recallflow.flows.gc_policy import collect_due_garbage, engine_process
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.models import BatchEmbedder, open_embedder, open_question_models
from recallflow.flows.runner import now_ms
from recallflow.flows.settings import Settings
from recallflow.llm import RemoteEmbedder
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import CallCompletion, Completions, Runtime
from recallflow.operators.events import Batch, Item, by_partition, decode, key_of_partition, partition_by_owner
from recallflow.operators.prepare import prepare
from recallflow.operators.rules import Rules
from recallflow.operators.step import StateStep
from recallflow.outputs import Ack, Answer, AuditEntry, DeadLetter, Output, ReceiptOutput, Reroute, TaskRequest, Verdict
from recallflow.parsing import ends_batch
from recallflow.records import Position, Record
from recallflow.responses import ErrorBody
from recallflow.state.description import SINGLE_RUN_LOG, adopt_partition_count
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest

CompleteItems = Callable[[Sequence[Item]], list[Item]]  # completes prepared items before they are applied


def state_opener(
    directory: StateDirectory,
    embedder: Embedder,
    rules: Rules,
    models: Models | None = None,  # models that queries may call
    describe_missing: Callable[[int], str] = lambda _: "",
) -> Callable[[int], StateStep]:
    """Return a function that opens state partitions. `describe_missing` describes the unapplied records of one."""
    return StateStep.opener(
        directory, embedder, rules, fallback=load_embedder("hash"), exact_tokens=load_tiktoken,
        describe_missing=describe_missing, models=models,
    )  # fmt: skip


class StateLoop:
    """All state partitions of an engine's directory, for the thread that creates it."""

    def __init__(
        self,
        engine: "EmbeddedEngine",
        rules: Rules,
        *,
        decode: Callable[[Record], Item] = decode,  # decodes and authorises a record
        observe: Callable[[Output], None] = lambda _: None,
        complete: CompleteItems | None = None,
    ) -> None:
        directory, self._models, self._embedder = engine.directory, engine.query_models, engine.embedder
        self._directory, self._decisions, self._observe = directory, rules.decisions, observe
        self._decode, self._complete = decode, complete
        partitions = directory.fingerprint.partitions
        self._partition_of = partial(partition_by_owner, partitions=partitions)
        open_step = state_opener(directory, engine.embedder, rules, engine.query_models)
        numbers = range(partitions) if directory.creates_missing else directory.existing_numbers()
        self._steps = {key_of_partition(number): open_step(number) for number in numbers}
        # The interval after which commits are synced, and the time of the next sync. Temporary directories need none.
        self._sync_s = None if engine.is_temporary else engine.settings.sync_ms / 1000
        self._sync_at_s = float("inf")

    def continue_logs(self, topics: Iterable[str]) -> dict[str, int]:
        """Load the unfinished events of logs that cannot be read again. Return the first unused offset of each log."""
        sources = {topic: f"{topic}:0" for topic in topics}
        steps = self._steps.values()
        for step in steps:
            for source in sources.values():
                step.hold_unfinished(source)
        return {topic: max((step.next_offset(one) for step in steps), default=0) for topic, one in sources.items()}

    def resume_point(self, topic: str) -> tuple[int, str]:
        """Return the lowest offset that may be unapplied or undelivered, and the digest of the lines before it."""
        offset, digest = min((step.settled(f"{topic}:0") for step in self._steps.values()), default=(-1, ""))
        return offset + 1, digest

    def apply(self, read: Sequence[Record | CallCompletion]) -> list[Delivered | Ack]:
        """Apply and commit a batch. Return its outputs."""
        collect_due_garbage()  # between batches, when few objects are alive
        inputs: dict[str, list[Batch | CallCompletion]] = defaultdict(list)
        for one in read:
            if isinstance(one, CallCompletion):
                inputs[one.key].append(one)
        for key, batch in by_partition(self._prepare(read), self._partition_of):
            inputs[key].append(batch)
        for unknown in inputs.keys() - self._steps.keys():
            self._directory.partition(int(unknown))  # raises StateError
        outputs = [output for key, values in inputs.items() for output in self._steps[key].take(values)]
        if self._sync_s is not None:
            self._sync_at_s = min(self._sync_at_s, time.monotonic() + self._sync_s)
        return self._visible_outputs(outputs)

    def advance(self) -> list[Delivered | Ack]:
        """Take one step in each state partition that is due. Raise StorageError if the directory is broken."""
        if (error := self._directory.storage_failure) is not None:
            raise error
        due_ms = now_ms()
        due = [step for step in self._steps.values() if (at := step.due_ms()) is not None and at <= due_ms]
        return self._visible_outputs([output for step in due for output in step.advance()])

    def is_sync_due(self) -> bool:
        return time.monotonic() >= self._sync_at_s

    def begin_sync(self) -> None:
        for step in self._steps.values():
            step.commit()
        are_all_started = self._directory.begin_syncs()
        self._sync_at_s = float("inf") if are_all_started else time.monotonic() + (self._sync_s or 0.0)

    def settle(self, position: Position, digest: str) -> None:
        """Sync the directory, and store the last position of a log that need not be read again, with the digest of all
        lines up to that position."""
        for step in self._steps.values():
            step.commit()
        self._directory.sync()
        for step in self._steps.values():
            step.settle(position, digest)
        self._sync_at_s = float("inf")

    def idle_s(self) -> float | None:
        """Return the time until the next step or sync; None if there is none."""
        due_ms = [at for step in self._steps.values() if (at := step.due_ms()) is not None]
        idle_s = [(at - time.time_ns() / 1_000_000) / 1_000 for at in due_ms]
        if self._sync_at_s < float("inf"):
            idle_s.append(self._sync_at_s - time.monotonic())
        return max(0.0, min(idle_s)) if idle_s else None

    def end(self) -> list[Delivered | Ack]:
        outputs = self._visible_outputs([output for step in self._steps.values() for output in step.end()])
        if self._sync_s is not None:
            self._directory.sync()
        return outputs

    def serve(self, calls: LocalCalls) -> None:
        """Apply and answer the records of callers until they end."""
        calls.begin(self.continue_logs(calls.topics))
        with contextlib.suppress(StopIteration):
            while True:
                calls.wake.clear()
                read: list[Record | CallCompletion] = [*calls.take(), *self._finished()]
                calls.deliver(self.apply(read) if read else [])
                calls.deliver(self.advance())
                if self.is_sync_due():
                    self.begin_sync()
                if not read:
                    calls.wake.wait(self.idle_s())
        calls.deliver(self.end())

    def _finished(self) -> list[CallCompletion]:
        return [] if self._models is None else self._models.runtime.completions.pop_all()

    def _prepare(self, read: Sequence[Record | CallCompletion]) -> list[Item]:
        items = prepare(self._embedder, [self._decode(one) for one in read if isinstance(one, Record)])
        return items if self._complete is None else self._complete(items)

    def _visible_outputs(self, outputs: Iterable[Output]) -> list[Delivered | Ack]:
        """Observe all outputs. Return those that callers use. Verdicts apply at once: no control topic returns them."""
        visible: list[Delivered | Ack] = []
        for output in outputs:
            self._observe(output)
            if isinstance(output, Verdict):
                self._decisions.add(output.at_ms, output.event)
            elif not isinstance(output, TaskRequest | AuditEntry | Reroute):
                visible.append(output)
        return visible


@dataclass(slots=True)
class Processed:
    """Outputs: responses in query order, receipts in event order, and rejected lines."""

    responses: list[dict[str, Any]] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: int, output: Delivered) -> None:
        match output:
            case Answer():
                self.responses.append(orjson.loads(output.body))
            case ReceiptOutput():
                self.receipts.append(orjson.loads(output.body))
            case DeadLetter():
                self.rejected.append(rejection(line, output))


def process(
    lines: Iterable[bytes],
    settings: Settings,
    state_dir: Path | None = None,
    decisions: ControlHistory | None = None,
    models: ModelSettings | None = None,
    at_rest: AtRest = UNENCRYPTED,
) -> Processed:
    """Apply lines of events to a state directory, or to a temporary one. Return their outputs."""
    processed, numbers = Processed(), count(1)

    def deliver(_: int, outputs: list[Delivered]) -> None:
        line = next(numbers)
        for output in outputs:
            processed.add(line, output)

    with EmbeddedEngine.open(settings, state_dir, decisions, models, at_rest) as embedded:
        run_lines(embedded, SINGLE_RUN_LOG, lambda *_: batched(iter(lines)), deliver, is_replayable=False)
    return processed


def run_lines(
    embedded: "EmbeddedEngine",
    topic: str,  # the name of the feed in positions
    open_feed: Callable[[int, Callable[[bytes], object]], Iterator[list[bytes]]],
    deliver: Delivery,  # called for every line with its offset and outputs
    *,
    is_replayable: bool,
    clock_ms: Callable[[], int] = now_ms,  # returns the append times of lines
) -> None:
    """Apply the lines of a feed until it ends. Deliver the outputs of each line, in the order of the lines. Raise
    LogChanged if lines before the first offset differ from the lines of an earlier run.

    `open_feed` returns the feed from an offset on, and calls its second argument with each earlier line. A replayable
    feed can be read again, as a file can: it starts at the lowest offset that a state partition may lack, and outputs
    are stored until they are delivered. Any other feed has new lines only, and continues earlier runs' offsets."""
    complete = None if embedded.batch_embedder is None else embedded.batch_embedder.embed
    with engine_process():
        loop = StateLoop(embedded, replace(embedded.rules(), is_replayable=is_replayable), complete=complete)
        applied_digest = ""
        if is_replayable:
            offset, applied_digest = loop.resume_point(topic)
        else:
            offset = loop.continue_logs([topic])[topic]
        digest = blake2b(digest_size=16)

        def add_to_digest(line: bytes) -> None:
            digest.update(line + b"\n")  # without a separator, other line ends could give the same digest

        while loop.idle_s() == 0:
            loop.advance()
        feed = open_feed(offset, add_to_digest)
        if applied_digest and digest.hexdigest() != applied_digest:
            raise LogChanged(
                f"the first {offset:,} events differ from the events of an earlier replay: the log was changed. Replay "
                "it under another file name. Only events with ids are then deduplicated"
            )
        for lines in split_batches(feed, ends_batch):
            append_ms, numbered = clock_ms(), enumerate(lines, offset)
            records = [Record(Position(topic, 0, at), line, append_ms, append_logged=False) for at, line in numbered]
            outputs: dict[int, list[Delivered]] = {at: [] for at in range(offset, offset + len(lines))}
            for output in loop.apply(records) if records else ():
                if not isinstance(output, Ack):
                    outputs[output.position.offset].append(output)
            for at, delivered in outputs.items():
                deliver(at, delivered)
            for line in lines if is_replayable else ():
                add_to_digest(line)
            offset += len(lines)
            loop.advance()
            if loop.is_sync_due():
                loop.settle(Position(topic, 0, offset - 1), digest.hexdigest()) if is_replayable else loop.begin_sync()
        loop.end()
        if is_replayable and offset:
            loop.settle(Position(topic, 0, offset - 1), digest.hexdigest())


def rejection(line: int, letter: DeadLetter) -> dict[str, Any]:
    return {"line": line, "error": ErrorBody.of(letter.error).model_dump(exclude_unset=True)}


@dataclass(slots=True)
class EmbeddedEngine:
    """An open state directory with its models. If the directory is temporary, nothing is synced to disk."""

    directory: StateDirectory
    embedder: Embedder
    settings: Settings
    is_temporary: bool
    decisions: ControlHistory | None = None
    query_models: Models | None = None  # models that queries may call
    batch_embedder: BatchEmbedder | None = None

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        settings: Settings,
        state_dir: Path | None,
        decisions: ControlHistory | None = None,
        models: ModelSettings | None = None,
        at_rest: AtRest = UNENCRYPTED,
    ) -> Iterator["EmbeddedEngine"]:
        """Open all resources, so that errors appear before the first line is read."""
        with contextlib.ExitStack() as stack:
            model_settings = models or ModelSettings()
            opened_embedder = open_embedder(settings, model_settings.embedding, "embedded", decisions, state_dir)
            embedder = stack.enter_context(opened_embedder)
            query_models, _ = stack.enter_context(open_question_models(settings, model_settings, embedder, decisions))
            path = state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recallflow-")))
            fingerprint = adopt_partition_count(path, settings.fingerprint(embedder))
            opened = StateDirectory.open(path, fingerprint, settings.cache_bytes, at_rest=at_rest)
            directory = stack.enter_context(opened)
            batch_embedder = None
            if isinstance(embedder, RemoteEmbedder):
                runtime = stack.enter_context(Runtime(Completions()))
                batch_embedder = BatchEmbedder(embedder.service, directory, runtime)
            directory.open_all()
            yield cls(directory, embedder, settings, state_dir is None, decisions, query_models, batch_embedder)

    def rules(self, query_topic: str | None = None, *, input_ends: bool = True) -> Rules:
        return self.settings.rules(self.embedder, query_topic, input_ends=input_ends, decisions=self.decisions)
