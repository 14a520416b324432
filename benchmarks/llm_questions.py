"""Latency of questions that need models, and of questions that do not while model calls hang (benchmarks/llm.py).

The engine runs in this process, without Kafka. Questions arrive on a schedule, as from Kafka, and the input does not
end, so that a question may wait for models while others are answered. A latency counts from the moment a question was
due until its answer is there.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.engine import TENANT, USER, events
from benchmarks.kafka_load import MEMORIES, percentiles, recalls
from benchmarks.locomo import Conversation
from benchmarks.model_server import EVERY, NEVER, Times, serving
from recallflow.connectors.embedders import load_embedder, load_remote
from recallflow.connectors.llm.calls import OpenAiEmbeddings, OpenAiModel
from recallflow.connectors.llm.policy import Endpoint
from recallflow.connectors.local_inputs import Delivered
from recallflow.embedder import Embedder
from recallflow.flows.embedded import EmbeddedEngine, StateLoop, process
from recallflow.flows.gc_policy import SWITCH_INTERVAL_S
from recallflow.flows.model_settings import EmbeddingSettings, ModelSettings
from recallflow.flows.settings import Settings
from recallflow.llm import Task
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.async_call import CallCompletion
from recallflow.outputs import Ack, Answer
from recallflow.records import Position, Record
from recallflow.state.directory import StateDirectory

QUERIES = "queries"
BEGIN_S = 0.2
USERS = 8
SUMMARIES = {
    "family": "There are children, who like the beach, and a sister who lives far away.",
    "work": "There is a new project, with a launch in autumn, and a course in the evening.",
    "leisure": "There is pottery on Thursdays, and a plan to camp in the mountains.",
}
PER_S = 100
WARM_UP = 100  # questions, of each round; fewer where each waits for models
ONE_IN = 25  # questions wants models, where calls hang: fewer than may be with models at a time
STEPS_PER_S, STEPS_WARM_UP = 10, 10
CHOSEN: tuple[Task, ...] = ("select_categories", "check_sufficiency", "rewrite")
STEPS: tuple[Task, ...] = (*CHOSEN, "embed")
EMBEDDING, DIMENSION = "text-embedding-3-small", 1_536
LOCAL, REMOTE = Settings(), Settings(embedder="openai")
FAST_S, SLOW_S = 0.1, 0.2  # calls: all but the slowest, which is each in turn
TIMEOUT_S = 600.0
MOST_SHARE, MOST_MS, MOST_BEYOND_MS = 0.2, 1.0, 15.0
HANGING: Times = {EVERY: NEVER}


def measure(conversations: list[Conversation], *, quick: bool) -> dict[str, Any]:
    """Return the figures. Sets the interpreter's switch interval, as the flow does."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rounds, seconds, users = (2, 2, 2) if quick else (5, 20, USERS)
    questions = [*map(orjson.loads, recalls(conversations, users))]
    lines = _lines(conversations, users)
    with state_of(lines, LOCAL) as state_dir:
        engine = Engine(state_dir, LOCAL, questions)
        engine.ask(WARM_UP, PER_S, {})
        found = {"hanging": hanging(engine, rounds, WARM_UP + seconds * PER_S)}
    with serving({}) as service:
        embedding = EmbeddingSettings(model=EMBEDDING, dimension=DIMENSION, base_url=service.url)
        with state_of(lines, REMOTE, ModelSettings(embedding=embedding)) as state_dir:
            found["steps"] = steps(Engine(state_dir, REMOTE, questions), STEPS_WARM_UP + seconds * STEPS_PER_S)
    return found


@contextmanager
def state_of(lines: list[bytes], settings: Settings, models: ModelSettings | None = None) -> Iterator[Path]:
    """Apply events to a new state directory, and yield its path."""
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        process(lines, settings, state_dir, models=models)
        yield state_dir


@dataclass
class Round:
    """Questions at a steady rate, and their answers. `on_last_sent` is called after the last question was sent."""

    questions: list[dict[str, Any]]
    per_s: float
    on_last_sent: Callable[[], None] = lambda: None
    due_s: list[float] = field(default_factory=list)
    answered_s: dict[int, float] = field(default_factory=dict)
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def latency_ms(self, number: int) -> float:
        return (self.answered_s[number] - self.due_s[number]) * 1000

    def run(self, state_dir: Path, settings: Settings, embedder: Embedder, models: Models) -> None:
        """Send all questions, and return when each is answered. The input does not end earlier, as the engine would
        then wait for models."""
        completions, ready = models.runtime.completions, deque[Record]()
        with StateDirectory.open(state_dir, settings.fingerprint(embedder), settings.cache_bytes) as directory:
            rules = replace(settings.rules(embedder, QUERIES, input_ends=False), is_replayable=False)
            engine = EmbeddedEngine(directory, embedder, settings, is_temporary=True, query_models=models)
            loop = StateLoop(engine, rules)
            threading.Thread(target=self._send, args=(ready, completions.wake), daemon=True, name="schedule").start()
            while len(self.answers) < len(self.questions):
                completions.wake.clear()
                read: list[Record | CallCompletion] = [ready.popleft() for _ in range(len(ready))]
                read += completions.pop_all()
                self._receive(loop.apply(read) if read else [])
                self._receive(loop.advance())
                if not read:
                    completions.wake.wait(loop.idle_s())

    def _send(self, ready: deque[Record], wake: threading.Event) -> None:
        began_s = time.perf_counter() + BEGIN_S
        for number, question in enumerate(self.questions):
            self.due_s.append(began_s + number / self.per_s)
            time.sleep(max(0.0, self.due_s[-1] - time.perf_counter()))
            ready.append(Record(Position(QUERIES, 0, number), orjson.dumps(question), time.time_ns() // 1_000_000))
            wake.set()
        self.on_last_sent()

    def _receive(self, outputs: Iterable[Delivered | Ack]) -> None:
        now_s = time.perf_counter()
        for answer in outputs:
            if isinstance(answer, Answer):
                self.answered_s[answer.position.offset] = now_s
                self.answers[answer.position.offset] = orjson.loads(answer.body)


class Engine:
    """An engine over one state directory; each round has its own model service."""

    def __init__(self, state_dir: Path, settings: Settings, questions: list[dict[str, Any]]) -> None:
        self._state_dir, self._settings, self._questions = state_dir, settings, questions

    def ask(
        self, count: int, per_s: float, takes_s: Times, wants_models: Callable[[int], bool] = lambda _: False
    ) -> Round:
        """Ask so many questions; those for whose number `wants_models` is true want every model step.

        Calls that hang are cut off after the last question was sent.
        """
        questions = self._questions
        asked = [
            questions[number % len(questions)] | dict.fromkeys(CHOSEN, wants_models(number)) for number in range(count)
        ]
        with serving(takes_s) as service:
            endpoint = Endpoint(service.url, timeout_s=TIMEOUT_S)
            model, vectors = OpenAiModel("m", endpoint), OpenAiEmbeddings(EMBEDDING, DIMENSION, endpoint)
            is_local = self._settings is LOCAL
            embedder = load_embedder(LOCAL.embedder) if is_local else load_remote(vectors)
            done = Round(asked, per_s, service.stop if takes_s is HANGING else lambda: None)
            with Models(TimedModel(model, TIMEOUT_S), None if is_local else TimedModel(vectors, TIMEOUT_S)) as models:
                done.run(self._state_dir, self._settings, embedder, models)
                models.runtime.run(model.close())
                models.runtime.run(vectors.close())
        return done


def hanging(engine: Engine, rounds: int, count: int) -> dict[str, Any]:
    """Milliseconds of plain questions, idle and while models hang, and whether the second is within the bound. In idle
    rounds those are plain, too, that want models in the others."""
    asking = [number for number in range(count) if number % ONE_IN == 0]
    plain = [number for number in range(WARM_UP, count) if number % ONE_IN]
    p95_ms: dict[str, list[float]] = {"idle": [], "hanging": []}
    for _ in range(rounds):
        idle = engine.ask(count, PER_S, {})
        beside = engine.ask(count, PER_S, HANGING, lambda number: number % ONE_IN == 0)
        if not all(beside.answered_s[number] > beside.due_s[-1] for number in asking):
            raise RuntimeError("a question that wants models was answered while they hung")
        for name, done in (("idle", idle), ("hanging", beside)):
            p95_ms[name].append(percentiles([done.latency_ms(number) for number in plain])["p95"])
    idle_ms, hanging_ms = (statistics.median(p95_ms[name]) for name in ("idle", "hanging"))
    return {
        "p95_ms": p95_ms,
        "hung": len(asking),
        "idle_p95_ms": idle_ms,
        "hanging_p95_ms": hanging_ms,
        "ratio": hanging_ms / idle_ms,
        "within": hanging_ms - idle_ms <= max(MOST_SHARE * idle_ms, MOST_MS),
    }


def steps(engine: Engine, count: int) -> dict[str, Any]:
    """By the slowest step: milliseconds of questions that want them all, beyond the slowest call as whoever made it saw
    it (p50, p95, p99), and beyond what the service took (p95), which has the client's own work in it."""
    figures: dict[str, Any] = {}
    for slowest in STEPS:
        done = engine.ask(count, STEPS_PER_S, {EVERY: FAST_S, slowest: SLOW_S}, lambda _: True)
        latencies_ms = [done.latency_ms(number) for number in range(STEPS_WARM_UP, count)]
        calls_ms = [_slowest_ms(done.answers[number]) for number in range(STEPS_WARM_UP, count)]
        if min(calls_ms) < SLOW_S * 1000:
            raise RuntimeError(f"a question did not wait for {slowest}: {done.answers[0]['warnings']}")
        beyond_ms = [whole - call for whole, call in zip(latencies_ms, calls_ms, strict=True)]
        figures[slowest] = percentiles(beyond_ms) | {"service_p95": percentiles(latencies_ms)["p95"] - SLOW_S * 1000}
    return figures | {"within": max(one["p95"] for one in figures.values()) <= MOST_BEYOND_MS}


def _slowest_ms(answer: dict[str, Any]) -> float:
    return max(float(call["took_ms"]) for call in answer["routing_info"]["models"].values())


def show(figures: dict[str, Any]) -> None:
    found = figures["hanging"]
    print(f"plain questions at {PER_S}/s, p95 of each round in ms; {found['hung']} others hang")
    for name, times_ms in found["p95_ms"].items():
        print(f"  {name:<34}" + "".join(f"{one:10.2f}" for one in times_ms))
    medians = found["idle_p95_ms"], found["hanging_p95_ms"], found["ratio"]
    print(f"  {'medians, and their ratio':<34}" + "".join(f"{one:10.2f}" for one in medians))
    print(f"  {f'within {MOST_SHARE:.0%} or {MOST_MS:g} ms':<38}{'yes' if found['within'] else 'NO'}")
    print(
        f"questions with every model step, ms beyond the slowest call, for which the service takes {SLOW_S * 1000:g} ms"
    )
    print(f"  {'slowest':<34}{'p50':>8}{'p95':>8}{'p99':>8}{'p95 beyond the service':>25}")
    for name in STEPS:
        *beyond, service = figures["steps"][name].values()
        print(f"  {name:<34}" + "".join(f"{one:8.2f}" for one in beyond) + f"{service:25.2f}")
    print(f"  {f'p95 within {MOST_BEYOND_MS:g} ms':<38}{'yes' if figures['steps']['within'] else 'NO'}")


def _lines(conversations: list[Conversation], users: int) -> list[bytes]:
    """The users' messages, and summaries of some categories."""
    lines = events(conversations, users * MEMORIES, users)
    for user in range(users):
        for name, summary in SUMMARIES.items():
            scope = {"type": "category.summary", "tenant_id": TENANT, "user_id": f"{USER}{user}"}
            lines.append(orjson.dumps(scope | {"category": name, "summary": summary}))
    return lines
