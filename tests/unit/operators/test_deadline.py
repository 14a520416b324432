"""Which steps a query goes without, with times worked out by hand."""

import math
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall.deadline import DROPPED_FIRST, REST, TARGET_MS, Costs, Deadline, Step, tier_of
from recallflow.responses import Tier


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return 5.0 + self.now_ms / 1000


def costs(**ms: float) -> Costs:
    known = Costs()
    for step, took_ms in ms.items():
        known.took(step, took_ms)
    return known


@pytest.mark.parametrize(
    ("ran", "tier"),
    [
        ([], "fast"),
        (["dense"], "standard"),
        (["graph"], "graph"),
        (["dense", "graph"], "graph"),
        (["llm", "dense"], "llm"),
        (["dense", "graph", "llm"], "llm"),
    ],
)
def test_the_tier_is_that_of_the_costliest_step_that_ran(ran: Collection[Step], tier: Tier) -> None:
    assert tier_of(ran) == tier


def test_the_targets_are_the_contract() -> None:
    assert dict(TARGET_MS) == {"fast": 10, "standard": 50, "graph": 100, "llm": 1_500}


@pytest.mark.parametrize(
    ("elapsed_ms", "dropped"),
    [
        (0, []),  # 100 left, less 10 for the rest: 90 for 5 + 30 + 55
        (1, ["llm"]),  # 89: without the LLM it is 35
        (55, ["llm"]),  # 35
        (56, ["llm", "graph"]),  # 34: without the graph it is 5
        (85, ["llm", "graph"]),  # 5
        (86, ["llm", "graph", "dense"]),  # 4
        (500, ["llm", "graph", "dense"]),
    ],
)
def test_steps_are_dropped_in_order_until_the_others_fit(elapsed_ms: float, dropped: list[Step]) -> None:
    clock = Clock()
    deadline = Deadline(clock, 100, costs(dense=5, graph=30, llm=55, rest=10))
    clock.now_ms = elapsed_ms
    # A hair of time on top, as sums of floats are not exact.
    clock.now_ms -= 1e-6
    assert deadline.drops(["dense", "graph", "llm"]) == dropped


def test_only_steps_that_are_ahead_are_dropped() -> None:
    clock = Clock()
    deadline = Deadline(clock, 100, costs(dense=5, graph=30, llm=55))
    clock.now_ms = 98
    assert deadline.drops(["dense"]) == ["dense"]
    assert deadline.drops(["graph", "dense"]) == ["graph", "dense"]
    assert deadline.drops([]) == []


def test_a_step_that_never_ran_is_tried() -> None:
    deadline = Deadline(Clock(), 1, Costs())
    assert deadline.drops(["dense", "graph", "llm"]) == []


def test_past_its_end_a_query_goes_without_every_optional_step() -> None:
    clock = Clock()
    deadline = Deadline(clock, 1, Costs())
    clock.now_ms = 2
    assert deadline.drops(["dense", "graph", "llm"]) == [*DROPPED_FIRST]


@given(st.dictionaries(st.sampled_from([*DROPPED_FIRST, REST]), st.floats(0, 1e9)), st.floats(0, 1e9))
def test_without_a_target_nothing_is_ever_dropped(took: dict[str, float], elapsed_ms: float) -> None:
    clock = Clock()
    deadline = Deadline(clock, None, costs(**took))
    clock.now_ms = elapsed_ms
    assert deadline.drops([*DROPPED_FIRST]) == []
    assert deadline.warn([]) == []


def test_the_warning_names_what_was_dropped_and_the_target() -> None:
    (warning,) = Deadline(Clock(), 2.5, Costs()).warn(["graph", "dense"])
    assert (warning.code, warning.detail) == ("deadline", "went without graph and dense to be done within 2.5 ms")


def test_a_cost_is_a_running_mean() -> None:
    known = costs(dense=10)
    assert known.expected_ms("dense") == 10
    known.took("dense", 20)  # 10 + 0.2 · 10
    assert known.expected_ms("dense") == pytest.approx(12)
    known.took("dense", 2)  # 12 - 0.2 · 10
    assert known.expected_ms("dense") == pytest.approx(10)
    assert known.expected_ms("graph") == 0


def test_a_step_that_was_slow_once_is_tried_again_after_a_while() -> None:
    known = costs(dense=1_000)
    drops = 0
    while Deadline(Clock(), 50, known).drops(["dense"]):
        drops += 1
    assert drops == math.ceil(math.log(50 / 1_000, 0.9))
