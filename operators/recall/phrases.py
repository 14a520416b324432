"""Reasons in words for people: one English phrase each, and what it rests on."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from recallflow.language import sentences
from recallflow.operators.graph.paths import SHARED_NODE
from recallflow.responses import Matched, Neighbour, Reason, Span
from recallflow.state.rows import MemoryRow

WORDS_MOST, PLACES_MOST = 6, 5  # of a reason, and of a word
QUOTE_CHARACTERS = 80
_LEAD_CHARACTERS = 30  # of a long sentence, before the word it is quoted for
_READ_CHARACTERS = 2_000  # of a neighbour's text, for the sentence to quote
_ASKS = ("?", "？", "؟")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_EDGES: Mapping[str, str] = MappingProxyType(
    {
        "caused_by": "is caused by",
        "contradicts": "contradicts",
        "supersedes": "supersedes",
        "similar_to": "is similar to",
        "depends_on": "depends on",
        "prefers_over": "is preferred over",
        "specializes": "specializes",
        "conditional_on": "is conditional on",
    }
)
# What rests on nothing that could be shown.
PLAIN: Mapping[str, str] = MappingProxyType(
    {
        "meaning": "similar meaning",
        "wording": "similar wording",
        "meaning_before": "follows something of similar meaning",
        "wording_before": "follows something of similar wording",
        "time": "tells a time",
        "recent": "newer than most of this answer",
        "important": "marked more important than most of this answer",
        "trusted": "trusted more than most of this answer",
        "typical": "typical of its conversation",
        "recalled": "recalled before",
        "liked": "like what was found useful",
        "session": "recalled before in this session",
        "related": "related to another memory that fits",
        "episode": "from a conversation that fits",
        "sealed": "fits, but its text cannot be opened to show where",
        "filler": "nothing speaks for it: it fills up the answer",
    }
)


def plain(code: str) -> Reason:
    """A reason that its code says all of."""
    return {"code": code, "text": PLAIN[code]}


def words(content: str, places: Mapping[str, Sequence[tuple[int, int]]]) -> Reason:
    """Words of the question that stand in the memory."""
    found = [_matched(content, spans) for spans in [*places.values()][:WORDS_MOST]]
    return {"code": "words", "text": f"says {_listed([one['word'] for one in found])}", "words": found}


def nearby(offset: int, neighbour: MemoryRow | None, stems: Sequence[str]) -> Reason:
    """Words of the question, with these stems, stand in a neighbour. It is None where it cannot be quoted."""
    if offset < 0:
        where = "right after" if offset == -1 else "soon after"
    else:
        where = "right before" if offset == 1 else "soon before"
    if neighbour is None:
        return {"code": "nearby", "text": f"said {where} words that are asked for"}
    quoted = _quoted(neighbour, stems)
    return {"code": "nearby", "text": f"said {where} “{quoted['quote']}”", "neighbour": quoted}


def answers(neighbour: MemoryRow | None) -> Reason:
    """The message before asks something like the question. It is None where it cannot be quoted."""
    if neighbour is None:
        return {"code": "answers", "text": "answers a question like it"}
    asked = [one for one in sentences(neighbour.content[:_READ_CHARACTERS]) if one.endswith(_ASKS)]
    quoted: Neighbour = {"id": neighbour.id, "quote": short(asked[-1])} if asked else _quoted(neighbour)
    return {"code": "answers", "text": f"answers: “{quoted['quote']}”", "neighbour": quoted}


def person(row: MemoryRow, named: str | None) -> Reason:
    """It is theirs whom the question names, or, where it says I, theirs who asks: said by them; or, where nobody said
    it, about them."""
    who = named or row.name or "the one who asks"
    whose = "the one who asks" if named is None else named
    return {"code": "person", "text": f"said by {whose}" if row.author else f"about {whose}", "person": who}


def date(at_ms: int) -> Reason:
    """The date that is asked about."""
    day = _day(at_ms)
    return {"code": "date", "text": f"from {_written(day)}", "date": day.date().isoformat()}


def newest(rank: int, row: MemoryRow | None) -> Reason:
    """Its place by age is all that counts."""
    text = "the newest" if rank == 1 else f"the {_ordinal(rank)} newest"
    if row is None:
        return {"code": "newest", "text": text}
    day = _day(row.created_ms)
    return {"code": "newest", "text": f"{text}, from {_written(day)}", "date": day.date().isoformat()}


def entity(names: Sequence[str], hops: int) -> Reason:
    """It is near an entity that is asked about."""
    which = _listed(names, "or") if names else "what is asked about"
    steps = "one step" if hops == 1 else f"{hops} steps"
    return {"code": "entity", "text": f"about {which}" if not hops else f"{steps} from {which} in the graph"}


def reranked(model: str, rank: int, before: int) -> Reason:
    """A reranker put it further up."""
    return {"code": "reranked", "text": f"{model} puts it {_ordinal(rank)}, not {_ordinal(before)}"}


def linked(own_id: str, path: Mapping[str, Any], seed: MemoryRow | None) -> Reason:
    """The graph leads to it from a memory of the answer. That is None where it cannot be quoted."""
    edge = {name: part for name, part in path.items() if name != "reason"}
    start = f"“{short(seed.content)}”" if seed is not None else f"memory {path['from']}"
    said = _EDGES.get(path["edge_type"], f"is linked ({path['edge_type']}) to")
    if path["edge_type"] == SHARED_NODE:
        text = f"shares {path['node']} with {start}"
    elif path["hops"] > 1:
        text = f"{path['hops']} steps from {start} in the graph"
    elif path["edge"]["source"] in (own_id, f"memory:{own_id}"):
        text = f"{said} {start}"
    else:
        text = f"{start} {said} it"
    found: Reason = {"code": "linked", "text": text, "edge": edge}
    if seed is not None:
        found["neighbour"] = {"id": seed.id, "quote": short(seed.content)}
    return found


# ---------------------------------------------------------------------- parts


def short(text: str, stems: Sequence[str] = ()) -> str:
    """As much of the text as a quotation holds: of the sentence where a stem shows, or of the first one."""
    text = " ".join(text[:_READ_CHARACTERS].split()) if len(text) > QUOTE_CHARACTERS else " ".join(text.split())
    if len(text) <= QUOTE_CHARACTERS:
        return text
    lowered = text.lower()
    at = next((at for stem in stems if (at := lowered.find(stem[:-1] if len(stem) > 3 else stem)) >= 0), 0)
    sentence, begin = text, 0
    for one in sentences(text):
        begin = text.find(one, begin)
        if begin + len(one) > at:
            sentence, at = one, at - begin
            break
    if len(sentence) <= QUOTE_CHARACTERS:
        return sentence
    start = 0 if at < QUOTE_CHARACTERS - _LEAD_CHARACTERS else sentence.rfind(" ", 0, at - _LEAD_CHARACTERS) + 1
    start = start or max(at - _LEAD_CHARACTERS, 0) if at >= QUOTE_CHARACTERS - _LEAD_CHARACTERS else 0
    part = sentence[start : start + QUOTE_CHARACTERS]
    if start + QUOTE_CHARACTERS < len(sentence):
        blank = part.rfind(" ", QUOTE_CHARACTERS // 2)
        part = part[: blank if blank > 0 else None].rstrip() + " …"
    return f"… {part}" if start else part


def _quoted(row: MemoryRow, stems: Sequence[str] = ()) -> Neighbour:
    return {"id": row.id, "quote": short(row.content, stems)}


def _matched(content: str, spans: Sequence[tuple[int, int]]) -> Matched:
    places: list[Span] = [{"start": start, "end": end} for start, end in spans[:PLACES_MOST]]
    return {"word": content[slice(*spans[0])], "places": places}


def _listed(texts: Sequence[str], last: str = "and") -> str:
    quoted = [f"“{text}”" for text in dict.fromkeys(texts)]
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def _day(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)


def _written(day: datetime) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
