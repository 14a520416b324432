"""Words of one owner's memories: a forward index over stems, from which occurrences, neighbouring pairs and the
similarity of spellings are read at query time.

A forward index (each memory's stems in order): an added memory is an append, a removed one is passed over by its
reader. Where a stem stands is looked up by comparing all numbers with its own, once; what was found is kept, and the
next question looks only at what was added since.
"""

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
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
_POSTING_BYTES = 250  # of Python objects


@lru_cache(maxsize=100_000)
def spelling(stem: str) -> bytes:
    """The stem's spelling features as packed uint16: the word itself and its character 4-grams, hashed."""
    marked = f"<{stem}>"
    grams = {marked, *(marked[i : i + GRAM] for i in range(len(marked) - GRAM + 1))}
    return np.array(sorted({zlib.crc32(g.encode()) % FEATURES for g in grams}), np.uint16).tobytes()


class _Posting(NamedTuple):
    """Where a stem stands in the first `looked` numbers of the index."""

    looked: int
    positions: Positions


class LexicalIndex:
    """Stems of memories by slot. Slots come in rising order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._flat = GrowingArray(np.uint32, 256)
        self._slot_of = GrowingArray(np.uint32, 256)
        self._starts = GrowingArray(np.int64)
        self._lengths = GrowingArray(np.int64)
        self._features = GrowingArray(np.uint16, 256)
        self._feature_words = GrowingArray(np.uint32, 256)
        self._feature_counts = GrowingArray(np.int64)
        self._postings: dict[int, _Posting] = {}

    @property
    def nbytes(self) -> int:
        growing = (self._flat, self._slot_of, self._starts, self._lengths)
        spellings = (self._features, self._feature_words, self._feature_counts)
        postings = sum(_POSTING_BYTES + posting.positions.nbytes for posting in self._postings.values())
        return sum(array.nbytes for array in (*growing, *spellings)) + 100 * len(self._numbers) + postings

    def add(self, texts: Iterable[tuple[Sequence[str], Sequence[str]]]) -> None:
        """Appends the next slots: for each, the stems of its author's name and of its text, in order."""
        flat: list[int] = []
        starts: list[int] = []
        lengths: list[int] = []
        before = len(self._flat)
        for author, text in texts:
            starts.append(before + len(flat))
            lengths.append(len(author) + len(text))
            flat.append(_BREAK)
            flat.extend(map(self._number, author))
            flat.append(_BREAK)
            flat.extend(map(self._number, text))
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
        if not self._numbers or not len(slots):
            return best
        words, firsts = self._words(slots)
        for row, stem in enumerate(stems):
            np.maximum.reduceat(self._similarity(stem).take(words), firsts, out=best[row])
        return best

    def _similarity(self, stem: str) -> npt.NDArray[np.float32]:
        """By word number, the similarity of its spelling; 0 for the break between texts, which is like no word."""
        wanted = np.zeros(FEATURES, np.bool_)
        features = np.frombuffer(spelling(stem), np.uint16)
        wanted[features] = True
        sharing = self._feature_words.view[wanted.take(self._features.view)]
        similarity = np.bincount(sharing, minlength=len(self._numbers) + 1).astype(np.float32)
        alike = np.flatnonzero(similarity)  # few of them
        similarity[alike] /= np.sqrt(len(features) * self._feature_counts.view[alike - 1], dtype=np.float32)
        return similarity

    def _words(self, slots: Ints) -> tuple[npt.NDArray[np.uint32], Ints]:
        """The numbers of the slots' words, breaks among them, one slot after the other, and where each slot begins."""
        starts = self._starts.view
        sizes = self._lengths.view[slots] + _BREAKS
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        at = np.arange(sizes.sum()) + np.repeat(starts[slots] - firsts, sizes)
        return self._flat.view.take(at), firsts

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

    def _number(self, stem: str) -> int:
        number = self._numbers.get(stem)
        if number is None:
            number = self._numbers[stem] = len(self._numbers) + 1
            features = np.frombuffer(spelling(stem), np.uint16)
            self._feature_counts.append(len(features))
            self._features.extend(features)
            self._feature_words.extend([number] * len(features))
        return number
