"""Words of one owner's memories: a forward index over stems, from which occurrences, neighbouring pairs and the
similarity of spellings are read at query time.

A forward index (each memory's stems in order): an added memory is an append, a removed one is passed over by its
reader. Where a stem stands is looked up by comparing all numbers with its own, once; what was found is kept, and the
next question looks only at what was added since.
"""

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.state.arrays import GrowingArray

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.uint32]

GRAM = 4
FEATURES = 1 << 16
_BREAK = 0  # separates texts and their author, so that no pair spans them; no stem has this number
_BREAKS = 2  # per slot
_NOWHERE: Positions = np.zeros(0, np.uint32)
_NOTHING = np.zeros(0, np.float32)
_POSTING_BYTES = 250  # of Python objects


@lru_cache(maxsize=100_000)
def spelling(stem: str) -> bytes:
    """The stem's spelling features as packed uint16: the word itself and its character 4-grams, hashed."""
    marked = f"<{stem}>"
    grams = {marked, *(marked[i : i + GRAM] for i in range(len(marked) - GRAM + 1))}
    return np.array(sorted({zlib.crc32(g.encode()) % FEATURES for g in grams}), np.uint16).tobytes()


def distinct(slots: Positions) -> Positions:
    """Rising slots, each once."""
    if len(slots) < 2:
        return slots
    once = np.empty(len(slots), np.bool_)
    once[0] = True
    np.not_equal(slots[1:], slots[:-1], out=once[1:])
    return slots[once]


class _Posting(NamedTuple):
    """Where a stem stands in the first `looked` numbers of the index."""

    looked: int
    positions: Positions


class _Alike(NamedTuple):
    """The words spelt alike a stem, rising, among the first `looked` of the index, and how alike they are."""

    looked: int
    words: Positions
    similarities: npt.NDArray[np.float32]


class _Numbers(dict[str, int]):
    """Stems ↔ their numbers from 1, given when they are first looked up."""

    def __missing__(self, stem: str) -> int:
        number = self[stem] = len(self) + 1
        return number


class LexicalIndex:
    """Stems of memories by slot. Slots come in rising order."""

    def __init__(self) -> None:
        self._numbers = _Numbers()
        self._flat = GrowingArray(np.uint32, 256)
        self._slot_of = GrowingArray(np.uint32, 256)
        self._starts = GrowingArray(np.int64)
        self._lengths = GrowingArray(np.int64)
        self._features = GrowingArray(np.uint16, 256)
        self._feature_words = GrowingArray(np.uint32, 256)
        self._feature_counts = GrowingArray(np.int64)
        self._feature_starts = GrowingArray(np.int64)
        self._postings: dict[int, _Posting] = {}
        self._alike: dict[int, _Alike] = {}

    @property
    def nbytes(self) -> int:
        growing = (self._flat, self._slot_of, self._starts, self._lengths)
        spellings = (self._features, self._feature_words, self._feature_counts, self._feature_starts)
        postings = sum(_POSTING_BYTES + posting.positions.nbytes for posting in self._postings.values())
        alike = sum(_POSTING_BYTES + 2 * found.words.nbytes for found in self._alike.values())
        return sum(array.nbytes for array in (*growing, *spellings)) + 100 * len(self._numbers) + postings + alike

    def add(self, texts: Iterable[tuple[Sequence[str], Sequence[str]]]) -> None:
        """Appends the next slots: for each, the stems of its author's name and of its text, in order."""
        flat: list[int] = []
        starts: list[int] = []
        lengths: list[int] = []
        before, numbers = len(self._flat), self._numbers
        known = len(numbers)
        for author, text in texts:
            starts.append(before + len(flat))
            lengths.append(len(author) + len(text))
            flat.append(_BREAK)
            flat += map(numbers.__getitem__, author)
            flat.append(_BREAK)
            flat += map(numbers.__getitem__, text)
        self._spell([*islice(numbers, known, None)])
        slots = np.arange(len(self._starts), len(self._starts) + len(starts))
        self._slot_of.extend(np.repeat(slots, np.array(lengths, np.int64) + _BREAKS))
        self._starts.extend(starts)
        self._lengths.extend(lengths)
        self._flat.extend(flat)

    def lengths(self) -> Ints:
        """Stems per slot, author included."""
        return self._lengths.view

    def occurrences(self, stem: str) -> Positions:
        """The slot of each occurrence of the stem, in rising order: a slot that holds it twice comes twice."""
        slots: Positions = self._slot_of.view[self._positions(stem)]
        return slots

    def occurrences_of_pair(self, first: str, second: str) -> Positions:
        """The same of two stems that stand side by side."""
        following = self._numbers.get(second)
        at = self._positions(first)
        if following is None or not len(at):
            return _NOWHERE
        flat = self._flat.view
        after = np.minimum(at + 1, len(flat) - 1)
        slots: Positions = self._slot_of.view[at[(flat[after] == following) & (after > at)]]
        return slots

    def counts(self, stems: Iterable[str]) -> Floats:
        """How often each stem stands in each slot: (stems, slots)."""
        slots = len(self._starts)
        found = [np.bincount(self.occurrences(stem), minlength=slots) for stem in stems]
        return np.array(found, np.float64).reshape(len(found), slots)

    def closest(self, stems: Sequence[str], slots: Ints) -> npt.NDArray[np.float32]:
        """For each stem and slot, the spelling similarity of the slot's closest word: (stems, slots), 0 to 1.

        Similarity is the cosine of the two words' sets of spelling features: |a ∩ b| / √(|a|·|b|).
        """
        best = np.zeros((len(stems), len(slots)), np.float32)
        if not self._numbers or not len(slots) or not stems:
            return best
        alike = np.zeros((len(stems), len(self._numbers) + 1), np.float32)  # the break between texts is like no word
        some = np.zeros(len(self._numbers) + 1, np.bool_)
        for row, stem in enumerate(stems):
            found = self._words_alike(stem)
            alike[row, found.words] = found.similarities
            some[found.words] = True
        flat, slot_of = self._flat.view, self._slot_of.view
        if 2 * len(slots) < len(self._starts):
            at = self._places(slots)
            flat, slot_of = flat.take(at), slot_of.take(at)
        hits = some.take(flat).nonzero()[0]
        if not len(hits):
            return best
        holding = slot_of.take(hits)
        firsts = np.concatenate([[0], (holding[1:] != holding[:-1]).nonzero()[0] + 1])
        closest = np.maximum.reduceat(alike.take(flat.take(hits), axis=1), firsts, axis=1)
        column_of = np.full(len(self._starts), -1)
        column_of[slots] = np.arange(len(slots))
        columns = column_of.take(holding.take(firsts))
        asked = columns >= 0
        best[:, columns[asked]] = closest[:, asked]
        return best

    def _words_alike(self, stem: str) -> _Alike:
        """What shares spelling features with a stem."""
        number, words = self._numbers.get(stem), len(self._numbers)
        known = self._alike.get(number or 0, _Alike(0, _NOWHERE, _NOTHING))
        if known.looked == words:
            return known
        features = np.frombuffer(spelling(stem), np.uint16)
        start = self._feature_starts.view[known.looked]
        those, of = self._features.view[start:], self._feature_words.view[start:]
        # One look for each of a handful of features: faster than a table of all features there may be.
        sharing = np.sort(np.concatenate([of[those == feature] for feature in features]))
        added = distinct(sharing)
        shared = np.searchsorted(sharing, added, "right") - np.searchsorted(sharing, added)
        cosines = (shared / np.sqrt(len(features) * self._feature_counts.view[added - 1])).astype(np.float32)
        found = _Alike(words, np.concatenate([known.words, added]), np.concatenate([known.similarities, cosines]))
        if number is not None:
            self._alike[number] = found
        return found

    def _places(self, slots: Ints) -> Ints:
        """Where the slots' stems and breaks stand in the index, one slot after the other."""
        sizes = self._lengths.view[slots] + _BREAKS
        firsts = sizes.cumsum() - sizes
        places: Ints = np.arange(sizes.sum()) + np.repeat(self._starts.view[slots] - firsts, sizes)
        return places

    def _positions(self, stem: str) -> Positions:
        number = self._numbers.get(stem)
        if number is None:
            return _NOWHERE
        flat = self._flat.view
        looked, positions = self._postings.get(number, _Posting(0, _NOWHERE))
        if looked < len(flat):
            added = np.flatnonzero(flat[looked:] == number) + looked
            positions = np.concatenate([positions, added.astype(np.uint32)])
            self._postings[number] = _Posting(len(flat), positions)
        return positions

    def _spell(self, added: list[str]) -> None:
        """Takes in the spelling features of the stems with the next numbers."""
        if not added:
            return
        features = [spelling(stem) for stem in added]
        counts = np.array([len(packed) // 2 for packed in features], np.int64)
        self._feature_starts.extend(len(self._features) + np.cumsum(counts) - counts)
        self._feature_words.extend(np.repeat(np.arange(1, len(added) + 1) + len(self._feature_counts), counts))
        self._feature_counts.extend(counts)
        self._features.extend(np.frombuffer(b"".join(features), np.uint16))
