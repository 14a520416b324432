"""Known entities behind names: which verdicts of a model are kept."""

from typing import Any

import pytest

from recallflow.events import GraphEdges, ShownEntity
from tests.unit.operators.enrichment.models import Scripted, memory, parsed, request, results

ANA = ShownEntity(key="entity:ana silva", name="Ana Silva", type="person", told_by="Ana Silva is my sister.")
REX = ShownEntity(key="entity:rex", name="Rex")
TEXT = memory("new", "Yesterday my sister Annie and Rex came with Bob.", name="Tom")


def verdict(name: str = "n1", entity: str = "e1", says: str = "same", **fields: Any) -> dict[str, Any]:
    given = {"name": name, "entity": entity, "verdict": says, "confidence": 0.9, "evidence": "my sister Annie"}
    return given | fields


def told(*said: dict[str, Any]) -> Any:
    model = Scripted(resolve={"verdicts": [*said]})
    (result,) = results([request(["resolve"], TEXT, entities=[ANA, REX])], model)
    return result


def test_prompt_shows_unknown_names_and_known_entities() -> None:
    model = Scripted(resolve={"verdicts": []})
    results([request(["resolve"], TEXT, entities=[ANA, REX])], model)
    data = model.data()
    assert [(one["number"], one["name"]) for one in data["names"]] == [("n1", "Annie"), ("n2", "Bob"), ("n3", "Tom")]
    assert [(one["number"], one["name"]) for one in data["entities"]] == [("e1", "Ana Silva"), ("e2", "Rex")]


def test_united_entities_keep_the_known_name() -> None:
    (event,) = parsed(told(verdict()))
    assert isinstance(event, GraphEdges)
    (edge,) = event.edges
    assert (edge.source, edge.type, edge.target) == ("entity:ana silva", "same_as", "entity:Annie")
    assert (edge.confidence, edge.evidence) == (0.9, "new")
    assert event.derived_from is not None
    assert event.derived_from.memory_id == "new"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (verdict(name="n9"), "unknown_id"), (verdict(name="Annie"), "unknown_id"),
        (verdict(entity="entity:rex"), "unknown_id"), (verdict(confidence=0.6), "low_confidence"),
        (verdict(confidence=7), "out_of_bounds"), (verdict(evidence="Ana Silva is my sister Annie"), "no_evidence"),
        (verdict(evidence="Yesterday"), "no_evidence"),
    ],
)  # fmt: skip
def test_a_claim_that_is_not_borne_out_is_refused(said: dict[str, Any], reason: str) -> None:
    result = told(said)
    assert (result.events, result.refused) == ([], {reason: 1})


def test_one_name_never_makes_two_known_entities_one() -> None:
    result = told(verdict(), verdict(entity="e2"))
    assert (len(result.events), result.refused) == (1, {"duplicate": 1})


@pytest.mark.parametrize(
    ("about", "entities"),
    [(TEXT, []), (memory("new", "it rains.", name=None), [ANA]), (memory("new", "and so it is.", name="Rex"), [REX])],
)
def test_model_is_not_asked_without_candidates(about: Any, entities: list[ShownEntity]) -> None:
    model = Scripted()
    (result,) = results([request(["resolve"], about, entities=entities)], model)
    assert (model.prompts, result.events, result.failures) == ([], [], [])


def test_author_may_match_a_known_person() -> None:
    text = memory("new", "I am the Silva you know.", name="Tom")
    tom = ShownEntity(key="entity:tom silva", name="Tom Silva")
    said = {"verdicts": [verdict(evidence="I am the Silva you know", name="n1")]}
    (result,) = results([request(["resolve"], text, entities=[tom])], Scripted(resolve=said))
    # n1 is Silva: the text's own names come first
    assert [event["edges"][0]["target"] for event in result.events] == ["entity:Silva"]
    said["verdicts"][0]["name"] = "n2"
    (result,) = results([request(["resolve"], text, entities=[tom])], Scripted(resolve=said))
    assert [event["edges"][0]["target"] for event in result.events] == ["entity:Tom"]
