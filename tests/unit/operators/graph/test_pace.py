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
from tests.unit.operators.graph.engine import rolled_out
from tests.unit.operators.harness import DAY_MS, make_event

TENANTS = [f"tenant-{number}" for number in range(4)]
BAD = BaselineComparison(0.0, {}, 30_000)
TIMES = ("processing_time_ms", "sla_target_ms", "sla_met", "routing_info")


class Chunks:
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
