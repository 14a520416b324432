"""Ranking: its order, its input, and its laws."""

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.control import ControlHistory, RecallSettings
from recallflow.errors import InvalidRecord
from recallflow.flows.embedded import Processed
from recallflow.operators.recall.ranking_input import Tuning, query_warnings, ranking_parameters
from recallflow.parsing import parse, parse_control
from recallflow.queries import WEIGHTS, Mode, Recall
from tests.groups import share
from tests.unit.operators.harness import DAY_MS, HOUR_MS, make_event, run_flow

FIRST_DAY, NOW_DAYS = 20_000, 20_400
TEXTS = [
    "The red bike is new", "Bo rides a bike to work", "Tea with milk?",
    "Bo met Ann in Porto, where the bike was stolen", "Green tea is fine",
]  # fmt: skip
IDS = ["a", "b", "c", "d", "e", "f"]
SHARE = st.sampled_from([0.0, 0.2, 0.5, 1.0])
DAYS = st.integers(FIRST_DAY, NOW_DAYS + 5)
CREATED = st.fixed_dictionaries(
    {"content": st.sampled_from(TEXTS), "days": DAYS},
    optional={
        "importance": SHARE,
        "confidence": SHARE,
        "layer": st.sampled_from(["rule", "working"]),
        "tags": st.just(["t"]),
        "session_id": st.sampled_from(["s", "t"]),
        "topics": st.just(["bikes"]),
        "entities": st.just([{"name": "Bo"}]),
        "valid_to": DAYS.map(lambda days: days * DAY_MS),
    },
)
CHANGED = st.fixed_dictionaries(
    {"memory_id": st.sampled_from(IDS), "days": DAYS}, optional={"content": st.sampled_from(TEXTS), "importance": SHARE}
)
VOICE = st.fixed_dictionaries({"memory_id": st.sampled_from(IDS), "useful": st.booleans()})
LOG = st.tuples(
    st.lists(CREATED, min_size=4, max_size=len(IDS)), st.lists(CHANGED, max_size=3), st.lists(VOICE, max_size=3)
)


def weights(mode: Mode) -> st.SearchStrategy[dict[str, float]]:
    known = sorted(WEIGHTS.get(mode, {}))
    return st.dictionaries(st.sampled_from(known), st.sampled_from([0.0, 0.3, 2.0])) if known else st.just({})


def question(mode: Mode) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "mode": st.just(mode),
            "query": st.sampled_from(["Who has a bike?", "When did Bo have tea?", "of the", "Porto"]),
        },
        optional={
            "weights": weights(mode),
            "filters": st.sampled_from([{"tags": ["t"]}, {"min_confidence": 0.2}, {"layers": ["rule", "long_term"]}]),
            "min_relevance": st.sampled_from([0.1, 0.3]),
            "decay": st.sampled_from([{"function": "step"}, {"function": "hyperbolic", "decay_days": 5}]),
            "entity_urns": st.just(["Bo"]),
            "traversal_depth": st.just(2),
            "session_id": st.just("s"),
            "include_history": st.booleans(),
            "as_of": DAYS.map(lambda days: {"event_time": days * DAY_MS}),
        },
    )


MODES: list[Mode] = ["hybrid", "balanced", "relevance", "recency", "entity_focused", "decayed"]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=share(0.3))
@given(log=LOG, data=st.data(), k=st.integers(1, 4))
def test_score_order_and_explanation_agree_and_nothing_depends_on_k(
    mode: Mode, log: Any, data: st.DataObject, k: int
) -> None:
    asked = data.draw(question(mode))
    if asked["mode"] not in WEIGHTS:
        asked.pop("weights", None)
    told = events(log)

    def answer(most: int) -> dict[str, Any]:
        found: dict[str, Any] = run_flow([*told, make_event("recall", NOW_DAYS * DAY_MS, k=most, **asked)]).responses[0]
        assert found["status"] != "error", found
        return found

    few, many = answer(k), answer(50)
    assert few["memories"] == many["memories"][:k]
    assert (few["answerable"], few["tiebreak_applied"]) == (many["answerable"], many["tiebreak_applied"])
    check_scores(many)


def events(log: Any) -> list[dict[str, Any]]:
    created, changed, voices = log
    found = []
    for memory_id, memory in zip(IDS, created, strict=False):
        fields = {name: value for name, value in memory.items() if name != "days"}
        found.append(make_event("memory", memory["days"] * DAY_MS, id=memory_id, **fields))
    for change in changed:
        fields = {name: value for name, value in change.items() if name != "days"}
        found.append(make_event("memory.update", change["days"] * DAY_MS, **fields))
    return [*found, *(make_event("memory.feedback", NOW_DAYS * DAY_MS, **voice) for voice in voices)]


def check_scores(answer: dict[str, Any]) -> None:
    scores = []
    for memory in answer["memories"]:
        told = memory["explanation"]
        factors, weighed = told["factors"], told["weights"]
        if weighed:
            assert factors.keys() == weighed.keys()
            score = sum(weighed[name] * factors[name] for name in factors) + sum(told["boosts"].values())
        else:
            score = math.prod(factors.values())
        # Each number is rounded to six digits.
        assert math.isclose(memory["score"], score, abs_tol=1e-5 * (1 + sum(weighed.values())))
        scores.append((sum(told["boosts"].values()), memory["score"]))
    if answer["tiebreak_applied"]:
        assert [boost for boost, _ in scores] == sorted((boost for boost, _ in scores), reverse=True)
    else:
        totals = [score for _, score in scores]
        assert totals == sorted(totals, reverse=True)


# All but `recency`, which asks for age alone; the last ones weigh age against meaning, and win by it where ages differ.
WHATEVER_THE_AGE = ("hybrid", "relevance", "episode", "auto")
BY_MEANING = (*WHATEVER_THE_AGE, "balanced", "decayed", "entity_focused")
BEGIN_MS = 1_700_000_000_000
FACT = {"content": "Kim prefers window seats on trains", "id": "fact"}
DAY = {"content": "I had a long day.", "id": "day", "name": "Kim", "session_id": "s", "role": "user"}
OTHERS = [
    {"content": "How was yours?", "id": "yours", "name": "Lee", "session_id": "s"},
    {"content": "Long as well, the meeting took for ever.", "id": "meeting", "name": "Kim", "session_id": "s"},
    {"content": "Lee collects stamps", "id": "stamps"},
    {"content": "Poor you. Shall we eat out?", "id": "eat", "name": "Lee", "session_id": "s"},
]


def told(memory: dict[str, Any], at_ms: int) -> dict[str, Any]:
    kind = {"type": "message"} if "session_id" in memory else {"type": "memory", "kind": "fact"}
    return kind | {"tenant_id": "acme", "user_id": "kim", "timestamp": BEGIN_MS + at_ms} | memory


def ask(query: str, at_ms: int, mode: str) -> dict[str, Any]:
    asked = {"type": "recall", "tenant_id": "acme", "user_id": "kim", "timestamp": BEGIN_MS + at_ms, "id": mode}
    return asked | {"query": query, "mode": mode}


def ranked(done: Processed) -> dict[str, list[str]]:
    assert not done.rejected
    return {one["query_id"]: [memory["id"] for memory in one["memories"]] for one in done.responses}


@pytest.mark.parametrize("fact_first", [True, False])
@pytest.mark.parametrize("others", [0, 1, 2, 4])
def test_answering_fact_precedes_messages_of_its_person(others: int, fact_first: bool) -> None:
    pair = [FACT, DAY] if fact_first else [DAY, FACT]
    memories = [told(one, at * HOUR_MS) for at, one in enumerate([*pair, *OTHERS[:others]])]
    questions = [ask("Does Kim prefer window seats on trains?", DAY_MS, mode) for mode in BY_MEANING]
    for mode, ids in ranked(run_flow([*memories, *questions])).items():
        assert ids[0] == "fact", mode


SUBJECTS = ("walnuts", "violin", "Porto", "kayak", "saffron", "marathon")
UNRELATED = ("The meeting ran late again.", "Nice weather out there.", "Thanks a lot!", "Where were we?", "Okay then.")
AS_FACT, KIM, LEE = range(3)


@settings(max_examples=share(0.5))
@given(
    subject=st.sampled_from(SUBJECTS),
    who=st.sampled_from([AS_FACT, KIM]),
    at_hour=st.integers(0, 24 * 90),
    unrelated=st.lists(
        st.tuples(st.sampled_from(UNRELATED), st.sampled_from([AS_FACT, KIM, LEE]), st.integers(0, 24 * 90)),
        min_size=1,
        max_size=9,
        unique_by=lambda one: one[0],
    ),
    named=st.booleans(),
    of_one_day=st.booleans(),
)
def test_all_words_of_the_question_are_never_behind_none(
    subject: str, who: int, at_hour: int, unrelated: list[tuple[str, int, int]], named: bool, of_one_day: bool
) -> None:
    words = f"Kim adores {subject} cake" if who == AS_FACT else f"I adore {subject} cake"
    every = [("answer", words, who, at_hour), *((f"u{n}", *one) for n, one in enumerate(unrelated))]
    memories = []
    for name, content, author, told_at in every:
        hour = told_at % 24 if of_one_day else told_at
        memory: dict[str, Any] = {"id": name, "content": content}
        if author != AS_FACT:
            memory |= {"session_id": f"s{hour // 24}", "name": "Kim" if author == KIM else "Lee"}
        memories.append(told(memory, hour * HOUR_MS))
    query = f"Does Kim adore {subject} cake?" if named else f"Who adores {subject} cake?"
    questions = [ask(query, 100 * DAY_MS, mode) for mode in (BY_MEANING if of_one_day else WHATEVER_THE_AGE)]
    for mode, ids in ranked(run_flow([*memories, *questions])).items():
        assert ids[0] == "answer", (mode, ids)


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
    return ranking_parameters(query, mode, tenant or RecallSettings())


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
    assert ([warning.code for warning in query_warnings(query)] == ["depth_clamped"]) is warned


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
