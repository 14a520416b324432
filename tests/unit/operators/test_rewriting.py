"""Questions split by a language model into smaller ones, and the merging of their answers."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.recall.pipeline import best_first
from tests.unit.operators.harness import DAY_MS, MEMORIES, Harness, answers, codes, ids, make_event
from tests.unit.operators.models import Language

Answered = Callable[..., list[dict[str, Any]]]

WHOLE = "In which city was the founder of the bakery where Ana works born?"
PARTS = ["At which bakery does Ana work?", "Who founded the bakery Tulipa?", "Where was Rui born?"]
SAID = {
    "works": "Ana works at the bakery Tulipa since May", "founded": "The bakery Tulipa was founded by Rui",
    "born": "Rui was born in Faro", "noise1": "In which city the founder lives nobody knows",
    "noise2": "The city founder was born in the bakery of a museum", "noise3": "Ana works in the city on Mondays",
}  # fmt: skip
TOLD = [make_event("memory", n, id=one, content=text) for n, (one, text) in enumerate(SAID.items())]


@pytest.fixture
def language() -> Language:
    return Language(rewrite={"questions": PARTS})


@pytest.fixture
def answered(open_harness: Callable[..., Harness], language: Language) -> Answered:
    """Return the answers to queries on a log of the memories and these, which ends."""
    engine = open_harness(models=Models(TimedModel(language, 60.0)), one_log=True)
    engine.run(MEMORIES, *TOLD)
    return lambda *asked: answers(engine.run(MEMORIES, *asked))


def ask(**fields: Any) -> dict[str, Any]:
    return make_event("recall", DAY_MS, **{"query": WHOLE, "k": 3} | fields)


def test_merged_answer_has_the_best_of_each_question(answered: Answered, language: Language) -> None:
    asked = [ask(k=4), *(ask(query=part, k=4) for part in PARTS)]
    alone = answered(*asked)
    (merged,) = answered(ask(k=4, rewrite=True))
    assert ids(merged)[0] == ids(alone[0])[0]
    assert {ids(one)[0] for one in alone} <= {*ids(merged)}
    assert {"founded", "born"} <= {*ids(merged)}
    assert (merged["status"], merged["computation_tier"]) == ("ok", "llm")
    assert merged["routing_info"]["rewritten"] == PARTS
    assert language.shown("rewrite") == {"question": WHOLE}


def test_memory_fields_are_of_the_question_that_found_it(answered: Answered) -> None:
    asked = [ask(), *(ask(query=part) for part in PARTS)]
    # Usage counts in scores: the merged answer is given first.
    merged, *alone = answered(ask(rewrite=True), *asked)
    asked_apart = zip([WHOLE, *PARTS], alone, strict=True)
    by_question = {text: {one["id"]: one for one in found["memories"]} for text, found in asked_apart}
    for memory in merged["memories"]:
        own = by_question[memory.get("question", WHOLE)][memory["id"]]
        assert (memory["relevance"], memory["why"]) == (own["relevance"], own["why"])
    assert [memory["rank"] for memory in merged["memories"]] == [1, 2, 3]
    assert {memory.get("question", WHOLE) for memory in merged["memories"]} > {WHOLE}
    assert merged["answerable"] == max(found["answerable"] for found in alone)


@pytest.mark.parametrize("said", [{"questions": []}, {"questions": [WHOLE.lower(), "", "x" * 301]}])
def test_nothing_to_ask_beside_it_changes_nothing(answered: Answered, language: Language, said: dict[str, Any]) -> None:
    language.says["rewrite"] = said
    rewritten, alone = answered(ask(rewrite=True), ask())
    assert ids(rewritten) == ids(alone)
    assert (rewritten["status"], "rewritten" in rewritten["routing_info"]) == ("ok", False)


def test_filters_and_the_moment_hold_for_every_question(answered: Answered) -> None:
    other = make_event("memory", 9, id="other", content="Rui was born in Porto", tags=["other"])
    asked = ask(rewrite=True, filters={"tags": ["other"]})
    before = ask(rewrite=True, as_of={"ingestion_time": "1970-01-01T00:00:00.001Z"}, k=9)
    filtered, past = answered(other, asked, before)
    assert (ids(filtered), {*ids(past)}) == (["other"], {"works", "founded"})


@pytest.mark.parametrize("mode", ["recency", "episode"])
def test_answers_that_are_not_ordered_by_fit_are_not_merged(answered: Answered, language: Language, mode: str) -> None:
    (response,) = answered(ask(rewrite=True, mode=mode))
    assert (language.asked, codes(response), response["status"]) == ([], ["llm_skipped"], "ok")


@given(st.lists(st.lists(st.integers(0, 20), unique=True, max_size=8), min_size=1, max_size=4), st.integers(1, 12))
def test_memory_takes_its_best_rank_of_all_answers(answers_given: list[list[int]], k: int) -> None:
    named = [[(memory, number) for memory in one] for number, one in enumerate(answers_given)]
    found = best_first(named, key=lambda one: one[0])
    merged = [memory for memory, _ in found]
    assert sorted(merged) == sorted({memory for one in answers_given for memory in one})
    places = [min((one.index(memory), n) for n, one in enumerate(answers_given) if memory in one) for memory in merged]
    assert places == sorted(places)
    assert [number for _, number in found] == [number for _, number in places]  # the answer where it ranks best
    if own := answers_given[0]:
        assert merged[0] == own[0]
    for one in answers_given:
        if one and k >= len(answers_given):
            assert one[0] in merged[:k]
