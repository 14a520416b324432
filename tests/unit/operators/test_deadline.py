"""Which steps a query goes without, with times worked out by hand."""

import math
from collections.abc import Collection

import pytest

from recallflow.operators.recall.deadline import DROPPED_FIRST, TARGET_MS, Costs, Step, tier_of
from recallflow.responses import Tier


def costs(**ms: float) -> Costs:
    known = Costs()
    for step, took_ms in ms.items():
        known.add(step, took_ms)
    return known


@pytest.mark.parametrize(
    ("ran", "tier"),
    [
        ([], "fast"), (["dense"], "standard"), (["graph"], "graph"), (["dense", "graph"], "graph"),
        (["dense", "proximity"], "graph"), (["boosts"], "graph"), (["llm", "dense"], "llm"),
        (["dense", "graph", "llm"], "llm"),
    ],
)  # fmt: skip
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
    left_ms = 100 - elapsed_ms + 1e-6  # a hair of time on top, as sums of floats are not exact
    assert costs(dense=5, graph=30, llm=55, rest=10).drop(["dense", "graph", "llm"], left_ms) == dropped


def test_a_step_that_never_ran_is_tried() -> None:
    assert Costs().drop(["dense", "graph", "llm"], 1) == []


def test_past_its_end_a_query_goes_without_every_optional_step() -> None:
    assert Costs().drop(["dense", "proximity", "boosts", "graph", "rerank", "llm"], -1) == [*DROPPED_FIRST]


def test_a_cost_is_a_running_mean() -> None:
    known = costs(dense=10)
    assert known.expected_ms("dense") == 10
    known.add("dense", 20)  # 10 + 0.2 · 10
    assert known.expected_ms("dense") == pytest.approx(12)
    known.add("dense", 2)  # 12 - 0.2 · 10
    assert known.expected_ms("dense") == pytest.approx(10)
    assert known.expected_ms("graph") == 0


def test_slow_step_is_tried_again_after_a_while() -> None:
    known = costs(dense=1_000)
    drops = 0
    while known.drop(["dense"], 50):
        drops += 1
    assert drops == math.ceil(math.log(50 / 1_000, 0.9))
