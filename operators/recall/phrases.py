"""Phrases of reasons in English, with the data that supports them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from recallflow.language.analysis import sentence_at, sentences
from recallflow.operators.graph.paths import SHARED_NODE
from recallflow.responses import Matched, Neighbour, Reason, Span
from recallflow.state.rows import MemoryRow

WORDS_MAX, PLACES_MAX = 6, 5  # words per reason, and occurrences per word
QUOTE_CHARACTERS = 80
_LEAD_CHARACTERS = 30  # of a long sentence, before the quoted word
_QUOTABLE_CHARACTERS = 2_000  # of a text, around the quotation
_QUESTION_MARKS = ("?", "？", "؟")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_EDGES: Mapping[str, str] = {
    "caused_by": "is caused by",
    "contradicts": "contradicts",
    "supersedes": "supersedes",
    "similar_to": "is similar to",
    "depends_on": "depends on",
    "prefers_over": "is preferred over",
    "specializes": "specializes",
    "conditional_on": "is conditional on",
}
# Reasons without supporting data.
PLAIN: Mapping[str, str] = {
    "meaning": "similar meaning",
    "wording": "similar wording",
    "meaning_before": "follows something of similar meaning",
    "wording_before": "follows something of similar wording",
    "time": "tells a time",
    "recent": "newer than most of what was looked at",
    "important": "marked more important than most of what was looked at",
    "trusted": "trusted more than most of what was looked at",
    "typical": "typical of its conversation",
    "recalled": "recalled before",
    "liked": "like what was found useful",
    "session": "recalled before in this session",
    "related": "linked in the graph to one of the memories nearest to the question",
    "episode": "from a conversation that fits",
    "sealed": "fits, but its text cannot be opened to show where",
    "filler": "nothing that is remembered fits better",
}


def plain(code: str) -> Reason:
    """Return a reason that its code describes fully."""
    return {"code": code, "text": PLAIN[code]}


def words(content: str, spans_of: Mapping[str, Sequence[tuple[int, int]]]) -> Reason:
    matches: list[Matched] = []
    for spans in [*spans_of.values()][:WORDS_MAX]:
        shown: list[Span] = [{"start": start, "end": end} for start, end in spans[:PLACES_MAX]]
        matches.append({"word": content[slice(*spans[0])], "places": shown})
    return {"code": "words", "text": f"says {_listed([match['word'] for match in matches])}", "words": matches}


def nearby(offset: int, neighbour: MemoryRow | None, span: tuple[int, int]) -> Reason:
    """Return the reason: a neighbour contains a word of the question. `neighbour` is None if it cannot be quoted."""
    where = f"{'right' if abs(offset) == 1 else 'soon'} {'after' if offset < 0 else 'before'}"
    if neighbour is None:
        return {"code": "nearby", "text": f"said {where} words that are asked for"}
    quoted: Neighbour = {"id": neighbour.id, "quote": short(neighbour.content, *span)}
    return {"code": "nearby", "text": f"said {where} “{quoted['quote']}”", "neighbour": quoted}


def answers(neighbour: MemoryRow | None) -> Reason:
    """Return the reason: the previous message asks something similar to the question. `neighbour` is None if it cannot
    be quoted."""
    if neighbour is None:
        return {"code": "answers", "text": "answers a question like it"}
    asked = [one for one in sentences(neighbour.content[:_QUOTABLE_CHARACTERS]) if one.endswith(_QUESTION_MARKS)]
    quoted: Neighbour = {"id": neighbour.id, "quote": short(asked[-1] if asked else neighbour.content)}
    return {"code": "answers", "text": f"answers: “{quoted['quote']}”", "neighbour": quoted}


def person(row: MemoryRow, name: str, *, asks: bool) -> Reason:
    """Return the reason: the memory is by or about a participant whom the question names, or by or about the asking
    user."""
    subject = "the one who asks" if asks else name
    shown = (row.name or "the one who asks") if asks and row.author else name
    return {"code": "person", "text": f"said by {subject}" if row.author else f"about {subject}", "person": shown}


def date(at_ms: int, code: str) -> Reason:
    """Return the reason `date` (the memory has the date in the question) or `near_date` (it has the month)."""
    day, near = day_of(at_ms), ", near a date asked about" if code == "near_date" else ""
    return {"code": code, "text": f"from {written_date(day)}{near}", "date": day.date().isoformat()}


def newest(rank: int, row: MemoryRow | None) -> Reason:
    """Return the reason of the mode `recency`: rank by age."""
    text = "the newest" if rank == 1 else f"the {_ordinal(rank)} newest"
    if row is None:
        return {"code": "newest", "text": text}
    day = day_of(row.created_ms)
    return {"code": "newest", "text": f"{text}, from {written_date(day)}", "date": day.date().isoformat()}


def entity(names: Sequence[str], hops: int) -> Reason:
    """Return the reason: the memory is linked to these entities, or is `hops` steps from one of them."""
    steps = "one step" if hops == 1 else f"{hops} steps"
    which = _listed(names, "or" if hops else "and") if names else "what is asked about"
    return {"code": "entity", "text": f"{steps} from {which} in the graph" if hops else f"linked to {which}"}


def reranked(model: str, rank: int, before: int) -> Reason:
    return {"code": "reranked", "text": f"{model} puts it {_ordinal(rank)}, not {_ordinal(before)}"}


def updates(older: MemoryRow) -> Reason:
    quoted: Neighbour = {"id": older.id, "quote": short(older.content)}
    return {"code": "updates", "text": f"updates: “{quoted['quote']}”", "neighbour": quoted}


def linked(own_id: str, path: Mapping[str, Any], seed: MemoryRow | None) -> Reason:
    """Return the reason: a graph path leads to the memory from a memory of the answer. `seed`, the start of the path,
    is None if it cannot be quoted."""
    edge = {name: part for name, part in path.items() if name != "reason"}
    start = f"“{short(seed.content)}”" if seed is not None else f"memory {path['from']}"
    relation = _EDGES.get(path["edge_type"], f"is linked ({path['edge_type']}) to")
    if path["edge_type"] == SHARED_NODE:
        text = f"shares {path['node']} with {start}"
    elif path["hops"] > 1:
        text = f"{path['hops']} steps from {start} in the graph"
    elif path["edge"]["source"] in (own_id, f"memory:{own_id}"):
        text = f"{relation} {start}"
    else:
        text = f"{start} {relation} it"
    found: Reason = {"code": "linked", "text": text, "edge": edge}
    if seed is not None:
        found["neighbour"] = {"id": seed.id, "quote": short(seed.content)}
    return found


def short(text: str, start: int = 0, end: int = 0) -> str:
    """Return a quotation of bounded length: from the sentence around a span, or from the first sentence."""
    first = max(start - _QUOTABLE_CHARACTERS // 2, 0)
    # Whitespace is collapsed, so that the length of the prefix gives the word's new offset.
    before = " ".join(f"{text[first:start]}|".split())[:-1]
    word = " ".join(text[start:end].split())
    whole = before + " ".join(f"{text[start : first + _QUOTABLE_CHARACTERS]}".split())
    if len(whole) <= QUOTE_CHARACTERS and not first:
        return whole
    sentence, begin = sentence_at(whole, len(before))
    at = len(before) - begin
    if len(sentence) <= QUOTE_CHARACTERS:
        return sentence
    behind = at + len(word)
    lead = 0 if behind <= QUOTE_CHARACTERS // 2 else max(at - _LEAD_CHARACTERS, 0)
    if lead and (blank := sentence.find(" ", lead, at)) >= 0:
        lead = blank + 1
    part = sentence[lead : lead + QUOTE_CHARACTERS]
    if lead + QUOTE_CHARACTERS < len(sentence):
        blank = part.rfind(" ", max(QUOTE_CHARACTERS // 2, behind - lead))
        part = part[: blank if blank > 0 else None].rstrip() + " …"
    return f"… {part}" if lead else part


def _listed(texts: Sequence[str], last: str = "and") -> str:
    quoted = [f"“{text}”" for text in dict.fromkeys(texts)]
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def day_of(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)


def written_date(day: datetime) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
