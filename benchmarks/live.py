"""The engine in this process, without Kafka, asked on a schedule as Kafka would: its input does not end, so
that a question may wait for models while others are answered.

A latency counts from the moment a question was due to the moment its answer is there.
"""

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from recallflow.connectors.local_inputs import Delivered
from recallflow.embedder import Embedder
from recallflow.flows.embedded import StateLoop, process
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.settings import Settings
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import CallCompletion
from recallflow.outputs import Answer, Done
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
    """Asks all questions of a round, and returns when each is answered. The input does not end before that: then the
    loop would wait for models, and answer nothing else."""
    completions = models.runtime.completions
    ready = deque[Record]()
    with StateDirectory.open(state_dir, settings.fingerprint(embedder), settings.cache_bytes) as directory:
        rules = replace(settings.rules(embedder, QUERIES, input_ends=False), comes_again=False)
        loop = StateLoop(directory, embedder, rules, None, models=models)
        threading.Thread(target=_ask, args=(asked, ready, completions.wake), daemon=True, name="schedule").start()
        while len(asked.answers) < len(asked.questions):
            completions.wake.clear()
            read: list[Record | CallCompletion] = [ready.popleft() for _ in range(len(ready))]
            read += completions.pop_all()
            _receive(asked, loop.apply(read) if read else [])
            _receive(asked, loop.advance())
            if not read:
                completions.wake.wait(loop.idle_s())


def _ask(asked: Round, ready: deque[Record], wake: threading.Event) -> None:
    began_s = time.perf_counter() + BEGIN_S
    for number, question in enumerate(asked.questions):
        line, due_s = orjson.dumps(question), began_s + number / asked.per_s
        asked.due_s.append(due_s)
        time.sleep(max(0.0, due_s - time.perf_counter()))
        ready.append(Record(Position(QUERIES, 0, number), line, time.time_ns() // 1_000_000))
        wake.set()
    asked.over()


def _receive(asked: Round, outputs: Iterable[Delivered | Done]) -> None:
    now_s = time.perf_counter()
    for answer in outputs:
        if isinstance(answer, Answer):
            number = answer.position.offset
            asked.answered_s[number] = now_s
            asked.answers[number] = orjson.loads(answer.body)


def percentile(times_ms: list[float], share: int) -> float:
    return float(np.percentile(times_ms, share))
