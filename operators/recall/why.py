"""Reasons of each memory of an answer, the strongest first, with the data that supports them.

Only returned memories are examined. Their texts are searched for the question's words. At most two neighbours per
memory are read: permitted ones that contribute to its score. Texts that cannot be decrypted are neither searched nor
quoted.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Kind
from recallflow.language import PlacedStems, find_stems
from recallflow.operators.graph.paths import Related
from recallflow.operators.recall import people, phrases
from recallflow.operators.recall.bm25 import counted, idf
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.reasons import ALIKE, ALIKE_NEAR, WORDS, WORDS_NEAR, Strengths, strengths
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.operators.recall.updates import Replacement
from recallflow.operators.redaction import RowsReader, is_readable
from recallflow.responses import Reason
from recallflow.state.arrays import Places
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow, language_in

MOST = 3  # reasons per memory
LEAST_SHARE = 0.2  # of the strongest reason; weaker ones are omitted
SEARCHED_CHARACTERS = 4_000  # of a text, for the question's words
PLACED_HELD = 4_096  # texts per owner with cached stem offsets
BEFORE, BEHIND = 4, 2  # contributing neighbours before and after: of late interaction, and of the BM25 window

Rows = Sequence[MemoryRow | None]
Words = dict[str, list[tuple[int, int]]]  # stem → spans of its words


class Lender(NamedTuple):
    """A neighbour that holds question words which the memory lacks.

    Attributes:
        place: its position.
        offset: its distance from the memory.
        share: its share of the words of both, by idf.
        stems: the stems of those words.
    """

    place: int
    offset: int
    share: float
    stems: frozenset[str]


class Before(NamedTuple):
    """The previous memory in the episode.

    Attributes:
        any: whether there is one.
        asks: whether it asks something similar to the question, and is permitted.
    """

    any: bool
    asks: bool


def why(
    scene: Scene,
    ranking: Ranking,
    rows: Rows,
    columns: Columns,
    kind: Kind,
    read: RowsReader,
    entities: Callable[[int | None], list[str]],
) -> list[list[Reason]]:
    """Return the reasons of each ranked memory, at least one each.

    Args:
        read: reads rows by slot.
        entities: returns the names of the question's entities that a memory (`seq`) is linked to; for None, all of
            them.
    """
    if scene.tuning.mode == "recency":
        return [[phrases.newest(rank, row)] for rank, row in enumerate(rows, 1)]
    if not rows:
        return []
    places, cases = ranking.places, list[_Case]()
    asked_about = people.asked_about(scene.index, scene.question)
    languages = _languages(scene, places)
    lenders, held = _lenders(scene, places)
    sought = [_sought(scene, *one) for one in zip(rows, held, strict=True)]
    said = _standing(scene.index, places, rows, sought, languages)
    texts = zip(places.tolist(), rows, languages, said, strict=True)
    neighbours = zip(lenders, _before(scene, places, kind), strict=True)
    speaking = strengths(ranking, columns)
    for (place, row, language, words), (lender, before), own in zip(texts, neighbours, speaking, strict=True):
        person = None
        if asked_about and is_readable(row):
            text = row.content[:SEARCHED_CHARACTERS]
            person = people.whose(scene.index, asked_about, row.author, text, language)
        if row is not None and not any(one.holds(phrases.day_of(row.created_ms)) for one in scene.question.dates):
            own["near_date"] = own.pop("date", 0.0)
        codes = _strongest(_by_code(own, row, words, lender, before, person, kind))
        cases.append(_Case(place, row, words, lender if "nearby" in codes else None, person, codes))
    quoted = _neighbours(scene, rows, cases, read)
    lent = _lent(scene, cases, quoted)
    return [_reasons(scene, one, quoted, lent, entities) for one in cases]


def added(items: Iterable[Related], seeds: Sequence[MemoryRow | None]) -> list[list[Reason]]:
    """Return the reasons of memories from graph expansion: the path to each.

    Args:
        seeds: rows of the ranked memories.
    """
    by_id = {row.id: row for row in seeds if is_readable(row)}
    return [[phrases.linked(item.id, item.why, by_id.get(item.why["from"]))] for item in items]


def say_reranked(reasons: list[list[Reason]], model: str, before: Sequence[int]) -> None:
    """Add the reranker to the reasons of the memories whose rank it raised.

    Args:
        before: the ranks before the reranker.
    """
    for rank, (found, first) in enumerate(zip(reasons, before, strict=False), 1):
        if rank < first:
            others = [reason for reason in found if reason["code"] != "filler"]
            found[:] = [phrases.reranked(model, rank, first), *others]


def say_updates(
    reasons: list[list[Reason]],
    places: Sequence[int],
    found: Mapping[int, Replacement],
    index: OwnerIndex,
    read: RowsReader,
) -> None:
    """Add the replaced statement to the reasons of each memory that updates another.

    Args:
        found: updates by position.
    """
    rank_of = {place: rank for rank, place in enumerate(places)}
    shown = [(place, rank_of[one.by]) for place, one in found.items() if one.by in rank_of]
    rows = read([int(index.conversation.slots[place]) for place, _ in shown]) if shown else []
    for (_, rank), row in zip(shown, rows, strict=True):
        if is_readable(row):
            others = [reason for reason in reasons[rank] if reason["code"] != "filler"]
            reasons[rank][:] = [*others, phrases.updates(row)]


# ---------------------------------------------------------------------- strengths


class _Case(NamedTuple):
    """The data of a memory's reasons.

    Attributes:
        words: the question's words in the memory.
        lender: the neighbour with further words, if that is a reason.
        person: the participant among those the question is about.
        codes: the reason codes, the strongest first.
    """

    place: int
    row: MemoryRow | None
    words: Words
    lender: Lender | None
    person: str | None
    codes: list[str]

    @property
    def quoted(self) -> list[int]:
        """Return the positions of the neighbours that the reasons quote."""
        nearby = [] if self.lender is None else [self.lender.place]
        return [*nearby, self.place - 1] if "answers" in self.codes else nearby


def _sought(scene: Scene, row: MemoryRow | None, held: frozenset[str]) -> frozenset[str]:
    """Return the stems to search for in a text: the stems that the index lists for it, or else all of the
    question's."""
    is_indexed = is_readable(row) and len(row.content) <= SEARCHED_CHARACTERS
    return held if is_indexed else frozenset(scene.question.stems)


def _standing(
    index: OwnerIndex, places: Places, rows: Rows, asked: Sequence[frozenset[str]], languages: Sequence[int]
) -> list[Words]:
    """Return the spans of words with these stems in each readable text."""
    numbers = {stem: index.words.number(stem) for stem in frozenset[str]().union(*asked)}
    characters = {stem: chr(number) for stem, number in numbers.items() if number is not None}
    found, searched = list[Words](), list[frozenset[str]]()
    slots = index.conversation.slots.take(places).tolist()
    for slot, row, stems, language in zip(slots, rows, asked, languages, strict=True):
        placed = _placed(index, slot, row, language) if stems and is_readable(row) else None
        searched.append(stems if placed is None else frozenset())
        found.append({} if placed is None else placed.find({characters[one]: one for one in stems & characters.keys()}))
    if any(searched):
        _search(rows, searched, languages, found)
    return found


def _placed(index: OwnerIndex, slot: int, row: MemoryRow, language: int) -> PlacedStems | None:
    """Return the stem offsets of a memory's text, cached per owner, or None if the text must be searched."""
    known = index.placed
    if slot not in known:
        if len(known) >= PLACED_HELD:
            known.clear()
        known[slot] = PlacedStems.of(row.content, language, index.words.number)
    return known[slot]


def _search(rows: Rows, asked: Sequence[Collection[str]], languages: Sequence[int], found: Sequence[Words]) -> None:
    """Add the spans of words with these stems in each readable text: at its beginning, or anywhere if the beginning has
    none."""
    by_language = defaultdict[int, list[tuple[str, Collection[str], Words]]](list)
    for row, stems, language, words in zip(rows, asked, languages, found, strict=True):
        if stems and is_readable(row):
            by_language[language].append((row.content, stems, words))
    for language, wanted in by_language.items():
        beginnings = [text[:SEARCHED_CHARACTERS] for text, _, _ in wanted]
        searched = find_stems(beginnings, [stems for _, stems, _ in wanted], language)
        for (text, _, words), places in zip(wanted, searched, strict=True):
            for stem, start, end in places:
                if end < SEARCHED_CHARACTERS or end == len(text):  # the cut may split a word at the boundary
                    words.setdefault(stem, []).append((start, end))
        left = [one for one in wanted if not one[2] and len(one[0]) > SEARCHED_CHARACTERS]
        whole = find_stems([text for text, _, _ in left], [stems for _, stems, _ in left], language)
        for (_, _, words), places in zip(left, whole, strict=True):
            for stem, start, end in places:
                words.setdefault(stem, []).append((start, end))


def _by_code(
    found: Strengths,
    row: MemoryRow | None,
    words: Words,
    lender: Lender | None,
    before: Before,
    person: str | None,
    kind: Kind,
) -> dict[str, float]:
    """Return strengths by reason code. Columns of a memory and its neighbours are divided between them. Reasons that do
    not apply to this memory are dropped."""
    if not before.asks:
        found.pop("answers", None)
    if person is None:
        found.pop("person", None)
    alike, alike_near = found.pop(ALIKE, 0.0), found.pop(ALIKE_NEAR, 0.0)
    near, share = found.pop(WORDS_NEAR, 0.0), lender.share if lender else 0.0
    lent, own = (near + alike_near) * share, found.pop(WORDS, 0.0) + near * (1 - share)
    likeness = "wording" if kind == "spelling" else "meaning"
    if alike > 0 or not before.any:
        alike += alike_near * (1 - share)
    else:
        found[f"{likeness}_before"] = alike_near * (1 - share)
    if not is_readable(row):
        found["sealed"] = own + lent + alike + found.pop("answers", 0.0)
        return found
    if lender and lender.offset == -1 and "answers" in found:
        found["answers"], lent = found["answers"] + lent, 0.0
    if words and kind == "spelling":  # for spelling, similarity is that of the words
        own, alike = own + alike, 0.0
    if words:
        found["words"] = own
    elif person is not None:
        found["person"] = found.get("person", 0.0) + own
    return found | {"nearby": lent, likeness: alike}


def _strongest(strength: dict[str, float]) -> list[str]:
    """Return the codes of sufficiently strong reasons, the strongest first."""
    least = LEAST_SHARE * max(strength.values(), default=0.0)
    strong = [code for code, worth in strength.items() if worth > 0 and worth >= least]
    return sorted(strong, key=strength.__getitem__, reverse=True)[:MOST]


def _languages(scene: Scene, places: Places) -> list[int]:
    """Return the language of each position's memory, as an index in `LATIN`."""
    found: list[int] = language_in(scene.fact("flags", places)).tolist()
    return found


# ---------------------------------------------------------------------- neighbours


def _permitted(scene: Scene, places: Places) -> Places:
    """Return a mask of the positions that may be in the answer."""
    if len(scene.allowed) == scene.index.conversation.size:
        return np.ones(places.shape, np.bool_)
    at = np.minimum(np.searchsorted(scene.allowed, places), len(scene.allowed) - 1)
    found: Places = scene.allowed.take(at) == places
    return found


def _before(scene: Scene, places: Places, kind: Kind) -> list[Before]:
    """Return the previous memory of each position. For spelling, every text is somewhat similar to every other, so that
    a question must have a word in common."""
    index, conversation, before = scene.index, scene.index.conversation, places - 1
    joined = conversation.follows.take(places)
    asks = joined & index.answering.take(places) & _permitted(scene, before)
    if kind == "spelling" and asks.any():
        held = np.zeros(conversation.size, np.bool_)
        for stem in scene.question.stems:
            held[index.standing[stem].places] = True
        asks &= held[before]
    return [*map(Before._make, zip(joined.tolist(), asks.tolist(), strict=True))]


def _lenders(scene: Scene, places: Places) -> tuple[list[Lender | None], list[frozenset[str]]]:
    """Return for each position the neighbour with most of the words it lacks, or None, and the question's stems that
    the position holds. Of equal neighbours the first is taken. Participants' names are excluded."""
    index, conversation = scene.index, scene.index.conversation
    asked = {stem: index.standing[stem] for stem in dict.fromkeys((*scene.question.bare_stems, *scene.question.stems))}
    stems = [stem for stem, found in asked.items() if found.holders]
    standing = [asked[stem] for stem in stems]
    bare = {*scene.question.bare_stems}
    may_lend = sum(1 << word for word, stem in enumerate(stems) if stem in bare)
    low, high = (bound.tolist() for bound in conversation.window(BEFORE, places))
    nearby = [
        (place, [*range(first, place), *range(place + 1, min(end, place + 1 + BEHIND))])
        for place, first, end in zip(places.tolist(), low, high, strict=True)
    ]
    looked_at = np.array([*{one for place, others in nearby for one in (place, *others)}], np.int64)
    looked_at = looked_at[_permitted(scene, looked_at)]
    words, at = counted([found.places for found in standing], looked_at, conversation.size).nonzero()
    held = dict[int, int]()  # bit mask of the words at each position
    for word, place in zip(words.tolist(), looked_at.take(at).tolist(), strict=True):
        held[place] = held.get(place, 0) | 1 << word
    worths = idf([found.holders for found in standing], conversation.size).tolist()

    @cache
    def worth(words: int) -> float:
        return float(sum(own for word, own in enumerate(worths) if words >> word & 1))

    found = list[Lender | None]()
    for place, others in nearby:
        own, lender, most = held.get(place, 0), None, 0.0
        for other in others:
            if (lent := held.get(other, 0) & ~own & may_lend) and worth(lent) > most:
                lender, most = other, worth(lent)
        if lender is None:
            found.append(None)
        else:
            lent_stems = _stems_of(held[lender] & ~own & may_lend, stems)
            found.append(Lender(lender, lender - place, most / (most + worth(own & may_lend)), lent_stems))
    return found, [_stems_of(held.get(place, 0), stems) for place in places.tolist()]


def _stems_of(bits: int, stems: Sequence[str]) -> frozenset[str]:
    """Return the stems with set bits."""
    return frozenset(stem for word, stem in enumerate(stems) if bits >> word & 1)


def _neighbours(scene: Scene, rows: Rows, cases: list[_Case], read: RowsReader) -> dict[int, MemoryRow]:
    """Return the readable rows to quote, by position: returned rows, and all others in one read."""
    found = {one.place: row for one, row in zip(cases, rows, strict=True)}
    missing = [*dict.fromkeys(place for one in cases for place in one.quoted if place not in found)]
    if missing:
        slots = scene.index.conversation.slots.take(missing).tolist()
        found |= dict(zip(missing, read(slots), strict=True))
    return {place: row for place, row in found.items() if is_readable(row)}


# ---------------------------------------------------------------------- phrases


def _lent(scene: Scene, cases: list[_Case], quoted: dict[int, MemoryRow]) -> dict[int, Words]:
    """Return, by a memory's position, the spans of its neighbour's contributed words in the neighbour's text."""
    lenders = {one.place: one.lender for one in cases if one.lender is not None}
    rows, stems = [quoted.get(one.place) for one in lenders.values()], [one.stems for one in lenders.values()]
    places = np.array([one.place for one in lenders.values()], np.int64)
    standing = _standing(scene.index, places, rows, stems, _languages(scene, places))
    return dict(zip(lenders, standing, strict=True))


def _nearby(lender: Lender, neighbour: MemoryRow | None, words: Words) -> Reason | None:
    """Return the reason for a neighbour's words, or None if its text does not show them, as with a split word."""
    if neighbour is None:
        return phrases.nearby(lender.offset, None, (0, 0))
    return phrases.nearby(lender.offset, neighbour, min(spans[0] for spans in words.values())) if words else None


def _entity(scene: Scene, case: _Case, entities: Callable[[int | None], list[str]]) -> Reason | None:
    """Return the reason for linked entities and their distance, or None if there is no name to show."""
    hops = 0 if scene.proximity is None else round(1 / float(scene.proximity[case.place]) - 1)
    names = entities(None if hops else int(scene.fact("seq", np.array([case.place]))[0]))
    if not hops and case.row is not None and case.row.author is None and case.person is not None:
        names = [*names, case.person]
    return phrases.entity([*dict.fromkeys(names)], hops) if hops or names else None


def _reasons(
    scene: Scene,
    case: _Case,
    neighbours: dict[int, MemoryRow],
    lent: dict[int, Words],
    entities: Callable[[int | None], list[str]],
) -> list[Reason]:
    row, found = case.row, []
    if row is None:  # a missing row is not returned
        return []
    for code in case.codes:
        match code:
            case "words":
                found.append(phrases.words(row.content, case.words))
            case "nearby" if case.lender is not None:
                said = _nearby(case.lender, neighbours.get(case.lender.place), lent[case.place])
                if said is not None:
                    found.append(said)
            case "answers":
                found.append(phrases.answers(neighbours.get(case.place - 1)))
            case "person" if case.person is not None:
                found.append(phrases.person(row, case.person, asks=not scene.question.named))
            case "date":
                found.append(phrases.date(row.created_ms))
            case "near_date":
                found.append(phrases.near_date(row.created_ms))
            case "entity":
                if (near := _entity(scene, case, entities)) is not None:
                    found.append(near)
            case _:
                found.append(phrases.plain(code))
    if not found:
        found.append(phrases.plain("episode" if scene.tuning.mode == "episode" else "filler"))
    return found
