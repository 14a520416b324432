"""Reasons of each memory of an answer, the strongest first, with the data that supports them.

Only returned memories are examined. Their texts are searched for the question's words. At most two neighbours per
memory are read: permitted ones that contribute to its score. Texts that cannot be decrypted are neither searched nor
quoted.

The strength of a reason comes from the signal's columns, from factors, and from boosts. A column counts if its value
and weight are above 0; the 0 of a z-score is the owner's mean. A factor counts by its value, or in `ABOVE_MEDIAN` by
its excess over the median of all candidates, because a value that all share does not change their order. All strengths
have the unit of the ranking's scores."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Kind
from recallflow.language.places import StemPositions, find_stems
from recallflow.operators.graph.paths import RelatedMemory
from recallflow.operators.recall import people, phrases
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.ranking_input import Ranking, RankingInput
from recallflow.operators.recall.updates import Replacement
from recallflow.operators.recall.words import idf, term_counts
from recallflow.operators.redaction import RowsReader, is_readable
from recallflow.responses import Reason
from recallflow.state.arrays import Mask, Positions
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
    **dict.fromkeys(("relevance", "mentions")),  # of the episode: not specific to a member
    **dict.fromkeys(("confidence", "similarity")),  # only of the mode `decayed`, which has no weights
    "cluster": "typical",
    "recency": "recent",
    "decay": "recent",
    "importance": "important",
    "usage": "recalled",
    "quality": "trusted",
    "proximity": "entity",
}
BOOSTS: Mapping[str, str | None] = {
    "relationship": "related",
    "personalisation": "liked",
    "session_continuity": "session",
    "update": None,  # `why.add_updates` adds this reason
}
ABOVE_MEDIAN = frozenset({"typical", "recent", "important", "trusted"})  # every memory has values of these
Strengths = dict[str, float]
"""Strength by reason, in the unit of the scores. A reason counts above 0."""


def strengths(ranking: Ranking, columns: Columns) -> list[Strengths]:
    """Return the strengths of each ranked memory's reasons. Ranked memories are few, so that plain numbers are faster
    than arrays."""
    found: list[Strengths] = [{} for _ in ranking.positions]
    for name in columns.values:
        reason, weight = COLUMNS[name], columns.weights[name]
        if reason is None or (isinstance(weight, float) and weight <= 0):
            continue
        # A memory without a known author has the column's mean, which is no reason.
        min_value = 1.0 if reason == "person" else 0.0
        for strength, (weight, value) in zip(found, columns.weighted_values(name, ranking.positions), strict=True):
            if weight > 0 and value >= min_value:
                strength[reason] = strength.get(reason, 0.0) + value * weight * ranking.unit
    for name, weight in ranking.weights.items():
        if (reason := FACTORS[name]) is not None:
            median = ranking.medians[name] if reason in ABOVE_MEDIAN else 0.0
            for strength, value in zip(found, ranking.factors[name].tolist(), strict=True):
                strength[reason] = strength.get(reason, 0.0) + max(value - median, 0.0) * weight
    for boost, gains in ranking.boosts.items():
        if (reason := BOOSTS[boost]) is not None:
            for strength, gain in zip(found, gains.tolist(), strict=True):
                strength[reason] = strength.get(reason, 0.0) + gain
    return found


REASONS_MAX = 3  # per memory
MIN_SHARE = 0.2  # of the strongest reason; weaker ones are omitted
SEARCHED_CHARACTERS = 4_000  # of a text, for the question's words
SEARCHED_IN_ALL = 1_000_000  # of all texts whose beginnings have none of them
CACHED_TEXTS = 4_096  # texts per owner with cached stem offsets
BEFORE, AFTER = 4, 2  # contributing neighbours: 4 before (late interaction), and 2 after (the BM25 window)
Rows = Sequence[MemoryRow | None]
Words = dict[str, list[tuple[int, int]]]  # stem → spans of its words


class WordNeighbour(NamedTuple):
    """A neighbour with words of the question that the memory lacks."""

    position: int
    offset: int  # its distance from the memory
    share: float  # the share of these words in the question's words of both, by idf
    stems: frozenset[str]  # the stems of these words


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
    positions, cases = ranking.positions, list[_ReasonData]()
    subjects_of = people.subjects_of(inputs.index, inputs.question)
    languages: list[int] = language_in(inputs.fact("flags", positions)).tolist()
    word_neighbours, held_stems = _neighbours(inputs, positions)
    # A long text is searched for all stems of the question, because the index has those of its beginning only.
    all_stems, most = frozenset(inputs.question.stems), SEARCHED_CHARACTERS
    is_indexed = (is_readable(row) and len(row.content) <= most for row in rows)
    sought = [stems if is_complete else all_stems for is_complete, stems in zip(is_indexed, held_stems, strict=True)]
    spans = _spans(inputs.index, positions, rows, sought, languages)
    neighbours = word_neighbours, *_predecessors(inputs, positions, kind)
    ranked = zip(positions.tolist(), rows, languages, spans, *neighbours, strengths(ranking, columns), strict=True)
    for position, row, language, words, word_neighbour, follows, follows_question, strength in ranked:
        person = None
        if subjects_of and is_readable(row):
            text = row.content[:SEARCHED_CHARACTERS]
            person = people.attributed_to(inputs.index, subjects_of, row.author, text, language)
        if row is not None and not any(one.matches(phrases.day_of(row.created_ms)) for one in inputs.question.dates):
            strength["near_date"] = strength.pop("date", 0.0)
        if not follows_question:
            strength.pop("answers", None)
        codes = _strongest(_by_code(strength, row, words, word_neighbour, person, kind, has_predecessor=follows))
        cases.append(_ReasonData(position, row, words, word_neighbour if "nearby" in codes else None, person, codes))
    read_rows = {one.position: row for one, row in zip(cases, rows, strict=True)}
    quoted = dict.fromkeys(position for one in cases for position in one.quoted_positions)
    if missing := [position for position in quoted if position not in read_rows]:
        slots = inputs.index.conversation.slots.take(missing).tolist()
        read_rows |= dict(zip(missing, read(slots), strict=True))
    row_at = {position: row for position, row in read_rows.items() if is_readable(row)}
    neighbour_spans = _neighbour_spans(inputs, cases, row_at)
    return [_reasons(inputs, one, row_at, neighbour_spans, entities) for one in cases]


def added(items: Iterable[RelatedMemory], seeds: Sequence[MemoryRow | None]) -> list[list[Reason]]:
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
    """Add the replaced statement to the reasons of each memory that updates another. `found` holds the
    replacements, by position of the replaced memory."""
    rank_of = {position: rank for rank, position in enumerate(positions)}
    replaced = [(position, rank_of[one.by]) for position, one in found.items() if one.by in rank_of]
    rows = read([int(index.conversation.slots[position]) for position, _ in replaced]) if replaced else []
    for (_, rank), row in zip(replaced, rows, strict=True):
        if is_readable(row):
            kept = [reason for reason in reasons[rank] if reason["code"] != "filler"]
            reasons[rank][:] = [*kept, phrases.updates(row)]


class _ReasonData(NamedTuple):
    position: int
    row: MemoryRow | None
    words: Words  # the question's words in the memory
    neighbour: WordNeighbour | None  # the neighbour with further words, if that is a reason
    person: str | None  # the memory's participant, if the question is about that person
    codes: list[str]  # the reason codes, the strongest first

    @property
    def quoted_positions(self) -> list[int]:
        """Return the positions of the neighbours that the reasons quote."""
        nearby = [] if self.neighbour is None else [self.neighbour.position]
        return [*nearby, self.position - 1] if "answers" in self.codes else nearby


def _spans(
    index: OwnerIndex, positions: Positions, rows: Rows, sought: Sequence[frozenset[str]], languages: Sequence[int]
) -> list[Words]:
    """Return the spans of words with these stems in each readable text."""
    numbers = {stem: index.words.number(stem) for stem in frozenset[str]().union(*sought)}
    characters = {stem: chr(number) for stem, number in numbers.items() if number is not None}
    found, left_to_search = list[Words](), list[frozenset[str]]()
    slots = index.conversation.slots.take(positions).tolist()
    for slot, row, stems, language in zip(slots, rows, sought, languages, strict=True):
        in_text = None
        if stems and is_readable(row):
            if slot not in index.stem_positions:
                if len(index.stem_positions) >= CACHED_TEXTS:
                    index.stem_positions.clear()
                index.stem_positions[slot] = StemPositions.of(row.content, language, index.words.number)
            in_text = index.stem_positions[slot]
        left_to_search.append(stems if in_text is None else frozenset())
        named = {characters[stem]: stem for stem in stems & characters.keys()}
        found.append({} if in_text is None else in_text.find(named))
    if any(left_to_search):
        _search(rows, left_to_search, languages, found)
    return found


def _search(rows: Rows, sought: Sequence[Collection[str]], languages: Sequence[int], found: Sequence[Words]) -> None:
    """Add the spans of words with these stems in each readable text: at its beginning, or anywhere if the beginning has
    none, up to a number of characters."""
    by_language = defaultdict[int, list[tuple[str, Collection[str], Words]]](list)
    for row, stems, language, words in zip(rows, sought, languages, found, strict=True):
        if stems and is_readable(row):
            by_language[language].append((row.content, stems, words))
    for language, wanted in by_language.items():
        beginnings = [text[:SEARCHED_CHARACTERS] for text, _, _ in wanted]
        searched = find_stems(beginnings, [stems for _, stems, _ in wanted], language)
        for (text, _, words), spans in zip(wanted, searched, strict=True):
            for stem, start, end in spans:
                if end < SEARCHED_CHARACTERS or end == len(text):  # the cut may split a word at the boundary
                    words.setdefault(stem, []).append((start, end))
        unmatched = [one for one in wanted if not one[2] and len(one[0]) > SEARCHED_CHARACTERS]
        share = SEARCHED_IN_ALL // max(len(unmatched), 1)
        whole = find_stems([text[:share] for text, _, _ in unmatched], [stems for _, stems, _ in unmatched], language)
        for (_, _, words), spans in zip(unmatched, whole, strict=True):
            for stem, start, end in spans:
                words.setdefault(stem, []).append((start, end))


def _by_code(
    strength: Strengths,
    row: MemoryRow | None,
    words: Words,
    neighbour: WordNeighbour | None,
    person: str | None,
    kind: Kind,
    *,
    has_predecessor: bool,
) -> dict[str, float]:
    """Return strengths by reason code. Columns of a memory and its neighbours are divided between them. Reasons that do
    not apply to this memory are dropped. `has_predecessor` tells whether there is a previous memory in the episode."""
    if person is None:
        strength.pop("person", None)
    similar, similar_before = strength.pop(ALIKE, 0.0), strength.pop(ALIKE_NEAR, 0.0)
    of_both, share = strength.pop(WORDS_NEAR, 0.0), neighbour.share if neighbour else 0.0
    of_neighbour, of_words = (of_both + similar_before) * share, strength.pop(WORDS, 0.0) + of_both * (1 - share)
    similarity_code = "wording" if kind == "spelling" else "meaning"
    if similar > 0 or not has_predecessor:
        similar += similar_before * (1 - share)
    else:
        strength[f"{similarity_code}_before"] = similar_before * (1 - share)
    if not is_readable(row):
        strength["sealed"] = of_words + of_neighbour + similar + strength.pop("answers", 0.0)
        return strength
    if neighbour and neighbour.offset == -1 and "answers" in strength:
        strength["answers"], of_neighbour = strength["answers"] + of_neighbour, 0.0
    if words and kind == "spelling":  # for spelling, similarity is that of the words
        of_words, similar = of_words + similar, 0.0
    if words:
        strength["words"] = of_words
    elif person is not None:
        strength["person"] = strength.get("person", 0.0) + of_words
    return strength | {"nearby": of_neighbour, similarity_code: similar}


def _strongest(strength: dict[str, float]) -> list[str]:
    """Return the codes of the strongest reasons, the strongest first."""
    min_strength = MIN_SHARE * max(strength.values(), default=0.0)
    codes = [code for code, value in strength.items() if value > 0 and value >= min_strength]
    return sorted(codes, key=strength.__getitem__, reverse=True)[:REASONS_MAX]


def _permitted(inputs: RankingInput, positions: Positions) -> Mask:
    """Return a mask of the positions that may be in the answer."""
    if len(inputs.allowed) == inputs.index.conversation.size:
        return np.ones(positions.shape, np.bool_)
    found: Mask = inputs.allowed.take(inputs.allowed.searchsorted(positions), mode="clip") == positions
    return found


def _predecessors(inputs: RankingInput, positions: Positions, kind: Kind) -> tuple[list[bool], list[bool]]:
    """Return for each position whether a memory precedes it in its episode, and whether that one is permitted and asks
    something similar to the question. For spelling, every text is somewhat similar to every other, so that the
    predecessor must have a word of the question."""
    index, conversation, before = inputs.index, inputs.index.conversation, positions - 1
    has_predecessor = conversation.has_predecessor.take(positions)
    follows_question = has_predecessor & index.answers_question.take(positions) & _permitted(inputs, before)
    if kind == "spelling" and follows_question.any():
        holds_word = np.zeros(conversation.size, np.bool_)
        for stem in inputs.question.stems:
            holds_word[index.stem_occurrences[stem].positions] = True
        follows_question &= holds_word[before]
    return has_predecessor.tolist(), follows_question.tolist()


def _neighbours(inputs: RankingInput, positions: Positions) -> tuple[list[WordNeighbour | None], list[frozenset[str]]]:
    """Return for each memory the neighbour with most words of the question that the memory lacks, by idf, or None; and
    the question's stems in the memory. Of equal neighbours the first is taken. Participants' names are excluded."""
    index, conversation = inputs.index, inputs.index.conversation
    nameless = inputs.question.stems_without_names
    occurrences_of = {stem: index.stem_occurrences[stem] for stem in dict.fromkeys((*nameless, *inputs.question.stems))}
    stems = [stem for stem, found in occurrences_of.items() if found.memory_count]
    occurrences = [occurrences_of[stem] for stem in stems]
    wanted = sum(1 << word for word, stem in enumerate(stems) if stem in nameless)
    low, high = (bound.tolist() for bound in conversation.window(BEFORE, positions))
    nearby = [
        (position, [*range(first, position), *range(position + 1, min(end, position + 1 + AFTER))])
        for position, first, end in zip(positions.tolist(), low, high, strict=True)
    ]
    compared = np.array([*{one for position, others in nearby for one in (position, *others)}], np.int64)
    compared = compared[_permitted(inputs, compared)]
    words, at = term_counts([found.positions for found in occurrences], compared, conversation.size).nonzero()
    bits_at = dict[int, int]()  # bit mask of the words at each position
    for word, position in zip(words.tolist(), compared.take(at).tolist(), strict=True):
        bits_at[position] = bits_at.get(position, 0) | 1 << word
    idfs = idf([found.memory_count for found in occurrences], conversation.size).tolist()

    @cache
    def total_idf(words: int) -> float:
        return float(sum(value for word, value in enumerate(idfs) if words >> word & 1))

    found = list[WordNeighbour | None]()
    for position, others in nearby:
        own, best, best_idf = bits_at.get(position, 0), None, 0.0
        for other in others:
            if (missing := bits_at.get(other, 0) & ~own & wanted) and total_idf(missing) > best_idf:
                best, best_idf = other, total_idf(missing)
        if best is None:
            found.append(None)
        else:
            share = best_idf / (best_idf + total_idf(own & wanted))
            found.append(WordNeighbour(best, best - position, share, _stems_of(bits_at[best] & ~own & wanted, stems)))
    return found, [_stems_of(bits_at.get(position, 0), stems) for position in positions.tolist()]


def _stems_of(bits: int, stems: Sequence[str]) -> frozenset[str]:
    return frozenset(stem for word, stem in enumerate(stems) if bits >> word & 1)


def _neighbour_spans(inputs: RankingInput, cases: list[_ReasonData], row_at: dict[int, MemoryRow]) -> dict[int, Words]:
    """Return, by a memory's position, the spans of the question's words in the text of its neighbour."""
    neighbours = {one.position: one.neighbour for one in cases if one.neighbour is not None}
    rows, stems = [row_at.get(one.position) for one in neighbours.values()], [one.stems for one in neighbours.values()]
    positions = np.array([one.position for one in neighbours.values()], np.int64)
    languages: list[int] = language_in(inputs.fact("flags", positions)).tolist()
    return dict(zip(neighbours, _spans(inputs.index, positions, rows, stems, languages), strict=True))


def _reasons(
    inputs: RankingInput,
    case: _ReasonData,
    row_at: dict[int, MemoryRow],
    neighbour_spans: dict[int, Words],
    entities: Callable[[int | None], list[str]],
) -> list[Reason]:
    row, found = case.row, []
    if row is None:  # the answer leaves this memory out
        return []
    for code in case.codes:
        match code:
            case "words":
                found.append(phrases.words(row.content, case.words))
            case "nearby" if case.neighbour is not None:
                neighbour, words = row_at.get(case.neighbour.position), neighbour_spans[case.position]
                if neighbour is None or words:  # a readable text without spans shows none of the words
                    span = (0, 0) if neighbour is None else min(spans[0] for spans in words.values())
                    found.append(phrases.nearby(case.neighbour.offset, neighbour, span))
            case "answers":
                found.append(phrases.answers(row_at.get(case.position - 1)))
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
