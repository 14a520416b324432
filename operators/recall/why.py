"""Reasons of each memory of an answer, the strongest first, with the data that supports them.

Only returned memories are examined. Their texts are searched for the question's words. At most two neighbours per
memory are read: permitted ones that contribute to its score. Texts that cannot be decrypted are neither searched nor
quoted.

The strength of a reason comes from the columns of the signal, the factors and the boosts. A column counts if its value
and its weight are above 0; the 0 of a z-score is the owner's mean. A factor counts by its excess over the median of all
candidates, because a value that all candidates share does not change their order. All strengths have the unit of the
ranking's scores."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Kind
from recallflow.language import StemPositions, find_stems
from recallflow.operators.graph.paths import Related
from recallflow.operators.recall import people, phrases
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.ranking_input import Ranking, RankingInput
from recallflow.operators.recall.updates import Replacement
from recallflow.operators.recall.words import counted, idf
from recallflow.operators.redaction import RowsReader, is_readable
from recallflow.responses import Reason
from recallflow.state.arrays import Positions
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow, language_in

# Reason of a column: words of the memory, or of the memory and its neighbours; similarity to the memory, or to it and
# its predecessors; or a reason code. None: not shown to users.
WORDS, WORDS_NEAR, ALIKE, ALIKE_NEAR = "words", "words_near", "alike", "alike_near"
COLUMNS: Mapping[str, str | None] = {
    **dict.fromkeys(("dense", "word"), ALIKE),
    **dict.fromkeys(("own", "phrase"), WORDS),
    **dict.fromkeys(("window", "near", "around"), WORDS_NEAR),
    **dict.fromkeys(("answers", "borrowed"), "answers"),
    **dict.fromkeys(("speaker", "speaker_of_two", "subject"), "person"),
    **dict.fromkeys(("reply", "episode", "speaker_asks", "length", "assistant", "opens")),
    "word_before": ALIKE_NEAR,
    "date": "date",
    "when": "time",
}
FACTORS: Mapping[str, str | None] = {
    "semantic": None,  # the columns give the reasons
    "cluster": "typical",
    "recency": "recent",
    "decay": "recent",
    "importance": "important",
    "usage": "recalled",
    "quality": "trusted",
    "proximity": "entity",
    "relevance": None,  # of the episode, as mentions are: not specific to a member
    "mentions": None,
    "confidence": None,  # factors of the product of `decayed` have no weights
    "similarity": None,
}
BOOSTS: Mapping[str, str | None] = {
    "relationship": "related",
    "personalisation": "liked",
    "session_continuity": "session",
    "update": None,  # `why.add_updates` adds this reason
}
COMPARED = frozenset({"typical", "recent", "important", "trusted"})  # every memory has a value of these

Strengths = dict[str, float]
"""Strength by reason, in the unit of the scores. A reason counts above 0."""


def strengths(ranking: Ranking, columns: Columns) -> list[Strengths]:
    """Return the strengths of each ranked memory's reasons. Ranked memories are few, so that plain numbers are faster
    than arrays."""
    found: list[Strengths] = [{} for _ in ranking.positions]
    for name in columns.values:
        says, weight = COLUMNS[name], columns.weights[name]
        if says is None or (isinstance(weight, float) and weight <= 0):
            continue
        # A memory without a known author has the column's mean, which is no reason.
        least = 1.0 if says == "person" else 0.0
        for own, (weight, value) in zip(found, columns.at(name, ranking.positions), strict=True):
            if weight > 0 and value >= least:
                own[says] = own.get(says, 0.0) + value * weight * ranking.unit
    for name, weight in ranking.weights.items():
        if (says := FACTORS[name]) is not None:
            middle = ranking.medians[name] if says in COMPARED else 0.0
            for own, value in zip(found, ranking.factors[name].tolist(), strict=True):
                own[says] = own.get(says, 0.0) + max(value - middle, 0.0) * weight
    for boost, gains in ranking.boosts.items():
        if (says := BOOSTS[boost]) is not None:
            for own, gain in zip(found, gains.tolist(), strict=True):
                own[says] = own.get(says, 0.0) + gain
    return found


MOST = 3  # reasons per memory
LEAST_SHARE = 0.2  # of the strongest reason; weaker ones are omitted
SEARCHED_CHARACTERS = 4_000  # of a text, for the question's words
SEARCHED_IN_ALL = 1_000_000  # of all texts whose beginnings have none of them
PLACED_HELD = 4_096  # texts per owner with cached stem offsets
BEFORE, BEHIND = 4, 2  # contributing neighbours before and after: of late interaction, and of the BM25 window

Rows = Sequence[MemoryRow | None]
Words = dict[str, list[tuple[int, int]]]  # stem → spans of its words


class Lender(NamedTuple):
    """A neighbour that holds question words which the memory lacks."""

    position: int  # its position
    offset: int  # its distance from the memory
    share: float  # its share of the words of both, by idf
    stems: frozenset[str]  # the stems of those words


def why(
    inputs: RankingInput,
    ranking: Ranking,
    rows: Rows,
    columns: Columns,
    kind: Kind,
    read: RowsReader,
    entities: Callable[[int | None], list[str]],
) -> list[list[Reason]]:
    """Return the reasons of each ranked memory, at least one each. `read` reads rows by slot. `entities` returns the
    names of the question's entities that a memory (`seq`) is linked to; for None, all of them."""
    if inputs.tuning.mode == "recency":
        return [[phrases.newest(rank, row)] for rank, row in enumerate(rows, 1)]
    if not rows:
        return []
    positions, cases = ranking.positions, list[_Case]()
    subjects_of = people.subjects_of(inputs.index, inputs.question)
    languages: list[int] = language_in(inputs.fact("flags", positions)).tolist()
    lenders, held = _lenders(inputs, positions)
    # A long text is searched for all stems of the question, because the index knows those of its beginning only.
    every, most = frozenset(inputs.question.stems), SEARCHED_CHARACTERS
    is_indexed = (is_readable(row) and len(row.content) <= most for row in rows)
    sought = [stems if known else every for known, stems in zip(is_indexed, held, strict=True)]
    spans = _spans(inputs.index, positions, rows, sought, languages)
    neighbours = lenders, *_predecessors(inputs, positions, kind)
    ranked = zip(positions.tolist(), rows, languages, spans, *neighbours, strengths(ranking, columns), strict=True)
    for position, row, language, words, lender, follows, asks, own in ranked:
        person = None
        if subjects_of and is_readable(row):
            text = row.content[:SEARCHED_CHARACTERS]
            person = people.attributed_to(inputs.index, subjects_of, row.author, text, language)
        if row is not None and not any(one.matches(phrases.day_of(row.created_ms)) for one in inputs.question.dates):
            own["near_date"] = own.pop("date", 0.0)
        if not asks:
            own.pop("answers", None)
        codes = _strongest(_by_code(own, row, words, lender, person, kind, follows=follows))
        cases.append(_Case(position, row, words, lender if "nearby" in codes else None, person, codes))
    read_rows = {one.position: row for one, row in zip(cases, rows, strict=True)}
    if missing := [*dict.fromkeys(position for one in cases for position in one.quoted if position not in read_rows)]:
        slots = inputs.index.conversation.slots.take(missing).tolist()
        read_rows |= dict(zip(missing, read(slots), strict=True))
    quoted = {position: row for position, row in read_rows.items() if is_readable(row)}
    lent = _lent(inputs, cases, quoted)
    return [_reasons(inputs, one, quoted, lent, entities) for one in cases]


def added(items: Iterable[Related], seeds: Sequence[MemoryRow | None]) -> list[list[Reason]]:
    """Return the reasons of memories from graph expansion: the path to each. `seeds` are rows of the ranked
    memories."""
    by_id = {row.id: row for row in seeds if is_readable(row)}
    return [[phrases.linked(item.id, item.why, by_id.get(item.why["from"]))] for item in items]


def add_reranker(reasons: list[list[Reason]], model: str, first_ranks: Sequence[int]) -> None:
    """Add the reranker to the reasons of the memories whose rank it raised. `first_ranks` are the ranks before
    it."""
    for rank, (found, first) in enumerate(zip(reasons, first_ranks, strict=True), 1):
        if rank < first:
            others = [reason for reason in found if reason["code"] != "filler"]
            found[:] = [phrases.reranked(model, rank, first), *others]


def add_updates(
    reasons: list[list[Reason]],
    positions: Sequence[int],
    found: Mapping[int, Replacement],
    index: OwnerIndex,
    read: RowsReader,
) -> None:
    """Add the replaced statement to the reasons of each memory that updates another. `found` holds updates by
    position."""
    rank_of = {position: rank for rank, position in enumerate(positions)}
    shown = [(position, rank_of[one.by]) for position, one in found.items() if one.by in rank_of]
    rows = read([int(index.conversation.slots[position]) for position, _ in shown]) if shown else []
    for (_, rank), row in zip(shown, rows, strict=True):
        if is_readable(row):
            others = [reason for reason in reasons[rank] if reason["code"] != "filler"]
            reasons[rank][:] = [*others, phrases.updates(row)]


class _Case(NamedTuple):
    """The data of a memory's reasons."""

    position: int
    row: MemoryRow | None
    words: Words  # the question's words in the memory
    lender: Lender | None  # the neighbour with further words, if that is a reason
    person: str | None  # the participant among those the question is about
    codes: list[str]  # the reason codes, the strongest first

    @property
    def quoted(self) -> list[int]:
        """Return the positions of the neighbours that the reasons quote."""
        nearby = [] if self.lender is None else [self.lender.position]
        return [*nearby, self.position - 1] if "answers" in self.codes else nearby


def _spans(
    index: OwnerIndex, positions: Positions, rows: Rows, asked: Sequence[frozenset[str]], languages: Sequence[int]
) -> list[Words]:
    """Return the spans of words with these stems in each readable text."""
    numbers = {stem: index.words.number(stem) for stem in frozenset[str]().union(*asked)}
    characters = {stem: chr(number) for stem, number in numbers.items() if number is not None}
    found, searched = list[Words](), list[frozenset[str]]()
    slots = index.conversation.slots.take(positions).tolist()
    for slot, row, stems, language in zip(slots, rows, asked, languages, strict=True):
        placed = None
        if stems and is_readable(row):
            if slot not in index.stem_positions:
                if len(index.stem_positions) >= PLACED_HELD:
                    index.stem_positions.clear()
                index.stem_positions[slot] = StemPositions.of(row.content, language, index.words.number)
            placed = index.stem_positions[slot]
        searched.append(stems if placed is None else frozenset())
        found.append({} if placed is None else placed.find({characters[one]: one for one in stems & characters.keys()}))
    if any(searched):
        _search(rows, searched, languages, found)
    return found


def _search(rows: Rows, asked: Sequence[Collection[str]], languages: Sequence[int], found: Sequence[Words]) -> None:
    """Add the spans of words with these stems in each readable text: at its beginning, or anywhere if the beginning has
    none, up to a number of characters."""
    by_language = defaultdict[int, list[tuple[str, Collection[str], Words]]](list)
    for row, stems, language, words in zip(rows, asked, languages, found, strict=True):
        if stems and is_readable(row):
            by_language[language].append((row.content, stems, words))
    for language, wanted in by_language.items():
        beginnings = [text[:SEARCHED_CHARACTERS] for text, _, _ in wanted]
        searched = find_stems(beginnings, [stems for _, stems, _ in wanted], language)
        for (text, _, words), spans in zip(wanted, searched, strict=True):
            for stem, start, end in spans:
                if end < SEARCHED_CHARACTERS or end == len(text):  # the cut may split a word at the boundary
                    words.setdefault(stem, []).append((start, end))
        left = [one for one in wanted if not one[2] and len(one[0]) > SEARCHED_CHARACTERS]
        share = SEARCHED_IN_ALL // max(len(left), 1)
        whole = find_stems([text[:share] for text, _, _ in left], [stems for _, stems, _ in left], language)
        for (_, _, words), spans in zip(left, whole, strict=True):
            for stem, start, end in spans:
                words.setdefault(stem, []).append((start, end))


def _by_code(
    found: Strengths,
    row: MemoryRow | None,
    words: Words,
    lender: Lender | None,
    person: str | None,
    kind: Kind,
    *,
    follows: bool,
) -> dict[str, float]:
    """Return strengths by reason code. Columns of a memory and its neighbours are divided between them. Reasons that do
    not apply to this memory are dropped. `follows` tells whether there is a previous memory in the episode."""
    if person is None:
        found.pop("person", None)
    alike, alike_near = found.pop(ALIKE, 0.0), found.pop(ALIKE_NEAR, 0.0)
    near, share = found.pop(WORDS_NEAR, 0.0), lender.share if lender else 0.0
    lent, own = (near + alike_near) * share, found.pop(WORDS, 0.0) + near * (1 - share)
    likeness = "wording" if kind == "spelling" else "meaning"
    if alike > 0 or not follows:
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


def _permitted(inputs: RankingInput, positions: Positions) -> Positions:
    """Return a mask of the positions that may be in the answer."""
    if len(inputs.allowed) == inputs.index.conversation.size:
        return np.ones(positions.shape, np.bool_)
    at = np.minimum(np.searchsorted(inputs.allowed, positions), len(inputs.allowed) - 1)
    found: Positions = inputs.allowed.take(at) == positions
    return found


def _predecessors(inputs: RankingInput, positions: Positions, kind: Kind) -> tuple[list[bool], list[bool]]:
    """Return for each position whether a memory precedes it in its episode, and whether that one is permitted and asks
    something similar to the question. For spelling, every text is somewhat similar to every other, so that the
    predecessor must have a word of the question."""
    index, conversation, before = inputs.index, inputs.index.conversation, positions - 1
    joined = conversation.has_predecessor.take(positions)
    asks = joined & index.answers_question.take(positions) & _permitted(inputs, before)
    if kind == "spelling" and asks.any():
        held = np.zeros(conversation.size, np.bool_)
        for stem in inputs.question.stems:
            held[index.stem_occurrences[stem].positions] = True
        asks &= held[before]
    return joined.tolist(), asks.tolist()


def _lenders(inputs: RankingInput, positions: Positions) -> tuple[list[Lender | None], list[frozenset[str]]]:
    """Return for each position the neighbour with most of the words it lacks, or None, and the question's stems that
    the position holds. Of equal neighbours the first is taken. Participants' names are excluded."""
    index, conversation = inputs.index, inputs.index.conversation
    bare = inputs.question.stems_without_names
    asked = {stem: index.stem_occurrences[stem] for stem in dict.fromkeys((*bare, *inputs.question.stems))}
    stems = [stem for stem, found in asked.items() if found.memory_count]
    standing = [asked[stem] for stem in stems]
    may_lend = sum(1 << word for word, stem in enumerate(stems) if stem in bare)
    low, high = (bound.tolist() for bound in conversation.window(BEFORE, positions))
    nearby = [
        (position, [*range(first, position), *range(position + 1, min(end, position + 1 + BEHIND))])
        for position, first, end in zip(positions.tolist(), low, high, strict=True)
    ]
    looked_at = np.array([*{one for position, others in nearby for one in (position, *others)}], np.int64)
    looked_at = looked_at[_permitted(inputs, looked_at)]
    words, at = counted([found.positions for found in standing], looked_at, conversation.size).nonzero()
    held = dict[int, int]()  # bit mask of the words at each position
    for word, position in zip(words.tolist(), looked_at.take(at).tolist(), strict=True):
        held[position] = held.get(position, 0) | 1 << word
    worths = idf([found.memory_count for found in standing], conversation.size).tolist()

    @cache
    def worth(words: int) -> float:
        return float(sum(own for word, own in enumerate(worths) if words >> word & 1))

    found = list[Lender | None]()
    for position, others in nearby:
        own, lender, most = held.get(position, 0), None, 0.0
        for other in others:
            if (lent := held.get(other, 0) & ~own & may_lend) and worth(lent) > most:
                lender, most = other, worth(lent)
        if lender is None:
            found.append(None)
        else:
            lent_stems = _stems_of(held[lender] & ~own & may_lend, stems)
            found.append(Lender(lender, lender - position, most / (most + worth(own & may_lend)), lent_stems))
    return found, [_stems_of(held.get(position, 0), stems) for position in positions.tolist()]


def _stems_of(bits: int, stems: Sequence[str]) -> frozenset[str]:
    return frozenset(stem for word, stem in enumerate(stems) if bits >> word & 1)


def _lent(inputs: RankingInput, cases: list[_Case], quoted: dict[int, MemoryRow]) -> dict[int, Words]:
    """Return, by a memory's position, the spans of its neighbour's contributed words in the neighbour's text."""
    lenders = {one.position: one.lender for one in cases if one.lender is not None}
    rows, stems = [quoted.get(one.position) for one in lenders.values()], [one.stems for one in lenders.values()]
    positions = np.array([one.position for one in lenders.values()], np.int64)
    languages: list[int] = language_in(inputs.fact("flags", positions)).tolist()
    return dict(zip(lenders, _spans(inputs.index, positions, rows, stems, languages), strict=True))


def _reasons(
    inputs: RankingInput,
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
                neighbour, words = neighbours.get(case.lender.position), lent[case.position]
                if neighbour is None or words:  # a text does not show a word that was split
                    span = (0, 0) if neighbour is None else min(spans[0] for spans in words.values())
                    found.append(phrases.nearby(case.lender.offset, neighbour, span))
            case "answers":
                found.append(phrases.answers(neighbours.get(case.position - 1)))
            case "person" if case.person is not None:
                found.append(phrases.person(row, case.person, asks=not inputs.question.named))
            case "date" | "near_date":
                found.append(phrases.date(row.created_ms, code))
            case "entity":
                hops = 0 if inputs.proximity is None else round(1 / float(inputs.proximity[case.position]) - 1)
                names = entities(None if hops else int(inputs.fact("seq", np.array([case.position]))[0]))
                if not hops and row.author is None and case.person is not None:
                    names = [*names, case.person]
                if hops or names:
                    found.append(phrases.entity([*dict.fromkeys(names)], hops))
            case _:
                found.append(phrases.plain(code))
    if not found:
        found.append(phrases.plain("episode" if inputs.tuning.mode == "episode" else "filler"))
    return found
