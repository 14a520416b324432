"""Relations between similar memories: which verdicts of a model are kept."""

from typing import Any

import pytest

from recallflow.events import EnrichmentRequest, GraphEdges
from recallflow.operators.enrichment.enrich import Thresholds
from recallflow.operators.enrichment.relationships import REPLACED_MAX
from tests.unit.operators.enrichment.models import Scripted, memory, parsed, request, results

LISBON = memory("old", "I live in Lisbon.", "2026-01-01")
PORTO = memory("new", "We moved to\n Porto last week.", "2026-03-01")
BREAD = memory("bread", "I bake bread.", "2026-01-02")


def verdict(
    memory: str = "m2", says: str = "refines", confidence: float = 0.9, evidence: str = "moved to Porto"
) -> Any:
    return {"memory": memory, "verdict": says, "confidence": confidence, "evidence": evidence}


def asking(*similar: Any, about: Any = PORTO) -> EnrichmentRequest:
    return request(["classify"], about, similar=[*similar])


def test_all_pairs_are_asked_about_in_one_call_under_numbers() -> None:
    model = Scripted(classify={"verdicts": []})
    results([asking(LISBON, BREAD)], model)
    data = model.data()
    assert data["new"] == {
        "number": "m1", "by": "Ann", "time": "2026-03-01T00:00:00Z Sunday", "text": "We moved to\n Porto last week.",
    }  # fmt: skip
    assert [(one["number"], one["text"]) for one in data["known"]] == [("m2", LISBON.content), ("m3", BREAD.content)]
    assert "old" not in model.prompts[0].user


def test_replacing_memory_supersedes_the_old_one() -> None:
    (result,) = results([asking(LISBON)], Scripted(classify={"verdicts": [verdict()]}))
    (event,) = parsed(result)
    assert isinstance(event, GraphEdges)
    (edge,) = event.edges
    assert (edge.source, edge.type, edge.target) == ("memory:new", "supersedes", "memory:old")
    assert (edge.confidence, edge.evidence, event.timestamp) == (0.9, "new", PORTO.created_at)
    assert event.derived_from is not None
    assert event.derived_from.model_dump() == {
        "memory_id": "new",
        "content_hash": PORTO.content_hash,
        "others": [{"memory_id": "old", "content_hash": LISBON.content_hash}],
        "model": "scripted",
        "prompt_version": "classify-1",
        "source": "memory.events:0:7",
    }


@pytest.mark.parametrize(("new_at", "newer"), [("2026-03-01", "new"), ("2025-12-31", "old"), ("2026-01-01", "new")])
def test_newer_fact_supersedes_and_ties_go_to_later_arrival(new_at: str, newer: str) -> None:
    about = memory("new", PORTO.content, new_at)
    (result,) = results([asking(LISBON, about=about)], Scripted(classify={"verdicts": [verdict()]}))
    (event,) = parsed(result)
    assert isinstance(event, GraphEdges)
    assert event.edges[0].source == f"memory:{newer}"
    assert event.timestamp == max(LISBON.created_at, about.created_at)


def test_contradiction_is_emitted_once_for_both_directions() -> None:
    (result,) = results([asking(LISBON)], Scripted(classify={"verdicts": [verdict(says="contradicts")]}))
    (event,) = parsed(result)
    assert isinstance(event, GraphEdges)
    assert [(e.source, e.type, e.target) for e in event.edges] == [("memory:new", "contradicts", "memory:old")]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (verdict(memory="m9"), "unknown_id"), (verdict(memory="old"), "unknown_id"),
        (verdict(memory="m1"), "own_memory"), (verdict(confidence=0.69), "low_confidence"),
        (verdict(confidence=1.01), "out_of_bounds"), (verdict(confidence=-0.1), "out_of_bounds"),
        (verdict(evidence="I live in Lisbon"), "no_evidence"), (verdict(evidence="  "), "no_evidence"),
        (verdict(evidence="we"), "no_evidence"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("says", ["refines", "contradicts"])
def test_a_claim_that_is_not_borne_out_is_refused(said: dict[str, Any], says: str, reason: str) -> None:
    (result,) = results([asking(LISBON)], Scripted(classify={"verdicts": [said | {"verdict": says}]}))
    assert (result.events, result.refused, result.failures) == ([], {reason: 1}, [])


def test_first_verdict_on_a_memory_counts() -> None:
    said = [verdict(says="unrelated"), verdict()]
    (result,) = results([asking(LISBON)], Scripted(classify={"verdicts": said}))
    assert (result.events, result.refused) == ([], {"duplicate": 1})


def test_a_memory_replaces_a_few_those_it_is_surest_of() -> None:
    similar = [memory(f"old{n}", f"I live in Lisbon, {n}.", "2026-01-01") for n in range(10)]
    said = [verdict(memory=f"m{n + 2}", confidence=0.75 + n / 100) for n in range(10)]
    (result,) = results([asking(*similar)], Scripted(classify={"verdicts": said}))
    targets = [event["edges"][0]["target"] for event in result.events]
    assert targets == [f"memory:old{n}" for n in range(9, 9 - REPLACED_MAX, -1)]
    assert result.refused == {"too_many": 10 - REPLACED_MAX}


@pytest.mark.parametrize(
    ("about", "other"),
    [
        (memory("f1", PORTO.content, derived_from="old"), LISBON),
        (LISBON, memory("f1", PORTO.content, derived_from="old")),
        (memory("f1", PORTO.content, derived_from="x"), memory("f2", "A", derived_from="x")),
        (PORTO, PORTO),
    ],
)
def test_memories_of_one_source_are_not_compared(about: Any, other: Any) -> None:
    model = Scripted()
    (result,) = results([asking(other, about=about)], model)
    assert (model.prompts, result.events, result.failures) == ([], [], [])


def test_the_threshold_is_the_settings() -> None:
    model = Scripted(classify={"verdicts": [verdict(confidence=0.5)]})
    (result,) = results([asking(LISBON)], model, thresholds=Thresholds(relationship_confidence=0.5))
    assert len(result.events) == 1
