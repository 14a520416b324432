"""The main dataflow in this process, without Kafka, asked on a schedule as Kafka would: its input does not end, so
that a question may wait for models while others are answered.

A latency counts from the moment a question was due to the moment its answer is at the sink.
"""

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from recallflow.embedder import Embedder
from recallflow.flows.dataflow import run_dataflow
from recallflow.flows.embedded import process
from recallflow.flows.engine import build
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.settings import Settings
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call.source import WithCompletions
from recallflow.outputs import Answer, Marked, Output
from recallflow.records import Position, Record
from recallflow.state.directory import StateDirectory

QUERIES = "queries"
BEGIN_S = 0.2


@dataclass
class Round:
    """Questions, `per_s` of them a second, and when and how each was answered. `over`: is called when the last one was
    asked; what is not answered by then must be, soon."""

    questions: list[dict[str, Any]]
    per_s: float
    over: Callable[[], None] = lambda: None
    due_s: list[float] = field(default_factory=list)
    answered_s: dict[int, float] = field(default_factory=dict)
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def latency_ms(self, number: int) -> float:
        return (self.answered_s[number] - self.due_s[number]) * 1000


@contextmanager
def remembering(lines: list[bytes], settings: Settings, models: ModelSettings | None = None) -> Iterator[Path]:
    """A state directory with these events applied."""
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        process(lines, settings, state_dir, models=models)
        yield state_dir


def run(asked: Round, state_dir: Path, settings: Settings, embedder: Embedder, models: Models) -> None:
    """Asks all questions of a round, and returns when each is answered."""
    completions = models.runtime.completions
    with StateDirectory.open(state_dir, settings.fingerprint(embedder), settings.cache_bytes) as directory:
        directory.partitions()
        flow = Dataflow("live")
        source = WithCompletions(_Source(asked, completions.wake), completions)
        rules = settings.rules(embedder, QUERIES, input_ends=False)
        outputs = build(flow, source, directory, embedder, rules, models=models)
        op.output("answers", op.map("unkeyed", outputs, lambda keyed: keyed[1]), _Sink(asked))
        run_dataflow(flow, settings, 1, None)


class _Source(FixedPartitionedSource[Record, None]):
    def __init__(self, asked: Round, wake: threading.Event) -> None:
        self._asked, self._wake = asked, wake

    def list_parts(self) -> list[str]:
        return ["questions"]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "_Part":  # noqa: ARG002
        return _Part(self._asked, self._wake)


class _Part(StatefulSourcePartition[Record, None]):
    """Does not end before all is answered: at the end the flow would wait for models, and answer nothing else."""

    def __init__(self, asked: Round, wake: threading.Event) -> None:
        self._asked, self._wake = asked, wake
        self._ready: deque[Record] = deque()
        threading.Thread(target=self._ask, daemon=True, name="schedule").start()

    def next_batch(self) -> list[Record]:
        if len(self._asked.answers) == len(self._asked.questions):
            raise StopIteration
        found = []
        while self._ready:
            found.append(self._ready.popleft())
        return found

    def snapshot(self) -> None:
        return None

    def _ask(self) -> None:
        began_s = time.perf_counter() + BEGIN_S
        for number, question in enumerate(self._asked.questions):
            line, due_s = orjson.dumps(question), began_s + number / self._asked.per_s
            self._asked.due_s.append(due_s)
            time.sleep(max(0.0, due_s - time.perf_counter()))
            self._ready.append(Record(Position(QUERIES, 0, number), line, time.time_ns() // 1_000_000))
            self._wake.set()
        self._asked.over()


class _Sink(DynamicSink[Output | Marked]):
    def __init__(self, asked: Round) -> None:
        self._asked = asked

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "_SinkPart":  # noqa: ARG002
        return _SinkPart(self._asked)


class _SinkPart(StatelessSinkPartition[Output | Marked]):
    def __init__(self, asked: Round) -> None:
        self._asked = asked

    def write_batch(self, items: list[Output | Marked]) -> None:
        now_s = time.perf_counter()
        for answer in items:
            if isinstance(answer, Answer):
                number = answer.position.offset
                self._asked.answered_s[number] = now_s
                self._asked.answers[number] = orjson.loads(answer.body)


def percentile(times_ms: list[float], share: int) -> float:
    return float(np.percentile(times_ms, share))
