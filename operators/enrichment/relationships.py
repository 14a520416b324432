"""Prompts and claims about a memory's relationships: similar memories, stated relations, names of known entities."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from recallflow.events import EnrichmentRequest, ShownEntity, ShownMemory
from recallflow.fields import wire_time
from recallflow.operators.enrichment import prompt_frame as frame
from recallflow.operators.enrichment import results
from recallflow.operators.enrichment.results import Draft, ModelCall, RejectedClaim
from recallflow.operators.graph.graph_events import CONDITIONAL_ON
from recallflow.operators.graph.names import NAME_CHARACTERS, read_names
from recallflow.state import graph_codec as codec

SIMILAR_MAX = 20
REPLACED_MAX = 5  # memories that one may replace; more indicate an error of the model
_WITHOUT_EDGE = ("agrees", "unrelated")
_CLASSIFY_VERDICTS = ("contradicts", "refines", *_WITHOUT_EDGE)
_CLASSIFY_RULES = (
    "You are given one new text of somebody's memory, and known texts that are like it. Say of each known text what "
    "the new one does to it: 'refines' if both are about the same thing and what the later one tells takes the place "
    "of the earlier (it has changed, was corrected, or is told more exactly); 'contradicts' if they cannot both be "
    "true and nothing tells which one holds; 'agrees' if they say the same; 'unrelated' for all else, such as two "
    "things that can both be so. Give your confidence from 0 to 1, and as evidence the words of the new text, copied "
    "exactly, on which the verdict rests."
)
_CLASSIFICATIONS = frame.objects(
    memory=frame.TEXT, verdict=frame.one_of(_CLASSIFY_VERDICTS), confidence=frame.NUMBER, evidence=frame.TEXT
)


def classify(number: int, request: EnrichmentRequest, confidence: float) -> ModelCall | None:
    """Return the model call for the similar memories of a request; None if there are none."""
    new = frame.cut(request.memories[0], frame.TEXT_CHARACTERS)
    texts = _numbered(new, request.similar, SIMILAR_MAX)
    if len(texts) == 1:
        return None
    first, *known = frame.as_data(texts)
    data = {"new": first, "known": known}
    answer = frame.fields(verdicts=_CLASSIFICATIONS)
    prompt = frame.prompt("classify", "classify-1", _CLASSIFY_RULES, data, answer, len(known))
    return ModelCall([number], prompt, lambda answer: [_read_classify(answer, new, texts, confidence)])


def _numbered(new: ShownMemory, others: Sequence[ShownMemory], at_most: int) -> dict[str, ShownMemory]:
    """Return the memories of a prompt by number: the new one, and others that do not stem from the same text."""
    source = new.derived_from or new.memory_id
    others = [one for one in others if (one.derived_from or one.memory_id) != source and one.memory_id != new.memory_id]
    return frame.numbered([new, *others[:at_most]], frame.CONTEXT_CHARACTERS) | {"m1": new}


def _read_classify(
    answer: Mapping[str, Any], new: ShownMemory, texts: Mapping[str, ShownMemory], confidence_min: float
) -> results.AnswerClaims:
    claims, seen, replaced = results.AnswerClaims(), set[str](), list[tuple[float, ShownMemory]]()
    for claim in claims.within_limit(answer["verdicts"]):
        with claims.catch_rejection():
            other, confidence = _read_verdict(claim, new, texts, seen, confidence_min)
            if claim["verdict"] == "contradicts":
                claims.drafts.append(_edge(codec.CONTRADICTS, new, other, new, confidence))
            elif claim["verdict"] == "refines":
                replaced.append((confidence, other))
    replaced.sort(key=lambda one: -one[0])
    for confidence, other in replaced[:REPLACED_MAX]:
        # At equal times, the new memory counts as newer.
        newer, older = (new, other) if new.created_at >= other.created_at else (other, new)
        claims.drafts.append(_edge(codec.SUPERSEDES, newer, older, new, confidence))
    if len(replaced) > REPLACED_MAX:
        claims.refused["too_many"] += len(replaced) - REPLACED_MAX
    return claims


def _read_verdict(
    claim: Mapping[str, Any], new: ShownMemory, texts: Mapping[str, ShownMemory], seen: set[str], confidence_min: float
) -> tuple[ShownMemory, float]:
    """Return the memory and confidence of a verdict, and add the memory's number to `seen`. Raise RejectedClaim."""
    other = texts.get(claim["memory"])
    if other is None:
        raise RejectedClaim("unknown_id")
    if other is new:
        raise RejectedClaim("own_memory")
    if claim["memory"] in seen:
        raise RejectedClaim("duplicate")
    seen.add(claim["memory"])
    if claim["verdict"] in _WITHOUT_EDGE:
        return other, 0.0  # these verdicts create no edge, so they need no evidence
    confidence = results.check_confidence(claim, confidence_min)
    if not frame.contains_quote(new.content, claim["evidence"]):
        raise RejectedClaim("no_evidence")
    return other, confidence


def _edge(kind: str, source: ShownMemory, target: ShownMemory, new: ShownMemory, confidence: float) -> Draft:
    edge = {"source": f"memory:{source.memory_id}", "target": f"memory:{target.memory_id}", "type": kind}
    other = target if source is new else source
    return _draft(edge, confidence, new, max(source.created_at, target.created_at), [other])


def _draft(
    edge: dict[str, Any], confidence: float, new: ShownMemory, at_ms: int, others: Sequence[ShownMemory] = ()
) -> Draft:
    """Return the draft of an edge that a memory states. `edge`: its ends and type."""
    edge |= {"confidence": confidence, "evidence": new.memory_id}
    return Draft({"type": "graph.edges", "timestamp": wire_time(at_ms), "edges": [edge]}, new, others)


RECENT_MAX = 50
RELATIONS_MAX = 20  # per memory
CONDITION_CHARACTERS = 60
# Kinds of conditions. A closed list gives equal conditions equal names.
CONDITIONS = ("time", "season", "place", "weather", "company", "activity", "health", "mood", "money", "other")
_EXTRACT_RULES = (
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
_END = frame.fields(kind=frame.one_of((codec.MEMORY_KIND, codec.ENTITY_KIND, codec.CONDITION_KIND)), name=frame.TEXT)
_RELATIONS = frame.objects(
    source=_END,
    type=frame.one_of(("caused_by", "prefers_over", "depends_on", "specializes", CONDITIONAL_ON)),
    target=_END,
    weight=frame.NUMBER,
    confidence=frame.NUMBER,
    evidence=frame.TEXT,
    expires_at=frame.TEXT_OR_NONE,
)


class _End(NamedTuple):
    """One end of a relation. `text` is its form in `graph.edges`, and `key` identifies its node independent of
    spelling. `memory` is set for the end of a memory."""

    kind: str
    text: str
    key: str
    memory: ShownMemory | None = None


def extract(number: int, request: EnrichmentRequest, confidence: float) -> ModelCall:
    """Return the model call for the relations of one memory, with recent memories as context."""
    new = frame.cut(request.memories[0], frame.TEXT_CHARACTERS)
    texts = _numbered(new, request.recent, RECENT_MAX)
    first, *others = frame.as_data(texts)
    data, answer = {"new": first, "recent": others}, frame.fields(relations=_RELATIONS)
    prompt = frame.prompt("extract", "extract-1", _EXTRACT_RULES, data, answer, 10)
    return ModelCall([number], prompt, lambda answer: [_read_extract(answer, new, texts, confidence)])


def _read_extract(
    answer: Mapping[str, Any], new: ShownMemory, texts: Mapping[str, ShownMemory], confidence_min: float
) -> results.AnswerClaims:
    claims, seen = results.AnswerClaims(), set[tuple[str, str, str]]()
    for claim in claims.within_limit(answer["relations"]):
        with claims.catch_rejection():
            source, target = (_end(claim[side], new, texts) for side in ("source", "target"))
            draft = _relation(claim, source, target, new, confidence_min)
            relation = (source.key, claim["type"], target.key)
            if relation in seen:
                raise RejectedClaim("duplicate")
            if len(claims.drafts) == RELATIONS_MAX:
                raise RejectedClaim("too_many")
            seen.add(relation)
            claims.drafts.append(draft)
    return claims


def _end(end: Mapping[str, Any], new: ShownMemory, texts: Mapping[str, ShownMemory]) -> _End:
    """Parse an end of a relation. Raise RejectedClaim for an invalid end."""
    match end["kind"]:
        case "memory":
            memory = texts.get(end["name"])
            if memory is None:
                raise RejectedClaim("unknown_id")
            text = f"{codec.MEMORY_KIND}:{memory.memory_id}"
            return _End(codec.MEMORY_KIND, text, text, memory)
        case "entity":
            name = results.check_text(end["name"], NAME_CHARACTERS)
            if not frame.contains_name(f"{new.name or ''}\n{new.content}", name):
                raise RejectedClaim("not_in_texts")
            return _End(codec.ENTITY_KIND, f"{codec.ENTITY_KIND}:{name}", codec.node_key(codec.ENTITY_KIND, name))
    kind, _, value = results.check_text(end["name"], CONDITION_CHARACTERS).casefold().partition(":")
    if kind.strip() not in CONDITIONS or not value.strip():
        raise RejectedClaim("wrong_end")
    text = f"{codec.CONDITION_KIND}:{kind.strip()}:{value.strip()}"
    return _End(codec.CONDITION_KIND, text, text)


def _relation(claim: Mapping[str, Any], source: _End, target: _End, new: ShownMemory, confidence_min: float) -> Draft:
    """Return the draft of a relation event. Raise RejectedClaim for an invalid relation."""
    has_condition = target.kind == codec.CONDITION_KIND
    if source.kind == codec.CONDITION_KIND or has_condition != (claim["type"] == CONDITIONAL_ON):
        raise RejectedClaim("wrong_end")
    if source.key == target.key:
        raise RejectedClaim("own_memory")
    memories = [end.memory for end in (source, target) if end.memory is not None]
    if memories and not any(one is new for one in memories):
        raise RejectedClaim("wrong_end")
    confidence = results.check_confidence(claim, confidence_min)
    if not frame.contains_quote(new.content, claim["evidence"]):
        raise RejectedClaim("no_evidence")
    expires = results.check_time(claim["expires_at"])
    if expires is not None and expires <= new.created_at:
        raise RejectedClaim("wrong_date")
    weight = results.check_share(claim["weight"])
    edge = {"source": source.text, "target": target.text, "type": claim["type"], "weight": weight}
    draft = _draft(edge, confidence, new, new.created_at, [one for one in memories if one is not new])
    if expires is not None:
        edge["expires_at"] = wire_time(expires)
    return draft


NAMES_MAX = 16
ENTITIES_MAX = 40
SENTENCE_CHARACTERS = 300
_NAME_PART_CHARACTERS = 3  # the least length of a part of a name; shorter words such as `de` do not identify it
_RESOLVE_RULES = (
    "You are given one text of somebody's memory, names in it (n1, n2 …), and entities that are known (e1, e2 …) with "
    "a sentence that tells of each. Say which names mean which of these entities: 'same' only where the text makes it "
    "plain that both are one and the same person or thing, such as a short form, a nickname or a full name; "
    "'different' where it speaks against it; 'unknown' otherwise. That names look alike is no reason. Leave out pairs "
    "that have nothing to do with each other. Give your confidence from 0 to 1, and as evidence the words of the text, "
    "copied exactly and with the name in them, on which the verdict rests; 'by' says who wrote the text."
)
_RESOLVED = frame.objects(
    name=frame.TEXT,
    entity=frame.TEXT,
    verdict=frame.one_of(("same", "different", "unknown")),
    confidence=frame.NUMBER,
    evidence=frame.TEXT,
)


def resolve(number: int, request: EnrichmentRequest, confidence: float) -> ModelCall | None:
    """Return the model call for the names in a memory; None without new names or known entities."""
    memory = frame.cut(request.memories[0], frame.TEXT_CHARACTERS)
    known = {f"e{number}": one for number, one in enumerate(request.entities[:ENTITIES_MAX], 1)}
    keys = {one.key for one in known.values()} | {codec.node_key(codec.ENTITY_KIND, one.name) for one in known.values()}
    names = [one for one in _names_in(memory) if codec.node_key(codec.ENTITY_KIND, one) not in keys][:NAMES_MAX]
    if not names or not known:
        return None
    new = {f"n{number}": name for number, name in enumerate(names, 1)}
    data = {
        "text": frame.as_data({"m1": memory})[0],
        "names": [{"number": number, "name": name} for number, name in new.items()],
        "entities": [
            {"number": number, "name": one.name, "type": one.type, "told_by": (one.told_by or "")[:SENTENCE_CHARACTERS]}
            for number, one in known.items()
        ],
    }
    prompt = frame.prompt("resolve", "resolve-1", _RESOLVE_RULES, data, frame.fields(verdicts=_RESOLVED), len(names))
    return ModelCall([number], prompt, lambda answer: [_read_resolve(answer, memory, new, known, confidence)])


def _names_in(memory: ShownMemory) -> Sequence[str]:
    """Return the names in a memory's text, and the name of its author."""
    text, named = memory.content, read_names(memory.content)
    # Without mixed case, every uncommon word would count as doubtful.
    doubtful = () if text.islower() or text.isupper() else named.doubtful
    author = [] if memory.name is None else [memory.name]
    return list(dict.fromkeys([*named.entities, *author, *doubtful]))


def _read_resolve(
    answer: Mapping[str, Any],
    memory: ShownMemory,
    names: Mapping[str, str],
    known: Mapping[str, ShownEntity],
    confidence_min: float,
) -> results.AnswerClaims:
    claims, joined = results.AnswerClaims(), set[str]()
    for claim in claims.within_limit(answer["verdicts"]):
        if claim["verdict"] != "same":
            continue  # entities are different by default, so other verdicts have no effect
        with claims.catch_rejection():
            name, entity = names.get(claim["name"]), known.get(claim["entity"])
            if name is None or entity is None:
                raise RejectedClaim("unknown_id")
            confidence = results.check_confidence(claim, confidence_min)
            quote = claim["evidence"]
            if not frame.contains_quote(memory.content, quote) or not _mentions(quote, name, entity):
                raise RejectedClaim("no_evidence")
            if name in joined:  # a second entity for the name would merge two known entities
                raise RejectedClaim("duplicate")
            joined.add(name)
            # The source of the edge, the known entity, keeps its name.
            edge = {"source": entity.key, "target": f"{codec.ENTITY_KIND}:{name}", "type": codec.SAME_AS}
            claims.drafts.append(_draft(edge, confidence, memory, memory.created_at))
    return claims


def _mentions(evidence: str, name: str, entity: ShownEntity) -> bool:
    """Return whether a quote contains the name or, as authors rarely name themselves, a part of the entity's name."""
    parts = [one for one in entity.name.split() if len(one) >= _NAME_PART_CHARACTERS]
    return any(frame.contains_name(evidence, one) for one in (name, *parts))
