"""The model beside what is real: the engine in one process, and several processes of `run`.

Of the engine, time is the processor's: it passes while the engine works, and where it has nothing to do it jumps to the
next record. So others on the machine cannot be seen in it, and there is nothing in it but work and waiting for work.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import events
from benchmarks.fleet.chaos import KILL, LOSE
from benchmarks.kafka_load import recalls
from benchmarks.locomo import load, shared
from benchmarks.scale.cluster import asked, run
from benchmarks.scale.costs import MEASURED, Costs, Floats
from benchmarks.scale.recovery import machine_lost
from benchmarks.scale.shape import Load, Shape
from benchmarks.scale.worker import Query, Worker
from recallflow.connectors.kafka.hub import BUDGET_S, STARVED_S
from recallflow.flows.cycles import computing
from recallflow.flows.embedded import Embedded
from recallflow.flows.settings import Settings
from recallflow.flows.state_loop import StateLoop
from recallflow.records import Position, Record

EVENTS_TOPIC, QUERY_TOPIC = "events", "queries"
USERS, MEMORIES, QUICK_MEMORIES = 16, 500, 200
PARTITIONS = 16
BUSY = (0.3, 0.5, 0.7)  # of the process's core …
MESSAGES_SHARE = 0.4  # … so much of it with messages
QUERIES, QUICK_QUERIES = 2_000, 500
MICRO_S = 1e-6
KNOWN, SOME = 200, 4  # queries, of which the costs are taken, and messages before each

# What `benchmarks.fleet` gives its members to do.
FLEET_OWNERS, FLEET_QUERIES, FLEET_CHECKPOINT_S = 200, 1 / 3, 12.0
FLEET_AT_S, FLEET_S = 10.0, 40.0

Row = dict[str, Any]


class Engine:
    """The engine with its state, and a clock that only its work and `rest_until` move."""

    def __init__(self, loop: StateLoop, lines: Sequence[bytes], questions: Sequence[bytes]) -> None:
        self.now_s = 0.0
        self._loop = loop
        self._lines, self._questions = lines, questions
        self._events = self._queries = 0
        self._next = loop.begin([EVENTS_TOPIC, QUERY_TOPIC])

    def tell(self, count: int) -> float:
        """Applies the next messages. Returns what that cost."""
        taken = [self._lines[(self._events + number) % len(self._lines)] for number in range(count)]
        self._events += count
        return self._run(EVENTS_TOPIC, taken)

    def ask(self) -> float:
        """Answers the next question. Returns what that cost."""
        self._queries += 1
        return self._run(QUERY_TOPIC, [self._questions[self._queries % len(self._questions)]])

    def rest_until(self, at_s: float) -> None:
        self.now_s = max(self.now_s, at_s)

    def _run(self, topic: str, lines: Sequence[bytes]) -> float:
        now_ms = time.time_ns() // 1_000_000
        began_s = time.process_time()
        offset = self._next[topic]
        self._next[topic] += len(lines)
        self._loop.apply(
            [Record(Position(topic, 0, at), line, now_ms, append_logged=False) for at, line in enumerate(lines, offset)]
        )
        spent_s = time.process_time() - began_s
        self.now_s += spent_s
        return spent_s


def against_engine(seed: int, *, quick: bool) -> list[Row]:
    """What queries take in one process, at several loads, and what the model says of it."""
    conversations = load(shared("data", "locomo_dev.json"))
    memories, queries = (QUICK_MEMORIES, QUICK_QUERIES) if quick else (MEMORIES, QUERIES)
    # Each message is new: one that was said before is not applied again.
    lines = events(conversations, USERS * memories * 8, USERS)
    first, more = lines[: USERS * memories], lines[USERS * memories :]
    with tempfile.TemporaryDirectory() as folder, Embedded.open(Settings(), Path(folder) / "state") as embedded:
        loop = embedded.loop(embedded.rules(QUERY_TOPIC, input_ends=False))
        with computing():
            Engine(loop, first, []).tell(len(first))
            engine = Engine(loop, more, recalls(conversations, USERS))
            rows = [row for busy in BUSY for row in _at(engine, busy, queries, seed)]
    return rows


def _at(engine: Engine, busy: float, count: int, seed: int) -> list[Row]:
    # In turns, as a question costs more whose owner has new memories.
    known = np.array([(engine.tell(SOME), engine.ask()) for _ in range(KNOWN)])
    message_s, query_s = known.mean(axis=0) / (SOME, 1)
    rng = np.random.default_rng(seed)
    per_s = busy * (1 - MESSAGES_SHARE) / query_s
    messages_per_s = busy * MESSAGES_SHARE / message_s
    at_s = np.cumsum(rng.exponential(1 / per_s, count))
    real, costs, told_s = _real(engine, at_s, messages_per_s, message_s)
    worker = Worker(messages_per_s * told_s, told_s, _uniform(rng))
    given = [Query(one, float(cost), 0, number) for number, (one, cost) in enumerate(zip(at_s, costs, strict=True))]
    model = np.array([one.at_s for one in worker.serve(given)]) - at_s
    was = messages_per_s * told_s + costs.sum() / at_s[-1]
    return [
        {"what": f"{was:.0%} busy, {name} ms", "real": float(of(real) * 1e3), "model": float(of(model) * 1e3)}
        for name, of in (("p50", np.median), ("p95", lambda times: np.percentile(times, 95)))
    ]


def _real(engine: Engine, at_s: Floats, messages_per_s: float, message_s: float) -> tuple[Floats, Floats, float]:
    """What queries took and cost, and what a message did: in the hub's order, queries that are there first, and
    messages that are there in batches of 5 ms."""
    engine.now_s, fed_s, told, told_s = 0.0, 0.0, 1, message_s
    took, costs = np.empty(len(at_s)), np.empty(len(at_s))
    place = 0
    while place < len(at_s):
        now_s = engine.now_s
        waiting = int(now_s * messages_per_s) - told
        starved = waiting > 0 and now_s - fed_s >= STARVED_S
        if at_s[place] <= now_s and not starved:
            costs[place] = engine.ask()
            took[place] = engine.now_s - at_s[place]
            place += 1
        elif waiting > 0:
            batch = min(waiting, max(1, int(BUDGET_S / (told_s / told))))
            told_s += engine.tell(batch)
            told += batch
            fed_s = engine.now_s
        else:
            engine.rest_until(min(at_s[place], (told + 1) / messages_per_s + MICRO_S))
    return took, costs, told_s / told


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    return chain.from_iterable(rng.random(1_000).tolist() for _ in repeat(None))


def against_fleet(found: dict[str, Any], seed: int, costs: Path = MEASURED) -> list[Row]:
    """How long partitions were silent, and what others took, in processes that were killed (`benchmarks.fleet`), and
    what the model says of as many members. It gives each a core, which two cores and a broker do not."""
    plan, silence = found["plan"], found["silence"]
    shape = Shape(
        machines=plan["members"],
        cores=1,
        partitions=plan["partitions"],
        owners=FLEET_OWNERS,
        memories=found["records"] // FLEET_OWNERS,
        tenants=3,
        skew=1.0,
        messages_per_s=plan["per_second"] * (1 - FLEET_QUERIES),
        queries_per_s=plan["per_second"] * FLEET_QUERIES + plan["partitions"] / plan["probe_s"],
        session_timeout_s=plan["session_s"],
        checkpoint_s=FLEET_CHECKPOINT_S,
        standby="--standby" in plan["options"],
    )
    small = Costs.measured(costs, memories=100)
    rng = np.random.default_rng(seed)
    drawn = Load.drawn(shape, rng)
    course = machine_lost(shape, small, FLEET_AT_S, rng)
    outcome = run(shape, small, drawn, course, asked(shape, small, drawn, FLEET_S, rng), FLEET_S, rng)
    at_s, moved = outcome.asked.at_s, np.isin(outcome.asked.partition, [move.partition for move in course.moves])
    idle, still = outcome.percentiles_ms(at_s < FLEET_AT_S), outcome.percentiles_ms((at_s >= FLEET_AT_S) & ~moved)
    rows: list[Row] = [
        {"what": f"{name}, {share} ms", "real": silence[f"{key}_{share}"], "model": model}
        for name, key, models in (("nothing happens", "idle", idle), ("others stay", "still", still))
        for share, model in zip(("p50", "p95"), models, strict=True)
    ]
    silent_s = [*outcome.silent_s.values()]
    for cause in (KILL, LOSE):
        if times_ms := silence["longest"].get(cause):
            rows += [
                {"what": f"{cause}, silent, p50 s", "real": np.median(times_ms) / 1e3, "model": np.median(silent_s)},
                {"what": f"{cause}, silent, most s", "real": max(times_ms) / 1e3, "model": max(silent_s)},
            ]
    return rows
