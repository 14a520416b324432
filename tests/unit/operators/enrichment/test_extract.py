"""Relations stated by a text: which claims of a model are kept."""

from typing import Any

import pytest

from recallflow.events import GraphEdges
from recallflow.fields import parse_time
from recallflow.operators.enrichment.relationships import CONDITIONS, RELATIONS_MAX
from recallflow.state.graph_codec import MEMORY_KIND, NODE_KINDS
from tests.unit.operators.enrichment.models import Scripted, memory, parsed, request, results

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


def test_an_end_that_the_text_gives_is_kept() -> None:
    (event,) = parsed(told(relation(expires_at="2026-07-01")))
    assert isinstance(event, GraphEdges)
    assert event.edges[0].expires_at == parse_time("2026-07-01")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (relation(NEW, "caused_by", end("m9", "memory")), "unknown_id"),
        (relation(NEW, "caused_by", end("ache", "memory")), "unknown_id"),
        (relation(NEW, "caused_by", NEW), "own_memory"),
        (relation(end("Tea"), target=end("tea ")), "own_memory"),
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
        (relation(end("rain")), "not_in_texts"),
        (relation(end("te")), "not_in_texts"),
        (relation(end("")), "empty"),
        (relation(confidence=0.59), "low_confidence"),
        (relation(confidence=1.5), "out_of_bounds"),
        (relation(weight=-1), "out_of_bounds"),
        (relation(evidence="My stomach hurts."), "no_evidence"),
        (relation(expires_at="July"), "wrong_date"),
        (relation(expires_at="2026-05-20T09:00:00Z"), "wrong_date"),
    ],
)
def test_a_claim_that_is_not_borne_out_is_refused(said: Any, reason: str) -> None:
    result = told(said)
    assert (result.events, result.refused, result.failures) == ([], {reason: 1}, [])


def test_repeated_relation_is_kept_once() -> None:
    result = told(relation(), relation(end("TEA")))
    assert (len(result.events), result.refused) == (1, {"duplicate": 1})


def test_relations_of_a_memory_are_bounded() -> None:
    words = "abcdefghijklmnopqrstuvwx"
    about = memory("new", f"It is {' '.join(words)}.")
    said = [relation(end(one), target=end("it"), evidence="It is") for one in words]
    (result,) = results([request(["extract"], about)], Scripted(extract={"relations": said}))
    assert (len(result.events), result.refused) == (RELATIONS_MAX, {"too_many": len(words) - RELATIONS_MAX})


def test_no_condition_is_called_like_another_node() -> None:
    assert not {*CONDITIONS} & (NODE_KINDS | {MEMORY_KIND})
