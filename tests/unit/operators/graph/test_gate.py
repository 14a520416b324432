"""The quality gate: figures, verdicts, and the same answers at any pace."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.operators.graph import quality_gate, query_graph
from recallflow.operators.graph.quality_gate import (
    BOUNDS,
    TYPES_MAX,
    BaselineComparison,
    ExpansionOutcome,
    Outcome,
    QualityGate,
    compare,
)
from recallflow.outputs import Answer
from tests.groups import share
from tests.unit.operators.graph.engine import rolled_out
from tests.unit.operators.harness import DAY_MS, make_event

SPAN_MS = 1_000
GOOD, BAD = BaselineComparison(0.2, {"similar_to": 0.8}, 30), BaselineComparison(0.0, {"similar_to": 0.1}, 30)
HUGE = BaselineComparison(0.0, {}, 5_000)


@pytest.fixture(scope="module", autouse=True)
def small_window() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("WINDOW_MS", SPAN_MS),
            ("OBSERVATIONS_MAX", 100),
            ("ANSWERS_MIN", 10),
            ("FEEDBACK_MIN", 4),
        ):
            patch.setattr(quality_gate, name, value)
        yield


def gate(*outcomes: tuple[int, Outcome], compared: BaselineComparison | None = None) -> QualityGate:
    watching = QualityGate()
    for count, outcome in outcomes:
        for _ in range(count):
            watching.observe(ExpansionOutcome(0, outcome, compared))
    return watching


def test_figures() -> None:
    watching = gate((15, "expanded"), compared=GOOD)
    for outcome in ("failed", "skipped", "skipped", "late", "expanded"):
        watching.observe(ExpansionOutcome(0, outcome))
    for part, said in (("added", "1011"), ("ranked", "1111"), ("without", "1110")):
        for useful in said:
            watching.feedback(0, useful == "1", part)  # type: ignore[arg-type]
    assert watching.figures() == {
        "answers": 20, "feedback": 12, "error_rate": 0.05, "fallback_rate": 0.2, "overlap": 0.2, "added_words": 30,
        "relevance_loss": None, "useful_added": 0.75, "useful_with": 0.875, "useful_without": 0.75,
        "useful_loss": 0.0, "harm_rate": 0.0,
    }  # fmt: skip
    assert {kind: of.relevance for kind, of in watching.types().items()} == {"similar_to": 0.8}


def test_too_little_is_unknown() -> None:
    watching = gate((9, "failed"), compared=BAD)
    for _ in range(3):
        watching.feedback(0, False)
    known = {name: value for name, value in watching.figures().items() if value is not None}
    assert known == {"answers": 9, "feedback": 3}
    assert not watching.blocks(False)
    assert watching.blocks(True)


def test_the_windows_roll_over_the_time_of_the_queries() -> None:
    watching = gate((10, "failed"))
    for at_ms in (SPAN_MS, SPAN_MS + 1):
        watching.observe(ExpansionOutcome(at_ms, "expanded"))
    assert watching.figures()["answers"] == 2  # of 11 until the second came
    watching.observe(ExpansionOutcome(500, "expanded"))  # late, as another source may be
    assert watching.figures()["answers"] == 3


@pytest.mark.parametrize(
    ("watching", "reason"),
    [
        (gate((18, "expanded"), (2, "failed")), "error_rate 0.1"),
        (gate((14, "expanded"), (6, "skipped")), "fallback_rate 0.3"),
        (gate((14, "expanded"), (6, "late")), "fallback_rate 0.3"),
        (gate((20, "expanded"), compared=HUGE), "added_words 5000"),
    ],
)
def test_a_regression_blocks(watching: QualityGate, reason: str) -> None:
    assert watching.blocks(False)
    assert watching.reason(False) == reason


def test_edge_type_is_compared_with_its_earlier_gain() -> None:
    watching = gate((100, "expanded"), compared=GOOD)
    for _ in range(100):
        watching.observe(
            ExpansionOutcome(0, "expanded", BaselineComparison(0.0, {"similar_to": 0.1, "caused_by": 0.1}, 30))
        )
    assert watching.blocks(False)
    assert watching.reason(False) == "relevance_loss 0.7 (similar_to)"
    told = {kind: (of.answers, of.relevance, of.before) for kind, of in watching.types().items()}
    assert told == {"caused_by": (100, 0.1, None), "similar_to": (100, 0.1, 0.8)}


def test_figures_while_blocked_are_not_compared_later() -> None:
    watching = gate((100, "expanded"), compared=GOOD)
    for _ in range(100):
        watching.observe(ExpansionOutcome(0, "expanded", BAD))
    for _ in range(1_000):
        watching.observe(ExpansionOutcome(0, "expanded", BAD), blocked=True)
        assert watching.blocks(True)
    for _ in range(100):
        watching.observe(ExpansionOutcome(0, "expanded", GOOD), blocked=True)
    assert not watching.blocks(True)


def test_only_so_many_types_of_edges_are_remembered() -> None:
    watching = QualityGate()
    for number in range(10 * TYPES_MAX):
        watching.observe(ExpansionOutcome(0, "expanded", BaselineComparison(0.0, {f"type {number}": 0.5}, 1)))
    assert len(watching.types()) == 100 + TYPES_MAX


def told(**said: str) -> QualityGate:
    """A gate that saw enough answers, and heard so much: 1 for useful, 0 for not."""
    watching = gate((20, "expanded"), compared=GOOD)
    for part, word in said.items():
        for useful in word:
            watching.feedback(0, useful == "1", part)  # type: ignore[arg-type]
    return watching


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"added": "0001"}, "harm_rate 0.75"),
        ({"added": "0001", "without": "0111"}, "useful_loss 0.5, harm_rate 0.75"),
        ({"ranked": "0011", "without": "1111"}, "useful_loss 0.5"),  # what is added spoils the rest
    ],
)
def test_negative_feedback_blocks(said: dict[str, str], reason: str) -> None:
    assert told(**said).blocks(False)
    assert told(**said).reason(False) == reason


@pytest.mark.parametrize(
    "said",
    [
        {"added": "0011"},  # as much use as harm
        {"added": "0001", "without": "0001"},  # who only ever complains does so of any answer
        {"added": "0001", "without": "0000"},
        {"added": "1111", "ranked": "1111", "without": "0000"},
        {"ranked": "0000"},  # of ranked memories alone, and nothing to hold it against
        {"added": "000", "without": "1111"},  # too little
    ],
)
def test_general_feedback_does_not_count_against_added_memories(said: dict[str, str]) -> None:
    assert not told(**said).blocks(False)


def test_a_restart_forgets_and_counts_from_then_on() -> None:
    watching = told(added="0000")
    watching.restart(500)
    watching.observe(ExpansionOutcome(499, "failed"))
    watching.feedback(499, False, "added")
    assert (watching.figures()["answers"], watching.figures()["feedback"]) == (0, 0)
    watching.observe(ExpansionOutcome(500, "failed"))
    assert watching.figures()["answers"] == 1


@given(
    st.lists(
        st.builds(
            ExpansionOutcome, st.integers(0, 3 * SPAN_MS), st.sampled_from(["expanded", "failed", "skipped", "late"]),
            st.sampled_from([None, GOOD, BAD, HUGE]),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_figures_that_block_do_not_free(seen: list[ExpansionOutcome]) -> None:
    watching = QualityGate()
    for one in seen:
        watching.observe(one)
        assert not watching.blocks(False) or watching.blocks(True)


def test_bound_to_free_is_stricter_than_to_block() -> None:
    assert all(bounds.free < bounds.block for bounds in BOUNDS.values())


SIGNAL = np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
LEFT_OUT = np.arange(2, 10)  # the first two were answered


def test_each_type_of_edge_has_the_relevance_of_its_own() -> None:
    found = compare(SIGNAL, LEFT_OUT, np.array([2, 9, 3]), ["a", "b", "a"], [1, 2, 3])
    assert found == BaselineComparison(2 / 3, {"a": 0.875, "b": 0.0625}, 6)


@pytest.mark.parametrize(
    ("expanded", "signal", "expected"),
    [
        ([2, 3], SIGNAL, BaselineComparison(1.0, {"t": 0.875}, 14)),  # what the baseline ranks next
        ([8, 9], SIGNAL, BaselineComparison(0.0, {"t": 0.125}, 14)),  # the worst of all
        ([*range(2, 10)], SIGNAL, BaselineComparison(1.0, {"t": 0.5}, 56)),
        ([9], np.zeros(10), BaselineComparison(1.0, {"t": 0.5}, 7)),
        ([], SIGNAL, None),
    ],
)
def test_expanded_memories_are_compared_with_the_baseline(expanded: list[int], signal: Any, expected: Any) -> None:
    found = compare(signal, LEFT_OUT, np.array(expanded, np.int64), ["t"] * len(expanded), [7] * len(expanded))
    assert found == expected


TENANTS = [f"tenant-{number}" for number in range(4)]
REGRESSION = BaselineComparison(0.0, {}, 30_000)
TIMES = ("processing_time_ms", "sla_target_ms", "sla_met", "routing_info")


def chunks(lines: list[bytes], sizes: list[int]) -> Iterator[list[bytes]]:
    at = 0
    for size in sizes:
        yield lines[at : at + size]
        at += size
    yield lines[at:]


def answered(lines: list[bytes], sizes: list[int], partitions: int = 1) -> list[dict[str, Any]]:
    history = rolled_out("canary", "acme", *TENANTS)
    found: list[dict[str, Any]] = []

    def deliver(_: int, outputs: list[Any]) -> None:
        found.extend(orjson.loads(output.body) for output in outputs if isinstance(output, Answer))

    with EmbeddedEngine.open(Settings(partitions=partitions), None, history) as embedded:
        settings: Any = {"is_replayable": False, "clock_ms": lambda: DAY_MS}
        run_lines(embedded, "lines", lambda *_: chunks(lines, sizes), deliver, **settings)
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
        planted.setattr(query_graph, "compare", lambda *_: REGRESSION)
        return answered(lines, [1] * len(lines))


@settings(max_examples=share(0.2), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 30), max_size=12))
def test_the_same_lines_give_the_same_answers_at_any_pace(
    lines: list[bytes], one_by_one: list[dict[str, Any]], sizes: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(query_graph, "compare", lambda *_: REGRESSION)
        assert answered(lines, sizes) == one_by_one
    fallbacks = [one["fallback"] for one in one_by_one]
    assert {None, "quality_gate_blocked"} <= set(fallbacks)  # the gate closes among these lines
    stale = [one["query_id"] for one in one_by_one if "stale_read" in [w["code"] for w in one.get("warnings", [])]]
    assert stale == [f"q{n}" for n in range(30) if n % 5 == 3]
    assert [one["query_id"] for one in one_by_one] == [f"q{n}" for n in range(30)]
