"""How relevant each memory is by itself, and whether the memories hold an answer at all.

The signal compares an owner's memories with each other: its best one is the best of what there is, be it ever so far
from the question. What is here is absolute: a figure is made of the question and of one memory with its neighbours
alone. So a `relevance` depends on neither k, nor the query beside it. Other memories bear on it only by how many hold a
word of the question, by whose names they bring, and by what kind of chat they are of. What `answerable` is made of are
the figures of the memories that fit best, and how many there were to choose from.

A content word of the question, participants' names apart, is worth its rarity, in nats: longer words are rarer, as far
as is known before a memory is read, and a word is the less rare, the more memories hold it beside a first one.

    rarity   min(4 + letters / 2, 7.5, -ln((holders - 1) / (memories + 20)))

| figure of a memory | what |
|---|---|
| covered | the share of the question's rarity that is in the words it holds |
| around | the same of it and the two memories to each side of it in its episode, as one text |
| match | its BM25 / the question's rarity, with rarity for idf, k1 = 1.2, b = 0.75 and a mean length of 30 words |
| alike, lent | late interaction (`words.py`) of tokens with it, and with it and the four before it; 0 without any |
| cosine | of the question's vector and its own |
| said | 1 where it is theirs whom the question is about, -1 where it is not, 0 where it names nobody |
| dated | how well its time fits a date in the question, 0 to 1 |
| length, user | ln(1 + words); 1 for what a user said to an assistant |

Of a long text `covered`, `match` and `length` are those of its best passage: the one that covers most, and among equals
matches best. What stands beside it in the text makes an answer no worse.

A logit is Σ weight · figure · setting, where settings are what of the question and its owner bears on the figures'
worth, and a probability is 1 / (1 + exp(-logit)). The weights differ by what was compared (`Basis`), and by whether
people talk to each other, a user to an assistant, or one person to nobody (notes), or in a script whose words are read
as pairs of characters, which meet by chance (`Talk`). They come from logistic regression over stores of 1 to 1,000
memories, which half of the questions have no answer in (`benchmarks/answerable.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from recallflow.operators.recall.bm25 import K1, counted
from recallflow.operators.recall.columns import SAME_DATE, Columns
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.relevance_weights import ANSWERABLE, GROUNDS, RELEVANCE, Basis, Ground, Table, Talk
from recallflow.operators.recall.weights import chat_of, is_notes
from recallflow.state.arrays import Chosen, Column, Floats, Ints, Mask, Places, ranges
from recallflow.state.index import WINDOW, OwnerIndex, of_memories

RARITY, RARITY_OF_A_LETTER, RAREST = 4.0, 0.5, 7.5
LEARNT_AFTER = 20  # memories
SEVERAL = 3  # people in a chat
MATCH_B, MEAN_LENGTH = 0.75, 30.0
NEAREST = 50  # memories that `answerable` looks at
EVIDENCE_BETWEEN_THEM = 6.0  # a smaller factor costs AUC (docs/internals/decisions/11)
EVEN = 0.5  # answers that hold from here on are not warned of
UNANSWERABLE = 0.2  # the warning `nothing_relevant` begins below it
SEVERAL_WORDS = 3  # of which memories that tell of it would hold one
TWO_WORDS = 2  # one of which they would hold, or one spelt a little like it
SPELT_ALIKE = 0.4
UNLIKE = 0.15  # a cosine of texts that have nothing in common, of models where such texts stand apart
TOGETHER = 5  # of them, which may hold the answer between them

FIGURES = ("one", "covered", "around", "match", "alike", "lent", "cosine", "said", "dated", "length", "user")
# Of the figures of the nearest memories: the highest of each, those of the very nearest, the share of the question's
# rarity that the best few cover together, the share that no memory at all holds, and 1 where none of them, nor what
# stands beside it, has a word of the question.
HIGHEST = ("covered", "around", "match", "alike", "lent", "cosine", "said", "dated")
FIRST = ("covered", "match", "lent", "cosine")
EVIDENCE = ("one", *HIGHEST, *(f"first {name}" for name in FIRST), "together", "unheard", "apart")
# What figures are worth differs: where several people talk; by how many words the question has, what they tell, and
# without any; by how many memories there are, and with few.
SETTINGS = ("one", "several", "words", "rarity", "wordless", "memories", "few")


def _matrices(table: Table, figures: Sequence[str]) -> dict[Ground, Floats]:
    """The weights on each ground, (settings, figures)."""
    found = np.zeros((len(GROUNDS), len(SETTINGS), len(figures)))
    for name, weights in table.items():
        figure, _, setting = name.partition(" · ")
        found[:, SETTINGS.index(setting or "one"), figures.index(figure)] = weights
    return dict(zip(GROUNDS, found, strict=True))


_RELEVANCE, _ANSWERABLE = _matrices(RELEVANCE, FIGURES), _matrices(ANSWERABLE, EVIDENCE)


_HIGHEST, _FIRST = ([FIGURES.index(name) for name in names] for names in (HIGHEST, FIRST))


class Figures(NamedTuple):
    """Of some memories: `values`, (figures, memories) in the order of `FIGURES`, and which stems each of them holds,
    (stems, memories)."""

    values: Floats
    holds: Mask

    def of(self, name: str) -> Column:
        """One figure of all of them."""
        column: Column = self.values[FIGURES.index(name)]
        return column

    def only(self, some: slice) -> "Figures":
        """Those of some of the memories."""
        return Figures(self.values[:, some], self.holds[:, some])


@dataclass(frozen=True, slots=True)
class Judge:
    """One question to an owner's memories. `ground`: whose weights count. `stems`, `rarities`: of its content words;
    `holding`: the places that hold each, as often as they do; `settings`: in the order of `SETTINGS`; `shares`: what
    each stem is of the question's rarity."""

    index: OwnerIndex
    columns: Columns
    ground: Ground
    stems: Sequence[str]
    rarities: Floats
    holding: Sequence[Places]
    settings: Floats
    shares: Floats

    @classmethod
    def of(cls, index: OwnerIndex, question: Question, columns: Columns, basis: Basis, permitted: int) -> Self:
        """`permitted`: how many memories may be in the answer."""
        conversation, standing = index.conversation, {stem: index.standing[stem] for stem in question.bare_stems}
        rarities = np.array([rarity(stem, found.holders, conversation.size) for stem, found in standing.items()])
        settings = {
            "one": 1.0,
            "several": several_talk(index),
            "words": len(standing) / 10,
            "rarity": rarities.sum() / 50,
            "wordless": float(not standing),
            "memories": math.log(max(permitted, 1)) / 7,
            "few": 1 / max(permitted, 1),
        }
        if basis in ("static", "contextual") and not index.tokens.dimension:
            basis = "words"  # weights of vectors are beside those of tokens
        return cls(
            index,
            columns,
            (basis, talk_of(index, question)),
            [*standing],
            rarities,
            [found.places for found in standing.values()],
            np.array([settings[name] for name in SETTINGS]),
            rarities / max(settings["rarity"] * 50, 1e-9),
        )

    def figures(self, places: Places) -> Figures:
        """Of the memories at these places."""
        conversation, columns = self.index.conversation, self.columns
        counts, around = self._counts(places)
        words = self.index.words.lengths()[conversation.slots[places]]
        held, length = self._best_passages(places, counts, words)
        covered, match = self._covered(held, length)
        # By spelling, units weigh what the owner's other memories make of them.
        by_token = float(self.ground[0] in ("static", "contextual"))
        users = conversation.facts["role"][places] == self.index.names.known("user")
        values = {
            "one": np.ones(len(places)),
            "covered": covered,
            "around": self.shares @ around,
            "match": match,
            "alike": by_token * columns.absolute("word", places),
            "lent": by_token * columns.absolute("word_before", places),
            "cosine": columns.absolute("dense", places),
            "said": 2 * columns.one("speaker", places, absent=0.5) - 1,
            "dated": columns.one("date", places, absent=0.0) / SAME_DATE,
            "length": np.log1p(length),
            "user": users * 1.0,
        }
        return Figures(np.array([values[name] for name in FIGURES]), counts > 0)

    def _covered(self, counts: Ints, words: Ints) -> tuple[Column, Column]:
        """`covered` and `match` of texts with so many words, which hold each stem so often: (stems, texts)."""
        norms = K1 * (1 - MATCH_B + MATCH_B * words / MEAN_LENGTH)
        return self.shares @ (counts > 0), self.shares @ (counts * (K1 + 1) / (counts + norms))

    def _best_passages(self, places: Places, counts: Ints, words: Ints) -> tuple[Ints, Ints]:
        """How often each stem stands in the best passage at each place, and how many words that has. `counts`,
        `words`: of the whole texts."""
        index = self.index
        slots = index.conversation.slots[places]
        if not index.words.divided or not len(self.rarities):
            return counts, words
        parts = index.words.parts()
        several = parts.counts(slots) > 1
        if not several.any():
            return counts, words
        sizes = parts.counts(slots[several])
        looked_at = ranges(parts.firsts[slots[several]], sizes)
        held = [index.words.part_occurrences(stem) for stem in self.stems]
        own, length = counted(held, looked_at, len(parts.starts)), parts.lengths[looked_at]
        covered, match = self._covered(own, length)
        of = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((-match, -covered, of))
        best = order[np.cumsum(sizes) - sizes]
        counts, words = counts.copy(), words.copy()
        counts[:, several], words[several] = own[:, best], length[best]
        return counts, words

    def _counts(self, places: Places) -> tuple[Ints, Mask]:
        """How often each stem stands at each place; whether it stands there or beside it. (stems, places) both."""
        conversation = self.index.conversation
        low, high = conversation.window(WINDOW, places)
        is_near = np.zeros(conversation.size, np.bool_)
        is_near[ranges(low, high - low)] = True
        (near,) = is_near.nonzero()
        counts = counted(self.holding, near, conversation.size)
        up_to = np.zeros((len(counts), len(near) + 1), np.int64)
        counts.cumsum(axis=1, out=up_to[:, 1:])
        first = near.searchsorted(low)
        around = up_to.take(first + (high - low), axis=1) > up_to.take(first, axis=1)
        return counts.take(near.searchsorted(places), axis=1), around

    def evidence(self, nearest: Figures) -> Floats:
        """What tells whether the memories hold an answer, in the order of `EVIDENCE`. `nearest`: by the signal, the
        nearest first."""
        best = np.argsort(-nearest.of("covered"), kind="stable")[:TOGETHER]
        unheard = np.array([not len(held) for held in self.holding], np.bool_)
        values = nearest.values
        rest = [self.shares @ nearest.holds[:, best].any(axis=1), self.shares @ unheard, not nearest.of("around").any()]
        return np.concatenate(
            [[1.0], values.take(_HIGHEST, axis=0).max(axis=1), values.take(_FIRST, axis=0)[:, 0], rest]
        )

    def relevance(self, figures: Figures) -> Column:
        """The probability of each memory to be evidence for the question."""
        likely: Column = probability(self.settings @ _RELEVANCE[self.ground] @ figures.values)
        return likely

    def at(self, places: Places) -> Column:
        """The relevance of the memories at these places."""
        return self.relevance(self.figures(places))

    def hopeless(self, nearest: Figures, answerable: float) -> bool:
        """Return whether to warn that most likely no memory answers.

        That is so where an answer is hardly probable. It is also so where it is less probable than not, none of the
        question's two or more words occurs near the nearest memories, nobody whom it names said any, and words alone
        can tell or it is like none of them. A question of a single word is often answered in other words.
        """
        if not self.holding or answerable < UNANSWERABLE:
            return bool(self.holding)
        basis, count = self.ground[0], len(self.holding)
        if answerable >= EVEN or count < TWO_WORDS or nearest.of("around").any() or (nearest.of("said") > 0).any():
            return False
        if basis in ("spelling", "contextual", "blended") and nearest.of("cosine").max(initial=0.0) < UNLIKE:
            return True
        by_words = basis in ("spelling", "blended", "words")
        return by_words and (count >= SEVERAL_WORDS or not self._spelt_alike())

    def _spelt_alike(self) -> bool:
        """Whether any memory has a word spelt like one of the question's."""
        slots = np.sort(self.index.conversation.slots)
        found = self.index.words.closest(self.stems, slots, np.ones(len(self.stems)))
        return bool((found > SPELT_ALIKE).any())

    def answerable(self, nearest: Figures, highest: float) -> float:
        """Return the probability that the memories hold an answer.

        One memory that is evidence is an answer, so the probability is at least that of the most relevant one. Memories
        that are each unlikely hold an answer between them only up to `EVIDENCE_BETWEEN_THEM` times that.

        Args:
            nearest: as for `evidence`.
            highest: the highest relevance of those.
        """
        likely = float(probability(self.settings @ _ANSWERABLE[self.ground] @ self.evidence(nearest)))
        return min(max(likely, highest), EVIDENCE_BETWEEN_THEM * highest)


class Judged(NamedTuple):
    """What was found: whether the memories hold an answer, None where the mode does not look at what they say; the
    relevance of each that was ranked, and who tells that of others. `hopeless`: no memory may be worth a look."""

    judge: Judge
    answerable: float | None
    relevance: Column
    hopeless: bool = False

    def only(self, chosen: Chosen) -> "Judged":
        """With the relevance of the chosen memories alone."""
        return self._replace(relevance=self.relevance[chosen])


def talk_of(index: OwnerIndex, question: Question) -> Talk:
    """Return whose weights apply, by the question's script and the authors of the memories."""
    if not question.table.blanks:
        return "unspaced"
    if is_notes(index):  # before the assistant: the signal counts notes as said to one
        return "notes"
    return "assistant" if chat_of(index) == "assistant" else "people"


@of_memories
def several_talk(index: OwnerIndex) -> float:
    """Return 1 where several people wrote memories, else 0."""
    return float(np.count_nonzero(index.conversation.authors >= 0) >= SEVERAL)


def rarity(stem: str, holders: int, memories: int) -> float:
    """What a stem tells that so many of the memories hold, in nats."""
    known = min(RARITY + RARITY_OF_A_LETTER * len(stem), RAREST)
    return known if holders < 2 else min(known, -math.log((holders - 1) / (memories + LEARNT_AFTER)))


def probability(logit: Column) -> Column:
    likely: Column = 1 / (1 + np.exp(-logit))
    return likely
