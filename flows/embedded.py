"""The embedded engine: an open state directory with its models in this process, and the application of event lines."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from recallflow.connectors.local_inputs import Delivered, Delivery, Feed, IteratorFeed, TurnFeed
from recallflow.control import ControlHistory
from recallflow.embedder import Embedder
from recallflow.errors import LogChanged
from recallflow.flows.gc_policy import computing
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.models import BatchEmbedder, open_embedder, open_question_models
from recallflow.flows.settings import Settings
from recallflow.flows.state_loop import BeforeApplied, StateLoop
from recallflow.llm import RemoteEmbedder
from recallflow.operators.answers.models import Models
from recallflow.operators.events import Item, decode
from recallflow.operators.rules import Rules
from recallflow.outputs import Answer, DeadLetter, Done, Output, Receipted
from recallflow.parsing import ends_turn
from recallflow.records import Position, Record
from recallflow.responses import ErrorBody
from recallflow.state.description import ONE_RUNS_LOG, kept_fingerprint
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest


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
            case Receipted():
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
    processed, first = Processed(), list[int]()

    def open_feed(offset: int, _: Callable[[bytes], object]) -> Feed:
        first.append(offset)
        return IteratorFeed(iter(lines))

    def deliver(offset: int, outputs: list[Delivered]) -> None:
        for output in outputs:
            processed.add(offset - first[0] + 1, output)

    with EmbeddedEngine.open(settings, state_dir, decisions, models, at_rest) as embedded:
        run_lines(embedded, ONE_RUNS_LOG, open_feed, deliver, rewinds=False)
    return processed


def run_lines(
    embedded: "EmbeddedEngine",
    topic: str,  # the name of the feed in positions
    open_feed: Callable[[int, Callable[[bytes], object]], Feed],
    deliver: Delivery,  # called for every line with its offset and outputs
    *,
    rewinds: bool,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,  # returns the append times of lines
) -> None:
    """Apply the lines of a feed until it ends. Deliver the outputs of each line, in the order of the lines. Raise
    LogChanged if lines before the first offset differ from the applied ones.

    `open_feed` returns the feed from an offset on, and calls its second argument with each earlier line. A feed that
    `rewinds` can be read again, as a file can: it resumes at the lowest offset that a state partition may lack, and
    outputs are stored until they are delivered. Other feeds bring new lines only, after the applied ones."""
    complete = None if embedded.batch_embedder is None else embedded.batch_embedder.embed
    with computing():
        loop = embedded.loop(replace(embedded.rules(), comes_again=rewinds), complete=complete)
        offset, known = loop.resume(topic) if rewinds else (loop.begin([topic])[topic], "")
        digest = blake2b(digest_size=16)

        def pass_over(line: bytes) -> None:
            digest.update(line + b"\n")  # the separator makes moved line ends visible

        while loop.idle_s() == 0:
            loop.advance()
        feed = TurnFeed(open_feed(offset, pass_over), ends_turn)
        if known and digest.hexdigest() != known:
            raise LogChanged(
                f"the first {offset:,} events differ from those of an earlier replay: the log was changed. Replay "
                "it under another file name. Only events with ids are then deduplicated"
            )
        with contextlib.suppress(StopIteration):
            while True:
                lines, now_ms = feed.take(), clock_ms()
                records = [
                    Record(Position(topic, 0, at), line, now_ms, append_logged=False)
                    for at, line in enumerate(lines, offset)
                ]
                outputs: dict[int, list[Delivered]] = {at: [] for at in range(offset, offset + len(lines))}
                for output in loop.apply(records) if records else ():
                    if not isinstance(output, Done):
                        outputs[output.position.offset].append(output)
                for at, delivered in outputs.items():
                    deliver(at, delivered)
                for line in lines if rewinds else ():
                    pass_over(line)
                offset += len(lines)
                loop.advance()
                if loop.is_sync_due():
                    loop.settle(Position(topic, 0, offset - 1), digest.hexdigest()) if rewinds else loop.begin_sync()
        loop.end()
        if rewinds and offset:
            loop.settle(Position(topic, 0, offset - 1), digest.hexdigest())


def rejection(line: int, letter: DeadLetter) -> dict[str, Any]:
    return {"line": line, "error": ErrorBody.of(letter.error).model_dump(exclude_unset=True)}


@dataclass(slots=True)
class EmbeddedEngine:
    """An open state directory with its model, ready to run in this process. `lasting`: the directory is not
    temporary."""

    directory: StateDirectory
    embedder: Embedder
    settings: Settings
    lasting: bool
    decisions: ControlHistory | None = None
    asked: Models | None = None
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
        """Open all resources, so that errors appear before the first line is read. `decisions` are the control events
        in force; none by default."""
        with contextlib.ExitStack() as stack:
            chosen = models or ModelSettings()
            embedder = stack.enter_context(open_embedder(settings, chosen.embedding, "line", decisions, state_dir))
            asked = stack.enter_context(open_question_models(settings, chosen, embedder, decisions)).asked
            path = state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recallflow-")))
            fingerprint = kept_fingerprint(path, settings.fingerprint(embedder))
            opened = StateDirectory.open(path, fingerprint, settings.cache_bytes, at_rest=at_rest)
            directory = stack.enter_context(opened)
            batch_embedder = None
            if isinstance(embedder, RemoteEmbedder):
                batch_embedder = stack.enter_context(BatchEmbedder.of(embedder, directory))
            directory.open_all()
            yield cls(directory, embedder, settings, state_dir is not None, decisions, asked, batch_embedder)

    def loop(
        self,
        rules: Rules,
        *,
        decode: Callable[[Record], Item] = decode,
        observe: Callable[[Output], None] = lambda _: None,
        complete: BeforeApplied | None = None,
    ) -> StateLoop:
        sync_s = self.settings.epoch_ms / 1000 if self.lasting else None
        return StateLoop(
            self.directory,
            self.embedder,
            rules,
            sync_s,
            decode=decode,
            observe=observe,
            models=self.asked,
            complete=complete,
        )

    def rules(self, query_topic: str | None = None, *, input_ends: bool = True) -> Rules:
        return self.settings.rules(self.embedder, query_topic, input_ends=input_ends, decisions=self.decisions)
