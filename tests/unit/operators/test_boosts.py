"""What is added on top of scores, by hand and through the flow."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recallflow.control import TenantSettings
from recallflow.decisions import History
from recallflow.operators.recall.factors import boosts
from recallflow.operators.recall.modes import rank
from recallflow.queries import BOOSTS, WEIGHTS, Mode
from recallflow.state.usage import Usage
from tests.unit.operators.harness import explained, ids_of, make_entry, make_event, make_scene, run_flow

LIKED = Usage(useful=1)


def test_personalisation_is_by_the_mean_of_what_was_useful() -> None:
    # Liked: (1, 0) and (0, 1), so the taste is (√½, √½). Cosines: √½, √½, 1, -√½ (none below 0), and unknown.
    vectors = {0: (1, 0), 1: (0, 1), 2: (0.5**0.5, 0.5**0.5), 3: (-1, 0)}
    entries = [make_entry(n, episode=0) for n in range(5)]
    usage = {0: LIKED, 1: Usage(useful=3, not_useful=2), 3: Usage(useful=2, not_useful=2)}
    found = boosts(make_scene("hybrid", entries, [0] * 5, vectors=vectors, usage=usage), np.arange(5), 1.0)
    assert found.keys() == {"personalisation"}
    np.testing.assert_allclose(found["personalisation"], [0.0707107, 0.0707107, 0.1, 0, 0.0603553], atol=1e-6)


def test_what_was_useful_but_has_no_vector_tells_no_taste() -> None:
    entries = [make_entry(n, episode=0) for n in range(2)]
    scene = make_scene("hybrid", entries, [0, 0], vectors={1: (1, 0)}, usage={0: LIKED})
    assert boosts(scene, np.arange(2), 1.0) == {}


@pytest.mark.parametrize(("mode", "scale"), [("hybrid", 1.0), ("balanced", 0.5)])
def test_boosts_are_log_odds_and_come_before_the_cut(mode: Mode, scale: float) -> None:
    # Two units of log-odds, which the mode's semantic weight is worth: m2 gains 0.03 + 0.8 units, m1 gains 0.03.
    entries = [make_entry(n, episode=0) for n in range(5)]
    given: dict[str, Any] = {"relationship": {2: 0.8}, "returned": [1, 2], "k": 2, "weights": {"recency": 0.0}}
    ranking = rank(asked := make_scene(mode, entries, [2.0, 1.9, 1.5, 0.0, 0.0], **given))
    assert not ranking.tiebreak_applied
    assert ids_of(asked, ranking) == ["m2", "m0"]
    assert ranking.scores[0] - ranking.scores[1] == pytest.approx((0.83 - 0.5) / 2 * scale)
    np.testing.assert_allclose(ranking.boosts["relationship"], [0.4 * scale, 0])
    np.testing.assert_allclose(ranking.boosts["session_continuity"], [0.015 * scale, 0])


@pytest.mark.parametrize("mode", ["hybrid", "balanced"])
def test_each_boost_has_a_weight_of_its_own(mode: Mode) -> None:
    entries = [make_entry(n, episode=0) for n in range(3)]
    given: dict[str, Any] = {"relationship": {2: 0.8}, "returned": [1], "usage": {0: LIKED}, "vectors": {0: (1, 0)}}
    scene = make_scene(mode, entries, [2, 1, 0], **given)
    usual = boosts(scene, np.arange(3), 2.0)
    assert usual.keys() == BOOSTS[mode].keys()
    for name in usual:
        for times in (0.0, 0.5, 2.0):
            weights = {**BOOSTS[mode], name: times * BOOSTS[mode][name]}
            found = boosts(replace(scene, tuning=replace(scene.tuning, boosts=weights)), np.arange(3), 2.0)
            assert found.keys() == usual.keys() - ({name} if not times else set())
            for other, values in found.items():
                expected = usual[other] * (times if other == name else 1.0)
                np.testing.assert_allclose(values, expected)


def test_answer_explains_boosts_with_the_weights_that_hold() -> None:
    told = [make_event("message", id=name, content=text) for name, text in (("a", "red bike"), ("b", "green tea"))]
    judged = make_event("memory.feedback", memory_id="a", useful=True)
    settings = {"weights": {"hybrid": {"personalisation": 0}}}
    decided = History()
    decided.add(0, TenantSettings(type="tenant.settings", tenant_id="acme", name="recall", settings=settings))
    ask = make_event("recall", query="red bike", k=1)
    own, balanced = ask | {"weights": {"personalisation": 0.5}}, ask | {"mode": "balanced", "session_id": "s"}
    asked = [ask, own, balanced, balanced, balanced | {"session_id": "t"}, balanced | {"as_of": {"event_time": 5}}]
    done = run_flow([*told, judged, *asked], decisions=decided).responses
    unit = explained(done[1])["a"]["weights"]["recency"] / WEIGHTS["hybrid"]["recency"]  # a score's, of log-odds
    liked, returned = pytest.approx(0.05 * unit, rel=1e-3), pytest.approx(0.015 * unit, rel=1e-3)
    assert [explained(response)["a"]["boosts"] for response in done] == [
        {},
        {"personalisation": pytest.approx(0.5 * unit, rel=1e-3)},
        {"personalisation": liked},
        {"personalisation": liked, "session_continuity": returned},
        {"personalisation": liked},
        {},
    ]
    for response in done:
        told_of = explained(response)["a"]
        total = sum(told_of["weights"][name] * value for name, value in told_of["factors"].items())
        assert response["memories"][0]["score"] == pytest.approx(total + sum(told_of["boosts"].values()), abs=1e-5)


@pytest.mark.parametrize("mode", ["relevance", "recency", "entity_focused", "episode", "decayed"])
def test_other_modes_have_none(mode: Mode) -> None:
    entries = [make_entry(n, episode=0) for n in range(3)]
    given: dict[str, Any] = {
        "relationship": {2: 0.1}, "returned": [1], "usage": {0: LIKED}, "vectors": {0: (1, 0), 1: (1, 0)},
    }  # fmt: skip
    assert rank(make_scene(mode, entries, [2, 1, 0], **given)).boosts == {}
