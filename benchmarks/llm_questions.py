"""What questions cost that want models, and what they cost others: see benchmarks/llm.py."""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from benchmarks.engine import TENANT, USER, events
from benchmarks.kafka_load import MEMORIES, recalls
from benchmarks.live import Round, percentile, remembering, run
from benchmarks.locomo import Conversation
from benchmarks.model_server import EVERY, NEVER, Times, serving
from recallflow.connectors.embedders import load_embedder, load_remote
from recallflow.connectors.llm.calls import OpenAiEmbeddings, OpenAiModel
from recallflow.connectors.llm.policy import Endpoint
from recallflow.flows.gc_policy import SWITCH_S
from recallflow.flows.model_settings import EmbeddingSettings, ModelSettings
from recallflow.flows.settings import Settings
from recallflow.llm import Task
from recallflow.operators.answers.models import Models, Within

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
HERE, THERE = Settings(), Settings(embedder="openai")
FAST_S, SLOW_S = 0.1, 0.2  # calls: all but the slowest, which is each in turn
TIMEOUT_S = 600.0
MOST_SHARE, MOST_MS, MOST_BEYOND_MS = 0.2, 1.0, 15.0
HANGING: Times = {EVERY: NEVER}


def measure(conversations: list[Conversation], *, quick: bool) -> dict[str, Any]:
    """Sets the interpreter's switch interval, as the flow does."""
    sys.setswitchinterval(SWITCH_S)
    rounds, seconds, users = (2, 2, 2) if quick else (5, 20, USERS)
    questions = [*map(orjson.loads, recalls(conversations, users))]
    lines = _lines(conversations, users)
    with remembering(lines, HERE) as state_dir:
        engine = Engine(state_dir, HERE, questions)
        engine.ask(WARM_UP, PER_S, {})
        found = {"hanging": hanging(engine, rounds, WARM_UP + seconds * PER_S)}
    with serving({}) as service:
        embedding = EmbeddingSettings(model=EMBEDDING, dimension=DIMENSION, base_url=service.url)
        with remembering(lines, THERE, ModelSettings(embedding=embedding)) as state_dir:
            found["steps"] = steps(Engine(state_dir, THERE, questions), STEPS_WARM_UP + seconds * STEPS_PER_S)
    return found


class Engine:
    """One that is asked about the same users again and again, each time beside another service of models."""

    def __init__(self, state_dir: Path, settings: Settings, questions: list[dict[str, Any]]) -> None:
        self._state_dir, self._settings, self._questions = state_dir, settings, questions

    def ask(
        self, count: int, per_s: float, takes_s: Times, wants_models: Callable[[int], bool] = lambda _: False
    ) -> Round:
        """So many questions, of which those want every model step whose number does. Calls that hang are cut off when
        all is asked."""
        questions = self._questions
        asked = [
            questions[number % len(questions)] | dict.fromkeys(CHOSEN, wants_models(number)) for number in range(count)
        ]
        with serving(takes_s) as service:
            endpoint = Endpoint(service.url, timeout_s=TIMEOUT_S)
            model, vectors = OpenAiModel("m", endpoint), OpenAiEmbeddings(EMBEDDING, DIMENSION, endpoint)
            language, embeddings = Within(model, TIMEOUT_S), Within(vectors, TIMEOUT_S)
            is_here = self._settings is HERE
            embedder = load_embedder(HERE.embedder) if is_here else load_remote(vectors)
            done = Round(asked, per_s, over=service.stop if takes_s is HANGING else lambda: None)
            with Models(language, None if is_here else embeddings) as models:
                run(done, self._state_dir, self._settings, embedder, models)
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
            p95_ms[name].append(percentile([done.latency_ms(number) for number in plain], 95))
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
        figures[slowest] = {f"p{share}": percentile(beyond_ms, share) for share in (50, 95, 99)}
        figures[slowest]["service_p95"] = percentile(latencies_ms, 95) - SLOW_S * 1000
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
            told = {"type": "category.summary", "tenant_id": TENANT, "user_id": f"{USER}{user}"}
            lines.append(orjson.dumps(told | {"category": name, "summary": summary}))
    return lines
