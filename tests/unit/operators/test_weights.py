"""One weight at a time: a pair of memories that differ in one factor or boost alone, and a memory that does not fit."""

from typing import Any

import pytest

from recallflow.operators.recall.modes import rank
from recallflow.queries import BOOSTS, WEIGHTS, Mode
from recallflow.state.usage import Usage
from tests.unit.operators.harness import ids, ids_of, make_entry, make_event, make_scene, run_flow

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
AGES = [{"created_ms": NOW_MS - days * DAY_MS} for days in (121, 181, 121)]
SHARES = (0.6, 0.4, 1.0)

# By factor or boost: fields of the memories, and of the scene. The first of the pair has more of it, and the third
# memory, which does not fit, has as much or more.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "cluster": ([{}, {}, {"episode": 1}], {"vectors": {0: (1, 0), 1: (1, 0), 2: (0, 1)}}),
    "recency": (AGES, {"weights": {"decay": 0}}),
    "decay": (AGES, {"weights": {"recency": 0}}),
    "importance": ([{"importance": share} for share in SHARES], {}),
    "usage": ([{}] * 3, {"usage": {0: Usage(NOW_MS, 1), 2: Usage(NOW_MS, 50)}}),
    "quality": ([{"confidence": share} for share in SHARES], {}),
    "proximity": ([{}] * 3, {"proximity": [0.5, 0.25, 1.0], "entity_urns": ["urn:x"]}),
    "relationship": ([{}] * 3, {"relationship": {0: 0.125, 2: 1.0}}),  # by a common topic, and by the strongest edge
    "personalisation": ([{}] * 3, {"vectors": {0: (1, 0), 1: (0, 1), 2: (1, 0)}, "usage": {2: Usage(useful=1)}}),
    "session_continuity": ([{}] * 3, {"returned": [0, 2]}),
}


def order(name: str, behind: float, **weights: float) -> list[str]:
    """Rank a case whose first memory fits worse than the second by these log-odds, and the third by ten units."""
    memories, fields = CASES[name]
    entries = [make_entry(n, **{"episode": n, "created_ms": NOW_MS} | memory) for n, memory in enumerate(memories)]
    weighed = fields | {"weights": fields.get("weights", {}) | weights}
    scene = make_scene("hybrid", entries, [5 - behind, 5, -5], now_ms=NOW_MS, **weighed)
    return ids_of(scene, rank(scene))


def test_every_factor_and_boost_has_a_case() -> None:
    assert CASES.keys() | {"semantic"} == WEIGHTS["hybrid"].keys() | BOOSTS["hybrid"].keys()


@pytest.mark.parametrize("name", CASES)
def test_weight_of_5_reorders_a_pair_that_fits_about_alike(name: str) -> None:
    assert order(name, 0.2) == ["m1", "m0", "m2"]
    assert order(name, 0.2, **{name: 5}) == ["m0", "m1", "m2"]


def test_semantic_weight_of_5_reorders_a_pair() -> None:
    assert order("importance", 0.2, importance=2) == ["m0", "m1", "m2"]
    assert order("importance", 0.2, importance=2, semantic=5) == ["m1", "m0", "m2"]


@pytest.mark.parametrize("name", CASES)
def test_default_weight_orders_a_pair_that_fits_alike(name: str) -> None:
    assert order(name, 1e-4, **{name: 0}) == ["m1", "m0", "m2"]
    assert order(name, 1e-4) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("mode", ["hybrid", "balanced"])
def test_all_boosts_do_not_put_an_unrelated_memory_first(mode: Mode) -> None:
    entries = [make_entry(n, episode=n, created_ms=NOW_MS) for n in range(3)]
    given: dict[str, Any] = {"relationship": {2: 1.0}, "returned": [2], "usage": {2: Usage(NOW_MS, 9, 9, 0)}}
    scene = make_scene(mode, entries, [5, 4.5, 3], now_ms=NOW_MS, vectors={0: (0, 1), 2: (1, 0)}, **given)
    assert ids_of(scene, rank(scene))[0] == "m0"


@pytest.mark.parametrize("mode", ["hybrid", "balanced"])
def test_thumbs_up_does_not_put_an_unrelated_memory_first(mode: Mode) -> None:
    texts = {"bike": "The red bike is in the garage", "tea": "We had green tea", "train": "The train was late"}
    told = [make_event("memory", id=name, content=text, confidence=0.5) for name, text in texts.items()]
    judged = [make_event("memory.feedback", memory_id=name, useful=True) for name in ("tea", "train")]
    ask = make_event("recall", query="Where is the red bike?", mode=mode, session_id="s")
    for response in run_flow([*told, ask, judged[0], ask, judged[1], ask]).responses:
        assert ids(response)[0] == "bike"
