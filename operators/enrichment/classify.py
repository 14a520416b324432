"""Classification of a memory against similar ones: agreement, contradiction, or replacement."""

from collections.abc import Mapping
from typing import Any

from recallflow.enrichment import EnrichmentRequest, ShownMemory
from recallflow.fields import written_time
from recallflow.operators.enrichment.claims import Draft, Found, Refusal, Step, check_confidence
from recallflow.operators.enrichment.prompts import NUMBER, TEXT, fields, listed, one_of, prompt
from recallflow.operators.enrichment.shown import BESIDE_CHARACTERS, CHARACTERS, as_data, cut, numbered, stands_in
from recallflow.state.graph_codec import CONTRADICTS, SUPERSEDES

VERSION = "classify-1"
SIMILAR_MAX = 20
REPLACED_MAX = 5  # memories that one may replace; more indicate an error of the model
_WITHOUT_EDGE = ("agrees", "unrelated")
_VERDICTS = ("contradicts", "refines", *_WITHOUT_EDGE)
_DUTY = (
    "You are given one new text of somebody's memory, and known texts that are like it. Say of each known text what "
    "the new one does to it: 'refines' if both are about the same thing and what the later one tells takes the place "
    "of the earlier (it has changed, was corrected, or is told more exactly); 'contradicts' if they cannot both be "
    "true and nothing tells which one holds; 'agrees' if they say the same; 'unrelated' for all else, such as two "
    "things that can both be so. Give your confidence from 0 to 1, and as evidence the words of the new text, copied "
    "exactly, on which the verdict rests."
)
_ANSWER = fields(
    verdicts=listed(fields(memory=TEXT, verdict=one_of(_VERDICTS), confidence=NUMBER, evidence=TEXT)),
)


def classify(number: int, request: EnrichmentRequest, confidence: float) -> Step | None:
    """Return the model call for the similar memories of a request; None if there are none."""
    new = cut(request.memories[0], CHARACTERS)
    similar = [one for one in request.similar if not is_own(new, one)][:SIMILAR_MAX]
    if not similar:
        return None
    shown = numbered([new, *(cut(one, BESIDE_CHARACTERS) for one in similar)])
    first, *known = [as_data(*one) for one in shown.items()]
    asked = prompt("classify", VERSION, _DUTY, {"new": first, "known": known}, _ANSWER, len(known))
    return Step([number], asked, lambda answer: [_read(answer, new, shown, confidence)])


def is_own(memory: ShownMemory, other: ShownMemory) -> bool:
    """Return whether two memories have the same source text."""
    first, second = (one.derived_from or one.memory_id for one in (memory, other))
    return memory.memory_id == other.memory_id or first == second


def _read(answer: Mapping[str, Any], new: ShownMemory, shown: Mapping[str, ShownMemory], least: float) -> Found:
    found, seen, replaced = Found(), set[str](), list[tuple[float, ShownMemory]]()
    for claim in found.first(answer["verdicts"]):
        with found.claim():
            other, confidence = _checked(claim, new, shown, seen, least)
            if claim["verdict"] == "contradicts":
                found.drafts.append(_edge(CONTRADICTS, new, other, new, confidence))
            elif claim["verdict"] == "refines":
                replaced.append((confidence, other))
    replaced.sort(key=lambda one: -one[0])
    found.drafts += [_edge(SUPERSEDES, *_by_time(new, other), new, sure) for sure, other in replaced[:REPLACED_MAX]]
    if len(replaced) > REPLACED_MAX:
        found.refused["too_many"] += len(replaced) - REPLACED_MAX
    return found


def _checked(
    claim: Mapping[str, Any], new: ShownMemory, shown: Mapping[str, ShownMemory], seen: set[str], least: float
) -> tuple[ShownMemory, float]:
    """Return the memory of a verdict, and its confidence. Raise an error for an invalid verdict."""
    other = shown.get(claim["memory"])
    if other is None:
        raise Refusal("unknown_id")
    if other is new:
        raise Refusal("own_memory")
    if claim["memory"] in seen:
        raise Refusal("duplicate")
    seen.add(claim["memory"])
    if claim["verdict"] in _WITHOUT_EDGE:
        return other, 0.0  # these verdicts create no edge, so they need no evidence
    confidence = check_confidence(claim, least)
    if not stands_in(claim["evidence"], new.content):
        raise Refusal("no_evidence")
    return other, confidence


def _by_time(new: ShownMemory, other: ShownMemory) -> tuple[ShownMemory, ShownMemory]:
    """Return the newer of two memories, then the older. At equal times, the one applied later is newer."""
    return (new, other) if new.created_at >= other.created_at else (other, new)


def _edge(kind: str, source: ShownMemory, target: ShownMemory, new: ShownMemory, confidence: float) -> Draft:
    edge = {
        "source": f"memory:{source.memory_id}",
        "target": f"memory:{target.memory_id}",
        "type": kind,
        "confidence": confidence,
        "evidence": new.memory_id,
    }
    other = target if source is new else source
    at = written_time(max(source.created_at, target.created_at))
    return Draft({"type": "graph.edges", "timestamp": at, "edges": [edge]}, new, [other])
