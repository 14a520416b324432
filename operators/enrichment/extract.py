"""Extraction of typed relations that a text states between memories, entities and conditions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from recallflow.enrichment import EnrichmentRequest, ShownMemory
from recallflow.fields import written_time
from recallflow.operators.enrichment.claims import (
    Draft,
    Found,
    Refusal,
    Step,
    check_confidence,
    check_share,
    check_text,
    check_time,
)
from recallflow.operators.enrichment.classify import is_own
from recallflow.operators.enrichment.prompts import NUMBER, TEXT, TEXT_OR_NONE, fields, listed, one_of, prompt
from recallflow.operators.enrichment.shown import (
    BESIDE_CHARACTERS,
    CHARACTERS,
    as_data,
    cut,
    names_it,
    numbered,
    stands_in,
)
from recallflow.operators.graph.given import CONDITIONAL_ON
from recallflow.operators.graph.names import NAME_CHARACTERS
from recallflow.state.graph_codec import CONDITION_KIND, ENTITY_KIND, MEMORY_KIND, node_key

VERSION = "extract-1"
RECENT_MAX = 50
RELATIONS_MAX = 20  # per memory
CONDITION_CHARACTERS = 60
_TYPES = ("caused_by", "prefers_over", "depends_on", "specializes", CONDITIONAL_ON)
# Kinds of conditions. A closed list gives equal conditions equal names.
CONDITIONS = ("time", "season", "place", "weather", "company", "activity", "health", "mood", "money", "other")
_DUTY = (
    "You are given one new text of somebody's memory (m1) and recent ones. List the relations that the new text itself "
    "states: 'caused_by' (the source came about because of the target), 'prefers_over' (the source is preferred to the "
    "target), 'depends_on' (the source needs the target), 'specializes' (the source is a special case of the target), "
    f"'{CONDITIONAL_ON}' (the source holds only under a condition). An end is a memory by its number, or an entity by "
    f"its name as the new text writes it; the target of '{CONDITIONAL_ON}', and nothing else, is a condition: kind and "
    f"value such as time:morning or weather:rain, the kind out of {', '.join(CONDITIONS)}. Each relation has the new "
    "memory as an end, or lies between entities that it names. Give a weight from 0 to 1 (how strong it is), your "
    "confidence from 0 to 1, as evidence the words of the new text, copied exactly, that state it, and as expires_at "
    "the date (YYYY-MM-DD) from which it no longer holds, only if the text says so. At most "
    f"{RELATIONS_MAX}; if it states none, the list is empty."
)
_END = fields(kind=one_of((MEMORY_KIND, ENTITY_KIND, CONDITION_KIND)), name=TEXT)
_ANSWER = fields(
    relations=listed(
        fields(
            source=_END,
            type=one_of(_TYPES),
            target=_END,
            weight=NUMBER,
            confidence=NUMBER,
            evidence=TEXT,
            expires_at=TEXT_OR_NONE,
        )
    )
)


class _End(NamedTuple):
    """One end of a relation. `text` is its form in `graph.edges`, and `key` identifies its node independent of
    spelling. `memory` is set for the end of a memory."""

    kind: str
    text: str
    key: str
    memory: ShownMemory | None = None


def extract(number: int, request: EnrichmentRequest, confidence: float) -> Step:
    """Return the model call for the relations of one memory, with recent memories as context."""
    new = cut(request.memories[0], CHARACTERS)
    recent = [one for one in request.recent if not is_own(new, one)][:RECENT_MAX]
    shown = numbered([new, *(cut(one, BESIDE_CHARACTERS) for one in recent)])
    first, *others = [as_data(*one) for one in shown.items()]
    asked = prompt("extract", VERSION, _DUTY, {"new": first, "recent": others}, _ANSWER, 10)
    return Step([number], asked, lambda answer: [_read(answer, new, shown, confidence)])


def _read(answer: Mapping[str, Any], new: ShownMemory, shown: Mapping[str, ShownMemory], least: float) -> Found:
    found, seen = Found(), set[tuple[str, str, str]]()
    for claim in found.first(answer["relations"]):
        with found.claim():
            source, target = (_end(claim[side], new, shown) for side in ("source", "target"))
            draft = _relation(claim, source, target, new, least)
            relation = (source.key, claim["type"], target.key)
            if relation in seen:
                raise Refusal("duplicate")
            if len(found.drafts) == RELATIONS_MAX:
                raise Refusal("too_many")
            seen.add(relation)
            found.drafts.append(draft)
    return found


def _end(end: Mapping[str, Any], new: ShownMemory, shown: Mapping[str, ShownMemory]) -> _End:
    """Parse an end of a relation. Raise an error for an invalid end."""
    match end["kind"]:
        case "memory":
            memory = shown.get(end["name"])
            if memory is None:
                raise Refusal("unknown_id")
            text = f"{MEMORY_KIND}:{memory.memory_id}"
            return _End(MEMORY_KIND, text, text, memory)
        case "entity":
            name = check_text(end["name"], NAME_CHARACTERS)
            if not names_it(f"{new.name or ''}\n{new.content}", name):
                raise Refusal("not_in_texts")
            return _End(ENTITY_KIND, f"{ENTITY_KIND}:{name}", node_key(ENTITY_KIND, name))
    kind, _, value = check_text(end["name"], CONDITION_CHARACTERS).casefold().partition(":")
    if kind.strip() not in CONDITIONS or not value.strip():
        raise Refusal("wrong_end")
    text = f"{CONDITION_KIND}:{kind.strip()}:{value.strip()}"
    return _End(CONDITION_KIND, text, text)


def _relation(claim: Mapping[str, Any], source: _End, target: _End, new: ShownMemory, least: float) -> Draft:
    """Return the draft of a relation event. Raise an error for an invalid relation."""
    if source.kind == CONDITION_KIND or (target.kind == CONDITION_KIND) != (claim["type"] == CONDITIONAL_ON):
        raise Refusal("wrong_end")
    if source.key == target.key:
        raise Refusal("own_memory")
    memories = [end.memory for end in (source, target) if end.memory is not None]
    if memories and not any(one is new for one in memories):
        raise Refusal("wrong_end")
    confidence = check_confidence(claim, least)
    if not stands_in(claim["evidence"], new.content):
        raise Refusal("no_evidence")
    expires = check_time(claim["expires_at"])
    if expires is not None and expires <= new.created_at:
        raise Refusal("wrong_date")
    edge = {
        "source": source.text,
        "target": target.text,
        "type": claim["type"],
        "weight": check_share(claim["weight"]),
        "confidence": confidence,
        "evidence": new.memory_id,
    }
    if expires is not None:
        edge["expires_at"] = written_time(expires)
    fields = {"type": "graph.edges", "timestamp": written_time(new.created_at), "edges": [edge]}
    return Draft(fields, new, [one for one in memories if one is not new])
