"""Numbers of the query override the tenant's settings of that time, and those override the defaults."""

from typing import Any

import orjson
import pytest

from recallflow.control import ControlHistory, RecallSettings
from recallflow.errors import InvalidRecord
from recallflow.operators.recall.ranking_input import Tuning, tuned, validate
from recallflow.parsing import parse, parse_control
from recallflow.queries import WEIGHTS, Mode, Recall
from tests.unit.operators.harness import make_event, run_flow

TENANT = RecallSettings.model_validate(
    {
        "weights": {"hybrid": {"recency": 0.5, "usage": 0.0}, "balanced": {"recency": 0.6}},
        "decay": {"function": "linear", "max_age_days": 90},
    }
)


def tune(mode: Mode, tenant: RecallSettings | None = None, **fields: Any) -> Tuning:
    query = Recall.model_validate(
        {"type": "recall", "tenant_id": "a", "user_id": "b", "query": "?", "mode": mode} | fields
    )
    return tuned(query, mode, tenant or RecallSettings())


def problems(**fields: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRecord) as raised:
        parse(orjson.dumps({"type": "recall", "tenant_id": "a", "user_id": "b", "query": "?"} | fields))
    return [(field, problem) for field, problem in raised.value.fields]


def test_weight_is_of_query_then_tenant_then_default() -> None:
    weights = tune("hybrid", TENANT, weights={"recency": 0.7, "quality": 0.2}).weights
    defaults = {name: weight for name, weight in WEIGHTS["hybrid"].items() if name != "proximity"}
    assert weights == defaults | {"recency": 0.7, "quality": 0.2, "usage": 0.0}


def test_decay_field_is_of_query_then_tenant() -> None:
    decay = tune("recency", TENANT, decay={"max_age_days": 10}).decay
    assert (decay.function, decay.max_age_days, decay.tau_days) == ("linear", 10, 30)
    assert tune("recency", TENANT).decay == TENANT.decay
    assert tune("recency", decay={"function": "step"}).decay.function == "step"


def test_nearness_weighs_in_hybrid_only_where_the_query_asks() -> None:
    of_tenant = RecallSettings.model_validate({"weights": {"hybrid": {"proximity": 0.4}}})
    assert not tune("hybrid", of_tenant).wants_proximity
    assert tune("hybrid", of_tenant, entity_urns=["urn:x"]).weights["proximity"] == 0.4
    assert tune("hybrid", weights={"proximity": 0.1}).wants_proximity
    assert not tune("hybrid", weights={"proximity": 0}, entity_urns=["urn:x"]).wants_proximity
    assert tune("balanced").wants_proximity
    assert not tune("relevance", entity_urns=["urn:x"]).wants_proximity


@pytest.mark.parametrize(("k", "answered"), [(0, 1), (1, 1), (50, 50), (51, 50)])
def test_k_is_clamped(k: int, answered: int) -> None:
    assert tune("decayed", k=k).k == tune("hybrid", k=k).k == answered


@pytest.mark.parametrize(("depth", "warned"), [(0, True), (1, False), (3, False), (4, True), (10**30, True)])
def test_depth_out_of_range_is_a_warning(depth: int, warned: bool) -> None:
    query = Recall(type="recall", tenant_id="a", user_id="b", query="?", traversal_depth=depth)
    assert ([warning.code for warning in validate(query)] == ["depth_clamped"]) is warned


def decided(
    history: ControlHistory, at_ms: int, settings: dict[str, Any], tenant_id: str = "acme", name: str = "recall"
) -> None:
    event = {"type": "tenant.settings", "tenant_id": tenant_id, "name": name, "settings": settings}
    history.add(at_ms, parse_control(orjson.dumps(event)))


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({"weights": {"hybrid": {"recency": -1}}}, "settings.weights.hybrid.recency"),
        ({"weights": {"hybrid": {"vibes": 1}}}, "settings.weights.hybrid.vibes: no such factor; hybrid weighs"),
        ({"weights": {"hybrid": {"vibes": 1, "usage": True}}}, "settings.weights.hybrid.usage: not a number"),
        ({"weights": {"relevance": {"semantic": 1}}}, "settings.weights.relevance"),
        ({"decay": {"tau_days": 0}}, "settings.decay.tau_days"),
    ],
)
def test_settings_that_make_no_sense_are_refused_as_a_whole(settings: dict[str, Any], about: str) -> None:
    with pytest.raises(InvalidRecord) as raised:
        decided(ControlHistory(), 0, settings)
    assert about in str(raised.value)


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("hybrid", {"vibes": 1}), ("balanced", {"usage": 1}), ("recency", {"recency": 1}), ("auto", {"vibes": 1}),
        ("entity_focused", {"relationship": 0}),
    ],
)  # fmt: skip
def test_a_factor_that_the_mode_has_not_is_refused(mode: str, weights: dict[str, float]) -> None:
    ((field, _),) = problems(mode=mode, weights=weights)
    assert field == f"weights.{next(iter(weights))}"


def test_entities_without_a_graph_are_warned_of() -> None:
    said = make_event("memory", content="tea")
    asked = [
        make_event("recall", query="tea?", mode=mode, **fields)
        for mode, fields in (("hybrid", {}), ("hybrid", {"entity_urns": ["urn:x"]}), ("balanced", {}), ("recency", {}))
    ]
    responses = run_flow([said, *asked], graph_enabled=False).responses
    warned = [{w["code"] for w in r["warnings"]} & {"no_graph"} for r in responses]
    assert warned == [set(), {"no_graph"}, {"no_graph"}, set()]
