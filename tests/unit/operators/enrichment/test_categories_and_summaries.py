"""Categories of memories, and summaries of categories and episodes: which model output is kept."""

from typing import Any

import pytest

from recallflow.events import CategorySummary, MemoryUpdate
from recallflow.operators.enrichment.facts_and_summaries import SUMMARY_CHARACTERS
from tests.unit.operators.enrichment.models import Scripted, memory, parsed, request, results

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
        assert (event.memory_id, event.given()) == (about.memory_id, {"category": category})
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


def summed_up(summary: str, task: str = "summarise_category") -> Any:
    model = Scripted(**{task: {"summary": summary}})
    about = request([task], FLIGHT, SOUP, category="travel", episode_id="ep_1")
    (result,) = results([about], model)
    assert [one["text"] for one in model.data()["texts"]] == [FLIGHT.content, SOUP.content]
    return result


def test_a_categorys_summary_is_made_from_all_that_was_read() -> None:
    (event,) = parsed(summed_up("Ann's  flight leaves at 9:40,\nand Bob loves Gazpacho."))
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
    result = summed_up(summary, task)
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
    assert len(model.prompts[0].user) < 40_000
