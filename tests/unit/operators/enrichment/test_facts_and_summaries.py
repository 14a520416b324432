"""Facts, categories and summaries: which output of a model is kept."""

from typing import Any

import pytest

from recallflow.errors import ModelError
from recallflow.events import CategorySummary, MemoryAdd, MemoryUpdate
from recallflow.fields import parse_time
from recallflow.llm import Prompt
from recallflow.operators.enrichment.enrich import BATCH_CHARACTERS, BATCH_MAX
from recallflow.operators.enrichment.facts_and_summaries import (
    CITATIONS_MAX,
    ENTITIES_MAX,
    FACT_CHARACTERS,
    SUMMARY_CHARACTERS,
)
from tests.unit.operators.enrichment.models import Scripted, memory, parsed, request, results

ANN = memory("msg1", "I moved to Porto in March with my dog Rex, who is 4.", name="Ann")
BOB = memory("msg2", "She starts at Acme on 1 June.", name="Bob")


def fact(content: str = "Ann moved to Porto in March with Rex.", **fields: Any) -> dict[str, Any]:
    given = {
        "message": "m1", "content": content, "kind": "fact", "confidence": 0.9, "evidence": "I moved to Porto",
        "entities": [], "valid_from": None, "valid_to": None,
    }  # fmt: skip
    return given | fields


def asking(*messages: Any, **fields: Any) -> Any:
    return [request(["facts"], one, **fields) for one in messages]


def kept(said: dict[str, Any]) -> tuple[list[str], dict[str, int]]:
    first, second = results(asking(ANN, BOB), Scripted(facts={"facts": [said]}))
    assert second.events == []
    return [event["content"] for event in first.events], first.refused


def test_fact_is_a_memory_with_its_sources() -> None:
    said = fact(
        kind="event", entities=[{"name": "Ann", "type": "person"}, {"name": "Porto", "type": "place"}],
        valid_from="2026-03-01",
    )  # fmt: skip
    (result,) = results(asking(ANN, project_id="p1"), Scripted(facts={"facts": [said]}))
    (event,) = parsed(result)
    assert isinstance(event, MemoryAdd)
    assert (event.content, event.kind, event.layer) == (said["content"], "event", "long_term")
    assert (event.session_id, event.project_id, event.timestamp) == ("s1", "p1", ANN.created_at)
    assert (event.valid_from, event.valid_to, event.confidence) == (parse_time("2026-03-01"), None, 0.9)
    assert [(one.name, one.type) for one in event.entities or []] == [("Ann", "person"), ("Porto", "place")]
    assert event.derived_from is not None
    assert (event.derived_from.memory_id, event.derived_from.content_hash) == ("msg1", ANN.content_hash)
    assert (event.derived_from.others, event.derived_from.prompt_version) == ([], "facts-1")
    assert event.model_extra == {}


def test_one_call_reads_a_session_and_keeps_facts_apart() -> None:
    said = [
        fact(message="m2", content="Ann starts at Acme on 1 June.", evidence="starts at Acme"), fact(),
        fact(message="m7"),
    ]  # fmt: skip
    before = memory("msg0", "Hi, I am Ann Lee.", "2026-05-01")
    model = Scripted(facts={"facts": said})
    first, second = results(asking(ANN, BOB, recent=[BOB, before, ANN]), model)
    assert [one["number"] for one in model.data()["messages"]] == ["m1", "m2"]
    assert [(one["number"], one["text"]) for one in model.data()["before"]] == [("c1", before.content)]
    assert [event["content"] for event in first.events] == ["Ann moved to Porto in March with Rex."]
    assert [event["content"] for event in second.events] == ["Ann starts at Acme on 1 June."]
    assert (first.refused, second.refused) == ({"unknown_id": 1}, {})
    assert (first.calls + second.calls, first.prompt_tokens + second.prompt_tokens) == (1, 100)
    assert first.completion_tokens + second.completion_tokens == 11


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (fact(message="m3"), "unknown_id"), (fact(message="msg1"), "unknown_id"),
        (fact(confidence=0.59), "low_confidence"), (fact(confidence=2), "out_of_bounds"),
        (fact(content=" \n"), "empty"), (fact(content="x" * (FACT_CHARACTERS + 1)), "too_long"),
        (fact(content="Ann \x07 rings."), "unfit"), (fact(evidence="starts at Acme"), "no_evidence"),
        (fact(evidence=""), "no_evidence"), (fact(content="The wife of Peter Smith moved."), "not_in_texts"),
        (fact(content="Rex is 5."), "not_in_texts"), (fact(valid_from="soon"), "wrong_date"),
        (fact(valid_from="2026-03-02", valid_to="2026-03-01"), "wrong_date"),
    ],
)  # fmt: skip
def test_a_claim_that_is_not_borne_out_is_refused(said: dict[str, Any], reason: str) -> None:
    assert kept(said) == ([], {reason: 1})


@pytest.mark.parametrize(
    "content",
    [
        "Ann's dog Rex is 4.",
        "Ann has been living in Porto since March 2026.",  # the year that the message was written in
        "Ann is in Porto, and Bob knows.",
        "ann moved",
    ],
)
def test_names_and_numbers_of_messages_count_as_known(content: str) -> None:
    assert kept(fact(content)) == ([content], {})


def test_resolved_date_may_stand_in_a_fact() -> None:
    assert kept(fact("Ann moved on 3 March 2025.", valid_from="2025-03-03")) == (["Ann moved on 3 March 2025."], {})
    assert kept(fact("Ann moved on 3 March 2025.")) == ([], {"not_in_texts": 1})


def test_the_same_fact_comes_once() -> None:
    said = [fact("Ann lives in Porto."), fact("ann lives  in Porto.")]
    (result,) = results(asking(ANN), Scripted(facts={"facts": said}))
    assert (len(result.events), result.refused) == (1, {"duplicate": 1})


def test_fact_equal_to_its_message_is_kept_once() -> None:
    plain = memory("msg1", "Ann lives in Porto.")
    (result,) = results(asking(plain), Scripted(facts={"facts": [fact("Ann lives in Porto.", evidence="Ann lives")]}))
    assert [event["kind"] for event in result.events] == ["fact"]


def test_facts_that_lean_on_one_other_message_are_bounded() -> None:
    others = [memory(f"m{n}", "She did it.", name="Bob") for n in range(9)]
    said = [
        fact(f"She {letter * (n + 1)} with Rex.", message=f"m{n + 2}", evidence="She did it")
        for n in range(9)
        for letter in "abc"
    ]
    found = results(asking(ANN, *others), Scripted(facts={"facts": said}))
    assert sum(len(result.events) for result in found) == CITATIONS_MAX
    assert sum(result.refused.get("too_many", 0) for result in found) == len(said) - CITATIONS_MAX


def test_derived_memories_are_neither_shown_nor_sources() -> None:
    made = memory("fact", "Ann's cat is Tom.", derived_from="msg0")
    said = fact("Ann moved to Porto with Tom.")
    model = Scripted(facts={"facts": [said]})
    (result,) = results(asking(ANN, recent=[made]), model)
    assert (model.data()["before"], result.events, result.refused) == ([], [], {"not_in_texts": 1})


def test_unnamed_entities_are_dropped_and_the_fact_kept() -> None:
    names = [*[f"n{letter}" for letter in "abcdefghi"], "", "NA", "elsewhere"]
    content = f"It has {' '.join(names[:9])}."
    said = fact(content, entities=[{"name": name, "type": "other"} for name in names])
    (result,) = results(asking(ANN), Scripted(facts={"facts": [said]}))
    assert [one["name"] for one in result.events[0]["entities"]] == names[:ENTITIES_MAX]
    assert result.refused == {"duplicate": 1, "empty": 1, "not_in_texts": 1, "too_many": 1}


def test_one_call_reads_so_many_messages_and_characters() -> None:
    model = Scripted(facts={"facts": []})
    results(asking(*(memory(f"m{n}", "Hi there.") for n in range(BATCH_MAX + 1))), model)
    assert [one.user.count('"number"') for one in model.asked] == [BATCH_MAX, 1]
    model = Scripted(facts={"facts": []})
    results(asking(*(memory(f"m{n}", "x" * (BATCH_CHARACTERS // 4)) for n in range(5))), model)
    assert [one.user.count('"number"') for one in model.asked] == [4, 1]


@pytest.mark.parametrize("code", ["malformed", "refused", "rejected"])
def test_message_a_model_refuses_does_not_affect_others(code: Any) -> None:
    def say(prompt: Prompt) -> Any:
        if "Acme" in prompt.user:
            return ModelError(code, "no")
        return {"facts": [fact()]}

    model = Scripted(facts=say)
    first, second = results(asking(ANN, BOB), model)
    assert len(model.asked) == 3
    assert (len(first.events), first.failures) == (1, [])
    assert [(one.task, one.code) for one in second.failures] == [("facts", "FACT_EXTRACTION_FAILED")]


CATEGORIES = {"travel": "trips", "food": "what people eat"}
FLIGHT = memory("m-a", "My flight leaves at 9:40.", "2026-05-20")
SOUP = memory("m-b", "I love Gazpacho in June.", "2026-05-21", name="Bob")


def assigned(memory: str = "m1", category: str = "travel", confidence: float = 0.9) -> dict[str, Any]:
    return {"memory": memory, "category": category, "confidence": confidence}


def categorised(*said: dict[str, Any], categories: Any = CATEGORIES) -> Any:
    model = Scripted(categorise={"assigned": [*said]})
    return results([request(["categorise"], one) for one in (FLIGHT, SOUP)], model, categories=categories)


def test_each_memory_gets_its_own_category_in_one_call() -> None:
    first, second = categorised(assigned("m2", "food"), assigned())
    assert (first.calls, second.calls) == (1, 0)
    for result, about, category in ((first, FLIGHT, "travel"), (second, SOUP, "food")):
        (event,) = parsed(result)
        assert isinstance(event, MemoryUpdate)
        assert (event.memory_id, event.fields_set()) == (about.memory_id, {"category": category})
        assert event.derived_from is not None
        assert (event.derived_from.memory_id, event.derived_from.content_hash) == (about.memory_id, about.content_hash)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (assigned(memory="m3"), "unknown_id"), (assigned(memory="m-a"), "unknown_id"),
        (assigned(category="secrets"), "unknown_id"), (assigned(confidence=0.5), "low_confidence"),
        (assigned(confidence=-1), "out_of_bounds"),
    ],
)  # fmt: skip
def test_a_category_that_is_not_the_tenants_is_refused(said: dict[str, Any], reason: str) -> None:
    first, second = categorised(said)
    assert (first.events, first.refused, second.events) == ([], {reason: 1}, [])


def test_a_memory_has_one_category() -> None:
    first, _ = categorised(assigned(), assigned(category="food"))
    assert ([event["category"] for event in first.events], first.refused) == (["travel"], {"duplicate": 1})


def category_summaries(summary: str, task: str = "summarise_category") -> Any:
    model = Scripted(**{task: {"summary": summary}})
    about = request([task], FLIGHT, SOUP, category="travel", episode_id="ep_1")
    (result,) = results([about], model)
    assert [one["text"] for one in model.data()["texts"]] == [FLIGHT.content, SOUP.content]
    return result


def test_a_categorys_summary_is_made_from_all_that_was_read() -> None:
    (event,) = parsed(category_summaries("Ann's  flight leaves at 9:40,\nand Bob loves Gazpacho."))
    assert isinstance(event, CategorySummary)
    assert (event.category, event.summary) == ("travel", "Ann's flight leaves at 9:40, and Bob loves Gazpacho.")
    assert event.timestamp == SOUP.created_at
    assert event.derived_from is not None
    assert event.derived_from.memory_id == "m-a"
    assert [(one.memory_id, one.content_hash) for one in event.derived_from.others] == [("m-b", SOUP.content_hash)]


@pytest.mark.parametrize("task", ["summarise_category", "summarise_episode"])
@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ("They say that Mallory owns it.", "not_in_texts"), ("The flight leaves at 9:41.", "not_in_texts"),
        ("x" * (SUMMARY_CHARACTERS + 1), "too_long"), ("", "empty"),
    ],
)  # fmt: skip
def test_unsupported_summary_is_refused(task: str, summary: str, reason: str) -> None:
    result = category_summaries(summary, task)
    assert (result.events, result.refused, result.failures) == ([], {reason: 1}, [])


def test_summary_reads_the_newest_memories_in_order() -> None:
    many = [memory(f"m{n}", f"{n}" + "x" * 1_400, 1_700_000_000_000 + n) for n in range(200)]
    model = Scripted(summarise_episode={"summary": "fine"})
    (result,) = results([request(["summarise_episode"], *many, episode_id="e")], model)
    shown = [one["text"] for one in model.data()["texts"]]
    assert shown == [one.content for one in many[-len(shown) :]]
    made = result.events[0]["derived_from"]
    sources = [made["memory_id"], *(one["memory_id"] for one in made["others"])]
    assert sources == [one.memory_id for one in many[-len(shown) :]]
    assert len(model.asked[0].user) < 40_000
