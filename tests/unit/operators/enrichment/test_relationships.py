"""Relations between memories and entities: which claims of a model are kept."""

from collections.abc import Callable
from typing import Any

import pytest

from recallflow.events import EnrichmentRequest, GraphEdges, ShownEntity
from recallflow.operators.enrichment.relationships import CONDITIONS, RELATIONS_MAX, REPLACED_MAX
from recallflow.state.graph_codec import MEMORY_KIND, NODE_KINDS
from tests.unit.operators.enrichment.models import Scripted, memory, parsed, request, results

LISBON = memory("old", "I live in Lisbon.", "2026-01-01")
PORTO = memory("new", "We moved to\n Porto last week.", "2026-03-01")
BREAD = memory("bread", "I bake bread.", "2026-01-02")


def verdict(
    memory: str = "m2", says: str = "refines", confidence: float = 0.9, evidence: str = "moved to Porto"
) -> Any:
    return {"memory": memory, "verdict": says, "confidence": confidence, "evidence": evidence}


def classified(*said: dict[str, Any]) -> Any:
    (result,) = results([asking(LISBON)], Scripted(classify={"verdicts": [*said]}))
    return result


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
    assert "old" not in model.asked[0].user


def test_replacing_memory_supersedes_the_old_one() -> None:
    (event,) = parsed(classified(verdict()))
    assert isinstance(event, GraphEdges)
    (edge,) = event.edges
    assert (edge.source, edge.type, edge.target) == ("memory:new", "supersedes", "memory:old")
    assert (edge.confidence, edge.evidence, event.timestamp) == (0.9, "new", PORTO.created_at)
    assert event.derived_from is not None
    assert event.derived_from.model_dump() == {
        "memory_id": "new", "content_hash": PORTO.content_hash,
        "others": [{"memory_id": "old", "content_hash": LISBON.content_hash}], "model": "scripted",
        "prompt_version": "classify-1", "source": "memory.events:0:7",
    }  # fmt: skip


@pytest.mark.parametrize(("new_at", "newer"), [("2026-03-01", "new"), ("2025-12-31", "old"), ("2026-01-01", "new")])
def test_newer_fact_supersedes_and_ties_go_to_later_arrival(new_at: str, newer: str) -> None:
    about = memory("new", PORTO.content, new_at)
    (result,) = results([asking(LISBON, about=about)], Scripted(classify={"verdicts": [verdict()]}))
    (event,) = parsed(result)
    assert isinstance(event, GraphEdges)
    assert event.edges[0].source == f"memory:{newer}"
    assert event.timestamp == max(LISBON.created_at, about.created_at)


def test_contradiction_is_emitted_once_for_both_directions() -> None:
    (event,) = parsed(classified(verdict(says="contradicts")))
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
def test_verdict_without_evidence_is_refused(said: dict[str, Any], says: str, reason: str) -> None:
    result = classified(said | {"verdict": says})
    assert (result.events, result.refused, result.failures) == ([], {reason: 1}, [])


def test_a_memory_replaces_a_few_those_it_is_surest_of() -> None:
    similar = [memory(f"old{n}", f"I live in Lisbon, {n}.", "2026-01-01") for n in range(10)]
    said = [verdict(memory=f"m{n + 2}", confidence=0.75 + n / 100) for n in range(10)]
    (result,) = results([asking(*similar)], Scripted(classify={"verdicts": said}))
    targets = [event["edges"][0]["target"] for event in result.events]
    assert targets == [f"memory:old{n}" for n in range(9, 9 - REPLACED_MAX, -1)]
    assert result.refused == {"too_many": 10 - REPLACED_MAX}


TEA = memory("new", "In the mornings Ann prefers tea to coffee because of her stomach, till July.")
ACHE = memory("ache", "My stomach hurts.", "2026-05-01")
OTHER = memory("other", "It rains.", "2026-05-02")


def end(name: str, kind: str = "entity") -> dict[str, str]:
    return {"kind": kind, "name": name}


NEW, RECENT = end("m1", "memory"), end("m2", "memory")


def relation(source: Any = None, says: str = "prefers_over", target: Any = None, **fields: Any) -> dict[str, Any]:
    given = {
        "source": source or end("tea"), "type": says, "target": target or end("coffee"), "weight": 0.8,
        "confidence": 0.7, "evidence": "prefers tea to coffee", "expires_at": None,
    }  # fmt: skip
    return given | fields


def told(*said: dict[str, Any]) -> Any:
    (result,) = results([request(["extract"], TEA, recent=[ACHE, OTHER])], Scripted(extract={"relations": [*said]}))
    return result


@pytest.mark.parametrize(
    ("said", "edge", "others"),
    [
        (relation(), ("entity:tea", "prefers_over", "entity:coffee"), []),
        (relation(end("Ann"), "depends_on", end("tea")), ("entity:Ann", "depends_on", "entity:tea"), []),
        (relation(NEW, "caused_by", RECENT), ("memory:new", "caused_by", "memory:ache"), ["ache"]),
        (relation(RECENT, "specializes", NEW), ("memory:ache", "specializes", "memory:new"), ["ache"]),
        (
            relation(NEW, "conditional_on", end(" Time:  Morning", "condition")),
            ("memory:new", "conditional_on", "condition:time:morning"),
            [],
        ),
        (
            relation(end("tea"), "conditional_on", end("time:9:30", "condition")),
            ("entity:tea", "conditional_on", "condition:time:9:30"),
            [],
        ),
    ],
)
def test_a_relation_is_an_edge_with_its_evidence(said: Any, edge: tuple[str, ...], others: list[str]) -> None:
    (event,) = parsed(told(said))
    assert isinstance(event, GraphEdges)
    (found,) = event.edges
    assert (found.source, found.type, found.target) == edge
    assert (found.weight, found.confidence, found.evidence, found.expires_at) == (0.8, 0.7, "new", None)
    assert event.derived_from is not None
    assert (event.derived_from.memory_id, event.derived_from.prompt_version) == ("new", "extract-1")
    assert [one.memory_id for one in event.derived_from.others] == others


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (relation(NEW, "caused_by", end("m9", "memory")), "unknown_id"),
        (relation(NEW, "caused_by", end("ache", "memory")), "unknown_id"),
        (relation(NEW, "caused_by", NEW), "own_memory"), (relation(end("Tea"), target=end("tea ")), "own_memory"),
        (relation(RECENT, "caused_by", end("m3", "memory")), "wrong_end"),
        (relation(RECENT, "caused_by", end("tea")), "wrong_end"),
        (relation(end("time:morning", "condition")), "wrong_end"),
        (relation(NEW, "conditional_on", RECENT), "wrong_end"),
        (relation(NEW, "caused_by", end("time:morning", "condition")), "wrong_end"),
        (relation(NEW, "conditional_on", end("memory:ache", "condition")), "wrong_end"),
        (relation(NEW, "conditional_on", end("tag:time", "condition")), "wrong_end"),
        (relation(NEW, "conditional_on", end("morning", "condition")), "wrong_end"),
        (relation(NEW, "conditional_on", end("time: ", "condition")), "wrong_end"),
        (relation(NEW, "conditional_on", end("time:" + "x" * 99, "condition")), "too_long"),
        (relation(end("rain")), "not_in_texts"), (relation(end("te")), "not_in_texts"), (relation(end("")), "empty"),
        (relation(confidence=0.59), "low_confidence"), (relation(confidence=1.5), "out_of_bounds"),
        (relation(weight=-1), "out_of_bounds"), (relation(evidence="My stomach hurts."), "no_evidence"),
        (relation(expires_at="July"), "wrong_date"), (relation(expires_at="2026-05-20T09:00:00Z"), "wrong_date"),
    ],
)  # fmt: skip
def test_relation_without_evidence_is_refused(said: Any, reason: str) -> None:
    result = told(said)
    assert (result.events, result.refused, result.failures) == ([], {reason: 1}, [])


def test_relations_of_a_memory_are_bounded() -> None:
    words = "abcdefghijklmnopqrstuvwx"
    about = memory("new", f"It is {' '.join(words)}.")
    said = [relation(end(one), target=end("it"), evidence="It is") for one in words]
    (result,) = results([request(["extract"], about)], Scripted(extract={"relations": said}))
    assert (len(result.events), result.refused) == (RELATIONS_MAX, {"too_many": len(words) - RELATIONS_MAX})


def test_no_condition_is_called_like_another_node() -> None:
    assert not {*CONDITIONS} & (NODE_KINDS | {MEMORY_KIND})


ANA = ShownEntity(key="entity:ana silva", name="Ana Silva", type="person", told_by="Ana Silva is my sister.")
REX = ShownEntity(key="entity:rex", name="Rex")
TEXT = memory("new", "Yesterday my sister Annie and Rex came with Bob.", name="Tom")


def identity(name: str = "n1", entity: str = "e1", says: str = "same", **fields: Any) -> dict[str, Any]:
    given = {"name": name, "entity": entity, "verdict": says, "confidence": 0.9, "evidence": "my sister Annie"}
    return given | fields


def resolved(*said: dict[str, Any]) -> Any:
    (result,) = results([request(["resolve"], TEXT, entities=[ANA, REX])], Scripted(resolve={"verdicts": [*said]}))
    return result


def test_prompt_shows_unknown_names_and_known_entities() -> None:
    model = Scripted(resolve={"verdicts": []})
    results([request(["resolve"], TEXT, entities=[ANA, REX])], model)
    data = model.data()
    assert [(one["number"], one["name"]) for one in data["names"]] == [("n1", "Annie"), ("n2", "Bob"), ("n3", "Tom")]
    assert [(one["number"], one["name"]) for one in data["entities"]] == [("e1", "Ana Silva"), ("e2", "Rex")]


def test_united_entities_keep_the_known_name() -> None:
    (event,) = parsed(resolved(identity()))
    assert isinstance(event, GraphEdges)
    (edge,) = event.edges
    assert (edge.source, edge.type, edge.target) == ("entity:ana silva", "same_as", "entity:Annie")
    assert (edge.confidence, edge.evidence) == (0.9, "new")
    assert event.derived_from is not None
    assert event.derived_from.memory_id == "new"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (identity(name="n9"), "unknown_id"), (identity(name="Annie"), "unknown_id"),
        (identity(entity="entity:rex"), "unknown_id"), (identity(confidence=0.6), "low_confidence"),
        (identity(confidence=7), "out_of_bounds"), (identity(evidence="Ana Silva is my sister Annie"), "no_evidence"),
        (identity(evidence="Yesterday"), "no_evidence"),
    ],
)  # fmt: skip
def test_identity_without_evidence_is_refused(said: dict[str, Any], reason: str) -> None:
    result = resolved(said)
    assert (result.events, result.refused) == ([], {reason: 1})


@pytest.mark.parametrize(
    ("result_of", "said", "kept"),
    [
        (classified, [verdict(says="unrelated"), verdict()], 0), (told, [relation(), relation(end("TEA"))], 1),
        (resolved, [identity(), identity(entity="e2")], 1),
    ],
)  # fmt: skip
def test_first_of_repeated_claims_counts(result_of: Callable[..., Any], said: list[Any], kept: int) -> None:
    result = result_of(*said)
    assert (len(result.events), result.refused) == (kept, {"duplicate": 1})


FACT = memory("f1", PORTO.content, derived_from="old")


@pytest.mark.parametrize(
    ("task", "about", "candidates"),
    [
        # Memories of one source are not compared.
        ("classify", FACT, {"similar": [LISBON]}), ("classify", LISBON, {"similar": [FACT]}),
        ("classify", memory("f1", PORTO.content, derived_from="x"), {"similar": [memory("f2", "A", derived_from="x")]}),
        ("classify", PORTO, {"similar": [PORTO]}), ("resolve", TEXT, {"entities": []}),
        ("resolve", memory("new", "it rains.", name=None), {"entities": [ANA]}),
        ("resolve", memory("new", "and so it is.", name="Rex"), {"entities": [REX]}),
    ],
)  # fmt: skip
def test_model_is_not_asked_without_candidates(task: str, about: Any, candidates: Any) -> None:
    model = Scripted()
    (result,) = results([request([task], about, **candidates)], model)
    assert (model.asked, result.events, result.failures) == ([], [], [])
