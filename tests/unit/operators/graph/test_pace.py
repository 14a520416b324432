"""The same lines give the same answers at any pace, gate verdicts and waiting queries included."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.operators.graph import query_graph
from recallflow.operators.graph.quality_gate import BaselineComparison
from recallflow.outputs import Answer
from tests.groups import share
from tests.unit.operators.graph.engine import DAY_MS, rolled_out
from tests.unit.operators.harness import make_event

TENANTS = [f"tenant-{number}" for number in range(4)]
BAD = BaselineComparison(0.0, {}, 30_000)
TIMES = ("processing_time_ms", "sla_target_ms", "sla_met", "routing_info")


class Chunks:
    """A feed that gives lines as they come."""

    def __init__(self, lines: list[bytes], sizes: list[int]) -> None:
        self._chunks = self._cut(lines, sizes)

    def _cut(self, lines: list[bytes], sizes: list[int]) -> Iterator[list[bytes]]:
        at = 0
        for size in sizes:
            yield lines[at : at + size]
            at += size
        yield lines[at:]

    def take(self) -> list[bytes]:
        return next(self._chunks)


def answered(lines: list[bytes], sizes: list[int], partitions: int = 1) -> list[dict[str, Any]]:
    history = rolled_out("canary", "acme", *TENANTS)
    found: list[dict[str, Any]] = []

    def deliver(_: int, outputs: list[Any]) -> None:
        found.extend(orjson.loads(output.body) for output in outputs if isinstance(output, Answer))

    with EmbeddedEngine.open(Settings(partitions=partitions), None, history) as embedded:
        run_lines(embedded, "lines", lambda *_: Chunks(lines, sizes), deliver, rewinds=False, clock_ms=lambda: DAY_MS)
    return [{name: value for name, value in one.items() if name not in TIMES} for one in found]


@pytest.fixture
def lines() -> list[bytes]:
    """Some that only the graph relates, and more questions than a gate needs to judge; some of them wait."""
    dashboard = {"topics": ["dashboard"]}
    told = [make_event("memory", n, id=f"x{n}", content=f"the crate number {n} is in shelf {n % 7}") for n in range(20)]
    told += [
        make_event("memory", 100, id="alarm", content="Rollout alarms go to the on-call phone", **dashboard),
        make_event("memory", 101, id="red", content="Grafana turns red above five percent", **dashboard),
    ]
    asked = [
        make_event("recall", DAY_MS, id=f"q{n}", query="rollout alarms", k=3, strategy="hybrid_graph", **waits)
        for n, waits in enumerate([{}, {}, {}, {"wait_for": "lines:0:999"}, {"wait_for": "lines:0:20"}] * 6)
    ]
    later = [make_event("memory", 200, id=f"y{n}", content=f"rollout alarms again {n}") for n in range(10)]
    mixed = [*told, *asked[:12], *later, *asked[12:]]
    return [orjson.dumps(event) for event in mixed]


@pytest.fixture
def one_by_one(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the answers where each line comes alone."""
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(query_graph, "compare", lambda *_: BAD)
        return answered(lines, [1] * len(lines))


@settings(max_examples=share(0.2), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 30), max_size=12))
def test_the_same_lines_give_the_same_answers_at_any_pace(
    lines: list[bytes], one_by_one: list[dict[str, Any]], sizes: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(query_graph, "compare", lambda *_: BAD)
        assert answered(lines, sizes) == one_by_one
    fallbacks = [one["fallback"] for one in one_by_one]
    assert {None, "quality_gate_blocked"} <= set(fallbacks)  # the gate closes among these lines
    stale = [one["query_id"] for one in one_by_one if "stale_read" in [w["code"] for w in one.get("warnings", [])]]
    assert stale == [f"q{n}" for n in range(30) if n % 5 == 3]
    assert [one["query_id"] for one in one_by_one] == [f"q{n}" for n in range(30)]


def test_feedback_applies_at_the_same_line_at_any_pace() -> None:
    """Ann's feedback blocks expansion before Bob asks; their partitions are processed in varying order."""
    lines = []
    for tenant in TENANTS:
        ann, bob = ({"tenant_id": tenant, "user_id": user} for user in ("ann", "bob"))
        for user in (ann, bob):
            for n, (id_, text) in enumerate([("alarm", "Rollout alarms page us"), ("red", "Grafana turns pale")]):
                lines.append(make_event("memory", n, id=id_, content=text, topics=["dashboard"], **user))
        asked: dict[str, Any] = {"query": "rollout alarms", "k": 1, "strategy": "hybrid_graph"}
        said = make_event("memory.feedback", DAY_MS, memory_id="red", useful=False, **ann)
        lines += [make_event("recall", DAY_MS, **asked, **ann), said] * 10
        lines += [make_event("recall", DAY_MS, **asked, **bob)] * 3
    encoded = [orjson.dumps(line) for line in lines]
    one_by_one = answered(encoded, [1] * len(encoded), 8)
    of_bob = [one["fallback"] for one in one_by_one]
    assert of_bob == [*[None] * 11, *["quality_gate_blocked"] * 2] * len(TENANTS)
    assert answered(encoded, [], 8) == one_by_one
