"""Extractive summaries: the most informative sentences of a group of memories, in order.

Names, numbers, decision words and a greater length raise the score of a sentence; a question mark lowers it. A table
of the language lists decision words. No model is called, and equal memories give equal summaries."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import regex

from recallflow.language.analysis import sentence_ends, stems, table_of
from recallflow.language.scripts import plain
from recallflow.language.tables import ENGLISH
from recallflow.operators.graph.names import read_names
from recallflow.operators.redaction import RowsReader, is_readable
from recallflow.state.arrays import Column, Positions
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow, language_in
from recallflow.stepped import spend

SUMMARY_COST = 20  # work units per summary
SENTENCES = 3  # per summary
CHARACTERS = 500  # per summary
MEMORIES = 8  # memories per group whose texts are read, those with the rarest words
READ_CHARACTERS = 2_000  # per memory
# Limits over all groups of a query: with many groups, fewer and shorter texts are read.
MEMORIES_MAX, CHARACTERS_MAX, CHARACTERS_MIN = 400, 100_000, 100
SENTENCE_CHARACTERS = 240
# Weights of a sentence: per name, per number, for a decision, per word; and for a question.
NAME, NUMBER, DECISION, WORD, QUESTION = 1.0, 1.0, 1.5, 0.3, -1.0
NAMES, NUMBERS, WORDS = 3, 3, 8  # further names, numbers and words of a sentence do not count
SHARE_MIN = 0.2  # the lowest score of a chosen sentence, as a share of the best score
REPEATED_SHARE = 0.6  # a sentence with a larger share of words in common with a chosen one is left out
_NUMBER = regex.compile(r"\p{Nd}+(?:[.,:/-]\p{Nd}+)*")
_ASKS = ("?", "？", "؟")
CATEGORIES = 16  # per context
UNCATEGORISED = 200  # limit of memories that rules assign to a category; the newest are taken
UNCATEGORISED_KINDS = ("message", "fact")
SUMMARISED_LAYER = "long_term"


class _Sentence(NamedTuple):
    """A sentence of a memory, identified by its number in the group."""

    memory: int
    start: int
    text: str
    words: frozenset[str]
    score: float


class Summaries:
    """Summaries of groups of an owner's memories. `rows` returns the rows at slots of the index."""

    def __init__(self, index: OwnerIndex, rows: RowsReader, groups: int) -> None:
        self._index, self._rows = index, rows
        self._memories = min(max(MEMORIES_MAX // max(groups, 1), 1), MEMORIES)
        room = CHARACTERS_MAX // (max(groups, 1) * self._memories)
        self._characters = min(max(room, CHARACTERS_MIN), READ_CHARACTERS)
        conversation = index.conversation
        self._people = {index.names.strings[author].lower() for author in conversation.authors if author >= 0}

    def of(self, positions: Positions) -> str:
        """Return the summary of the memories at these positions, in conversation order; empty if none is readable."""
        spend(SUMMARY_COST)
        return self.summarise(self.most_informative(positions, self._memories))

    def most_informative(self, positions: Positions, count: int) -> list[tuple[MemoryRow, int]]:
        """Return the readable memories with the rarest words, in order, each with its language."""
        conversation = self._index.conversation
        slots = conversation.slots[positions]
        if len(positions) > count:
            best = np.argsort(-self._index.words.information(slots, self._word_shares), kind="stable")[:count]
            slots = slots[np.sort(best)]
        languages = language_in(self._index.facts["flags"][slots]).tolist()
        found = zip(self._rows(slots.tolist()), languages, strict=True)
        return [(row, language) for row, language in found if is_readable(row)]

    @cached_property
    def _word_shares(self) -> Column:
        return self._index.words.shares(self._index.conversation.slots)

    def summarise(self, rows: list[tuple[MemoryRow, int]]) -> str:
        found = [one for number, (row, language) in enumerate(rows) for one in self._sentences(number, row, language)]
        chosen, room = list[tuple[_Sentence, str]](), CHARACTERS
        least = SHARE_MIN * max((one.score for one in found), default=0.0)
        for one in sorted(found, key=lambda one: (-one.score, one.memory, one.start)):
            if one.score < least or len(chosen) == SENTENCES:
                break
            author = rows[one.memory][0].author
            text = f"{author}: {one.text}" if author else one.text
            if len(text) < room and not any(_is_repeated(one, other) for other, _ in chosen):
                chosen.append((one, text))
                room -= len(text) + 1
        return " ".join(text for _, text in sorted(chosen, key=lambda pair: pair[0][:2]))

    def _sentences(self, number: int, row: MemoryRow, language: int) -> Iterator[_Sentence]:
        text = row.content[: self._characters]
        table = table_of(text, [language])
        for start, end in pairwise([0, *sentence_ends(text)]):
            sentence = text[start:end].strip()
            if len(sentence) > SENTENCE_CHARACTERS:
                sentence = f"{sentence[: SENTENCE_CHARACTERS - 1].rstrip()}…"
            words = frozenset(stems(sentence, language))
            if words:
                named = read_names(sentence)
                names = len(named.entities) + sum(name.lower() in self._people for name in named.doubtful)
                score = (
                    NAME * min(names, NAMES)
                    + NUMBER * min(len(_NUMBER.findall(sentence)), NUMBERS)
                    + DECISION * bool(table.decides.search(plain(sentence) if table is not ENGLISH else sentence))
                    + WORD * min(len(words), WORDS)
                    + QUESTION * sentence.endswith(_ASKS)
                )
                yield _Sentence(number, start, sentence, words, score)


def _is_repeated(one: _Sentence, other: _Sentence) -> bool:
    return len(one.words & other.words) > REPEATED_SHARE * max(len(one.words), len(other.words)) and (
        one.memory != other.memory or one.words == other.words
    )


def category_of(row: MemoryRow, configured: Mapping[str, str]) -> str | None:
    """Return a memory's category, its own or by rules. `configured`: the tenant's categories by case-folded name."""
    if row.category is not None:
        return row.category
    names = [*row.topics, *row.tags, *([] if row.kind in UNCATEGORISED_KINDS else [row.kind])]
    known = (configured[name.casefold()] for name in names if name.casefold() in configured)
    return next(known, next(iter(names), None))


def category_summaries(
    index: OwnerIndex,
    permitted: Positions,
    rows: RowsReader,
    exclude: Sequence[str],
    wanted: Sequence[str] | None,
    configured: Iterable[str],
) -> dict[str, str]:
    """Return summaries of permitted long-term memories, by category name. Included are the categories in `wanted` (None
    for all) that are not in `exclude`. `configured` are names of the tenant's categories."""
    by_name = {name.casefold(): name for name in configured}
    summaries, facts = Summaries(index, rows, CATEGORIES), index.conversation.facts
    permitted = permitted[facts["layer"][permitted] == index.names.number_of(SUMMARISED_LAYER)]
    categories = facts["category"][permitted]
    groups = defaultdict[str, list[tuple[MemoryRow, int]]](list)
    for number in np.unique(categories[categories >= 0]).tolist():
        name = index.names.strings[number]
        if name not in exclude and (wanted is None or name in wanted) and len(groups) < CATEGORIES:
            groups[name] += summaries.most_informative(permitted[categories == number], MEMORIES)
    without = _uncategorised(index, permitted[categories < 0])
    for row, language in summaries.most_informative(without, UNCATEGORISED):
        found = category_of(row, by_name)
        if found is None or found in exclude or (wanted is not None and found not in wanted):
            continue
        if len(groups.get(found, ())) < MEMORIES and (found in groups or len(groups) < CATEGORIES):
            groups[found].append((row, language))
    # Facts have no position in a conversation, so memories are ordered by time.
    for group in groups.values():
        group.sort(key=lambda read: (read[0].created_ms, read[0].seq))
    return {name: text for name in sorted(groups) if (text := summaries.summarise(groups[name]))}


def _uncategorised(index: OwnerIndex, positions: Positions) -> Positions:
    """Return the newest positions whose memory may have topics or tags. Messages have neither."""
    without_role = positions[index.conversation.facts["role"][positions] < 0]
    newest = np.argsort(-index.conversation.facts["seq"][without_role], kind="stable")[:UNCATEGORISED]
    return without_role[np.sort(newest)]
