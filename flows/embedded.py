"""A state directory and its models, open in this process; and what comes of lines of events that are at hand."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from recallflow.connectors.lines import Delivered, IteratorFeed, Turns
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.flows.behind import check_not_behind, open_all
from recallflow.flows.cycles import computing
from recallflow.flows.direct import Direct
from recallflow.flows.embedding import Ahead, open_embedder
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.order import BeforeApplied
from recallflow.flows.question_models import open_question_models
from recallflow.flows.recovery import check_snapshots, has_store
from recallflow.flows.settings import Settings
from recallflow.llm import RemoteEmbedder
from recallflow.operators.answers.models import Models
from recallflow.operators.decode import decode
from recallflow.operators.events import Item
from recallflow.operators.rules import Rules
from recallflow.outputs import Answer, DeadLetter, Done, Output, Receipted
from recallflow.parsing import ends_turn
from recallflow.records import Position, Record
from recallflow.responses import ErrorBody
from recallflow.state.at_rest import UNENCRYPTED, AtRest
from recallflow.state.directory import StateDirectory, kept_fingerprint
from recallflow.state.sources import ONE_RUNS_LOG


@dataclass(slots=True)
class Processed:
    """What came out: responses in query order, receipts in event order, and the refused lines."""

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
    decisions: History | None = None,
    models: ModelSettings | None = None,
    at_rest: AtRest = UNENCRYPTED,
) -> Processed:
    """What comes of lines of events, one after the other, on a state directory or one that is gone afterwards."""
    processed = Processed()
    with Embedded.open(settings, state_dir, decisions, models, at_rest) as embedded, computing():
        ahead = None if embedded.ahead is None else embedded.ahead.embed
        direct = embedded.direct(embedded.rules(), ahead=ahead)
        first = offset = direct.begin([ONE_RUNS_LOG])[ONE_RUNS_LOG]
        while direct.rest_s() == 0:
            direct.turn()
        for taken in _turns(lines):
            now_ms = time.time_ns() // 1_000_000
            numbered = enumerate(taken, offset)
            records = [
                Record(Position(ONE_RUNS_LOG, 0, at), line, now_ms, append_logged=False) for at, line in numbered
            ]
            offset += len(taken)
            # State partitions put out what is theirs one after the other.
            outputs = [output for output in direct.run(records) if not isinstance(output, Done)]
            for output in sorted(outputs, key=lambda output: output.position.offset):
                processed.add(output.position.offset - first + 1, output)
        if offset > first:
            direct.pass_over(Position(ONE_RUNS_LOG, 0, offset - 1))
        direct.end()
    return processed


def _turns(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines in batches: what an answer changes holds for the line behind it."""
    turns = Turns(IteratorFeed(iter(lines)), ends_turn)
    with contextlib.suppress(StopIteration):
        while True:
            yield turns.take()


def rejection(line: int, letter: DeadLetter) -> dict[str, Any]:
    """A refused line as commands report it."""
    return {"line": line, "error": ErrorBody.of(letter.error).model_dump(exclude_unset=True)}


@dataclass(slots=True)
class Embedded:
    """An open state directory with the model it was made for, ready to run in this process. `lasting`: it is not gone
    afterwards."""

    directory: StateDirectory
    embedder: Embedder
    settings: Settings
    lasting: bool
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
            fingerprint = kept_fingerprint(path, settings.fingerprint(embedder))
            opened = StateDirectory.open(path, fingerprint, settings.cache_bytes, at_rest=at_rest)
            directory = stack.enter_context(opened)
            ahead = None
            if isinstance(embedder, RemoteEmbedder):
                ahead = stack.enter_context(Ahead.of(embedder, directory))
            if has_store(path):
                check_snapshots(path)
                check_not_behind(directory)
            open_all(directory)
            yield cls(directory, embedder, settings, state_dir is not None, decisions, asked, ahead)

    def direct(
        self,
        rules: Rules,
        *,
        decode: Callable[[Record], Item] = decode,
        observe: Callable[[Output], None] = lambda _: None,
        ahead: BeforeApplied | None = None,
    ) -> Direct:
        """The engine without a dataflow, for the thread that calls."""
        sync_s = self.settings.epoch_ms / 1000 if self.lasting else None
        models = self.asked
        return Direct(
            self.directory, self.embedder, rules, sync_s, decode=decode, observe=observe, models=models, ahead=ahead
        )

    def rules(self, query_topic: str | None = None, *, input_ends: bool = True) -> Rules:
        """What partition logic reads of the settings. `query_topic`: see `Rules`."""
        return self.settings.rules(self.embedder, query_topic, input_ends=input_ends, decisions=self.decisions)
