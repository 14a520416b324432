"""Resolution of names to known entities: whether Annie is the known Ana."""

from collections.abc import Mapping, Sequence
from typing import Any

from recallflow.enrichment import EnrichmentRequest, ShownEntity, ShownMemory
from recallflow.fields import written_time
from recallflow.operators.enrichment.claims import Draft, Found, Refusal, Step, check_confidence
from recallflow.operators.enrichment.prompts import NUMBER, TEXT, fields, listed, one_of, prompt
from recallflow.operators.enrichment.shown import CHARACTERS, as_data, cut, names_it, stands_in
from recallflow.operators.graph.names import read_names
from recallflow.state.graph_codec import ENTITY_KIND, SAME_AS, node_key

VERSION = "resolve-1"
NAMES_MAX = 16
ENTITIES_MAX = 40
SENTENCE_CHARACTERS = 300
_PART_CHARACTERS = 3  # the least length of a part of a name; shorter words such as `de` do not identify it
_VERDICTS = ("same", "different", "unknown")
_DUTY = (
    "You are given one text of somebody's memory, names in it (n1, n2 …), and entities that are known (e1, e2 …) with "
    "a sentence that tells of each. Say which names mean which of these entities: 'same' only where the text makes it "
    "plain that both are one and the same person or thing, such as a short form, a nickname or a full name; "
    "'different' where it speaks against it; 'unknown' otherwise. That names look alike is no reason. Leave out pairs "
    "that have nothing to do with each other. Give your confidence from 0 to 1, and as evidence the words of the text, "
    "copied exactly and with the name in them, on which the verdict rests; 'by' says who wrote the text."
)
_ANSWER = fields(
    verdicts=listed(fields(name=TEXT, entity=TEXT, verdict=one_of(_VERDICTS), confidence=NUMBER, evidence=TEXT)),
)


def resolve(number: int, request: EnrichmentRequest, confidence: float) -> Step | None:
    """Return the model call for the names in a memory; None without new names or known entities."""
    memory = cut(request.memories[0], CHARACTERS)
    known = {f"e{number}": one for number, one in enumerate(request.entities[:ENTITIES_MAX], 1)}
    keys = {one.key for one in known.values()} | {node_key(ENTITY_KIND, one.name) for one in known.values()}
    names = [one for one in _names(memory) if node_key(ENTITY_KIND, one) not in keys][:NAMES_MAX]
    if not names or not known:
        return None
    numbered = {f"n{number}": name for number, name in enumerate(names, 1)}
    data = {
        "text": as_data("m1", memory),
        "names": [{"number": number, "name": name} for number, name in numbered.items()],
        "entities": [_as_data(*one) for one in known.items()],
    }
    asked = prompt("resolve", VERSION, _DUTY, data, _ANSWER, len(names))
    return Step([number], asked, lambda answer: [_read(answer, memory, numbered, known, confidence)])


def _names(memory: ShownMemory) -> Sequence[str]:
    """Return the names in a text, and its author's."""
    text, named = memory.content, read_names(memory.content)
    # Without mixed case, every uncommon word would count as doubtful.
    doubtful = () if text.islower() or text.isupper() else named.doubtful
    author = [] if memory.name is None else [memory.name]
    return list(dict.fromkeys([*named.entities, *author, *doubtful]))


def _as_data(number: str, entity: ShownEntity) -> dict[str, Any]:
    told_by = (entity.told_by or "")[:SENTENCE_CHARACTERS]
    return {"number": number, "name": entity.name, "type": entity.type, "told_by": told_by}


def _read(
    answer: Mapping[str, Any],
    memory: ShownMemory,
    names: Mapping[str, str],
    known: Mapping[str, ShownEntity],
    least: float,
) -> Found:
    found, joined = Found(), set[str]()
    for claim in found.first(answer["verdicts"]):
        if claim["verdict"] != "same":
            continue  # entities are different by default, so other verdicts have no effect
        with found.claim():
            name, entity = names.get(claim["name"]), known.get(claim["entity"])
            if name is None or entity is None:
                raise Refusal("unknown_id")
            confidence = check_confidence(claim, least)
            if not stands_in(claim["evidence"], memory.content) or not _tells_of(claim["evidence"], name, entity):
                raise Refusal("no_evidence")
            if name in joined:  # it would merge two known entities
                raise Refusal("duplicate")
            joined.add(name)
            found.drafts.append(_same(entity, name, memory, confidence))
    return found


def _tells_of(evidence: str, name: str, entity: ShownEntity) -> bool:
    """Return whether a quote mentions a name, or a part of the entity's name, as authors rarely name themselves."""
    parts = [one for one in entity.name.split() if len(one) >= _PART_CHARACTERS]
    return any(names_it(evidence, one) for one in (name, *parts))


def _same(entity: ShownEntity, name: str, memory: ShownMemory, confidence: float) -> Draft:
    """Return the draft that merges a name into an entity. The source of the edge, the known entity, keeps its name."""
    edge = {
        "source": entity.key,
        "target": f"{ENTITY_KIND}:{name}",
        "type": SAME_AS,
        "confidence": confidence,
        "evidence": memory.memory_id,
    }
    return Draft({"type": "graph.edges", "timestamp": written_time(memory.created_at), "edges": [edge]}, memory)
