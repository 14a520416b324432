"""The main dataflow without Kafka: lines in, outputs out, state in a directory."""

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource
from bytewax.outputs import FixedPartitionedSink
from bytewax.recovery import InconsistentPartitionsError, MissingPartitionsError, NoPartitionsError, RecoveryConfig
from bytewax.run import cli_main
from threadpoolctl import threadpool_limits

from recallflow.connectors.calls import Calls, CallSink, CallSource
from recallflow.connectors.lines import Delivered, Delivery, Feed, IteratorFeed, LineSink, LineSource
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.errors import RecallflowError, StateError, StorageError
from recallflow.flows.cycles import looking_between_batches
from recallflow.flows.embedding import Ahead, open_embedder
from recallflow.flows.engine import LINES_FLOW_ID, ONE_THREAD, build
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.question_models import open_question_models
from recallflow.flows.rebuild import check_not_behind
from recallflow.flows.recovery import recovery_store
from recallflow.flows.settings import Settings
from recallflow.llm import RemoteEmbedder
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import Completion, WithCompletions
from recallflow.operators.decode import decode
from recallflow.operators.events import Item
from recallflow.operators.rules import Rules
from recallflow.outputs import Answer, Audited, DeadLetter, Done, Output, Receipted, Requested, Verdict
from recallflow.parsing import ends_turn
from recallflow.records import Record
from recallflow.responses import ErrorBody
from recallflow.state.at_rest import UNENCRYPTED, AtRest
from recallflow.state.directory import StateDirectory

_STORE_ERRORS = (InconsistentPartitionsError, MissingPartitionsError, NoPartitionsError)


@dataclass(slots=True)
class Processed:
    """What came out: responses in query order, receipts in event order, and the refused lines."""

    responses: list[dict[str, Any]] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)


def process(
    lines: Iterable[bytes],
    settings: Settings,
    state_dir: Path | None = None,
    decisions: History | None = None,
    models: ModelSettings | None = None,
    at_rest: AtRest = UNENCRYPTED,
) -> Processed:
    """Runs lines of events through the dataflow, on a state directory or one that is gone afterwards."""
    processed = Processed()
    first: list[int] = []

    def open_feed(offset: int) -> IteratorFeed:
        first.append(offset)
        return IteratorFeed(iter(lines))

    def collect(offset: int, outputs: list[Delivered]) -> None:
        for output in outputs:
            match output:
                case Answer():
                    processed.responses.append(orjson.loads(output.body))
                case Receipted():
                    processed.receipts.append(orjson.loads(output.body))
                case DeadLetter():
                    processed.rejected.append(rejection(offset - first[0] + 1, output))

    with Embedded.open(settings, state_dir, decisions, models, at_rest) as embedded:
        embedded.run("lines", open_feed, collect, rewinds=False)
    return processed


def rejection(line: int, letter: DeadLetter) -> dict[str, Any]:
    """A refused line as commands report it."""
    return {"line": line, "error": ErrorBody.of(letter.error).model_dump(exclude_unset=True)}


@dataclass(slots=True)
class Embedded:
    """An open state directory with the model it was made for, ready to run the dataflow in this process."""

    directory: StateDirectory
    embedder: Embedder
    settings: Settings
    recovery: RecoveryConfig | None
    decisions: History | None = None
    asked: Models | None = None
    ahead: Ahead | None = None

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        settings: Settings,
        state_dir: Path | None,
        decisions: History | None = None,
        models: ModelSettings | None = None,
        at_rest: AtRest = UNENCRYPTED,
    ) -> Iterator["Embedded"]:
        """Opens everything there is to open, so that what is wrong shows before the first line is read. `decisions`:
        what tenants' operators decided (default: nothing)."""
        with contextlib.ExitStack() as stack:
            chosen = models or ModelSettings()
            embedder = stack.enter_context(open_embedder(settings, chosen.embedding, "line", decisions, state_dir))
            asked = stack.enter_context(open_question_models(settings, chosen, embedder, decisions)).asked
            path = state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recallflow-")))
            fingerprint = settings.fingerprint(embedder)
            opened = StateDirectory.open(path, fingerprint, settings.cache_bytes, at_rest=at_rest)
            directory = stack.enter_context(opened)
            ahead = None
            if isinstance(embedder, RemoteEmbedder):
                ahead = stack.enter_context(Ahead.of(embedder, directory))
            # A run that leaves nothing behind has nothing to recover.
            recovery = recovery_store(path) if state_dir else None
            if recovery is not None:
                check_not_behind(directory)
            directory.partitions()
            yield cls(directory, embedder, settings, recovery, decisions, asked, ahead)

    def run(
        self,
        topic: str,
        open_feed: Callable[[int], Feed],
        deliver: Delivery,
        *,
        rewinds: bool,
        workers: int = 1,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Runs the dataflow until the feed ends. `topic` names the feed in positions.

        A feed that `rewinds` begins at the last snapshot, and what was applied since is passed over. Another one only
        ever brings new lines: they are numbered behind everything that was applied.
        """
        floor = 0 if rewinds else self._next_offset(f"{topic}:0")
        source = LineSource(topic, open_feed, floor, clock_ms, ends_turn)
        rules = self.settings.rules(self.embedder, decisions=self.decisions)
        flow = Dataflow(LINES_FLOW_ID)
        ahead = None if self.ahead is None else self.ahead.embed
        self._run(flow, source, LineSink(source, deliver), rules, ahead=ahead, workers=workers)

    def serve(
        self,
        calls: Calls,
        judge: Callable[[Record], Item],
        observe: Callable[[Output], None],
        ahead: Callable[[Sequence[Item]], list[Item]] | None = None,
    ) -> None:
        """Runs the dataflow for callers in this process until they end it. `judge`: a record → a valid event of
        somebody who may send it, or a refusal; `observe` is shown all that comes out; `ahead`: as of `build`."""
        floors = {topic: self._next_offset(f"{topic}:0") for topic in calls.topics}
        source = CallSource(calls, floors)
        rules = self.settings.rules(self.embedder, calls.queries, input_ends=False, decisions=self.decisions)
        read = source if self.asked is None else WithCompletions(source, self.asked.runtime.completions)
        flow = Dataflow(LINES_FLOW_ID)
        self._run(flow, read, CallSink(calls), rules, judge=judge, observe=observe, ahead=ahead)

    def _run(
        self,
        flow: Dataflow,
        source: FixedPartitionedSource[Record, Any] | FixedPartitionedSource[Record | Completion, Any],
        sink: FixedPartitionedSink[Delivered | Done, None],
        rules: Rules,
        *,
        judge: Callable[[Record], Item] = decode,
        observe: Callable[[Output], None] = lambda _: None,
        ahead: Callable[[Sequence[Item]], list[Item]] | None = None,
        workers: int = 1,
    ) -> None:
        outputs = build(
            flow, source, self.directory, self.embedder, rules, decode=judge, models=self.asked, ahead=ahead
        )
        to_deliver = op.flat_map_batch("decide", outputs, partial(_decide, rules.decisions, observe))
        op.output("outputs", to_deliver, sink)
        run_dataflow(flow, self.settings, workers, self.recovery)

    def _next_offset(self, source: str) -> int:
        return 1 + max(partition.applied.get(source, -1) for partition in self.directory.partitions())


def _decide(
    decisions: History, observe: Callable[[Output], None], batch: list[tuple[str, Output]]
) -> Iterator[tuple[str, Delivered | Done]]:
    """Verdicts hold at once, as there is no log for them to come back through; requests are not wanted, as nobody would
    read them, nor is a record of who asked; all else goes on."""
    for key, output in batch:
        observe(output)
        if isinstance(output, Verdict):
            decisions.add(output.at_ms, output.event)
        elif not isinstance(output, Requested | Audited):
            yield key, output


def run_dataflow(flow: Dataflow, settings: Settings, workers: int, recovery: RecoveryConfig | None) -> None:
    """Runs a dataflow to its end. Raises what went wrong as it is, without what Bytewax wraps around it."""
    epoch = timedelta(milliseconds=settings.epoch_ms)
    with looking_between_batches(), threadpool_limits(ONE_THREAD):
        try:
            cli_main(flow, workers_per_process=workers, epoch_interval=epoch, recovery_config=recovery)
        except Exception as error:  # noqa: BLE001 - the one that says most is raised again
            found = cause(error)
            raise _named(found) from (error if found is error else found.__cause__)


def cause(error: BaseException) -> BaseException:
    """What went wrong, out of what Bytewax wraps around it: our own error, or else the innermost."""
    while error.__cause__ is not None and not isinstance(error, RecallflowError):
        error = error.__cause__
    return error


def _named(error: BaseException) -> BaseException:
    """The error that says what to do, for what Bytewax alone knows of."""
    if isinstance(error, _STORE_ERRORS):
        return StateError(
            f"the recovery store cannot be gone on with ({_first_line(error)}). Restore a checkpoint, or give up on "
            "queries that are open: recallflow state rebuild --give-up-unanswered"
        )
    if isinstance(error, RuntimeError) and "SqliteFailure" in str(error):
        return StorageError(
            f"the recovery store could not be written ({_first_line(error)}). Nothing acknowledged is lost; free disk "
            "space and start again, it continues where it stopped"
        )
    if isinstance(error, RuntimeError) and (
        unknown := re.search(r'Key StateKey\("(.+?)"\) is not in this', str(error))
    ):
        return StateError(
            f"{unknown[1]} is in the recovery store and not among the topics' partitions any more: a topic was made "
            "anew with fewer. Give it as many as before, or start with another state directory"
        )
    return error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
