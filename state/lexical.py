"""Words of one owner's memories: a forward index over stems, from which term counts, neighbouring pairs and word
similarities are read at query time.

A forward index (each memory's stems in order) instead of postings: an added memory is an append, a removed one is
masked, pairs and counts need no second structure, and comparing 10,000 integers with a query's stem takes 3 µs.
"""

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from recallflow.state.arrays import GrowingArray

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GRAM = 4
FEATURES = 1 << 16
_BREAK = 0  # separates texts and their author, so that no pair spans them; no stem has this number


@lru_cache(maxsize=100_000)
def spelling(stem: str) -> bytes:
    """The stem's spelling features as packed uint16: the word itself and its character 4-grams, hashed."""
    marked = f"<{stem}>"
    grams = {marked, *(marked[i : i + GRAM] for i in range(len(marked) - GRAM + 1))}
    return np.array(sorted({zlib.crc32(g.encode()) % FEATURES for g in grams}), np.uint16).tobytes()


class LexicalIndex:
    """Stems of memories by slot. Slots come in rising order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._flat = GrowingArray(np.uint32, 1024)
        self._starts = GrowingArray(np.int64)
        self._lengths = GrowingArray(np.int64)
        self._features = GrowingArray(np.uint16, 1024)
        self._feature_words = GrowingArray(np.uint32, 1024)
        self._feature_counts = GrowingArray(np.int64)
        self._slot_of: Ints | None = None

    @property
    def nbytes(self) -> int:
        arrays = (self._flat, self._starts, self._lengths, self._features, self._feature_words, self._feature_counts)
        return sum(a.nbytes for a in arrays) + 100 * len(self._numbers) + 8 * len(self._flat)

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
        self._starts.extend(starts)
        self._lengths.extend(lengths)
        self._flat.extend(flat)
        self._slot_of = None

    def lengths(self) -> Ints:
        """Stems per slot, author included."""
        return self._lengths.view

    def counts(self, stems: Iterable[str]) -> Floats:
        """How often each stem stands in each slot: (stems, slots)."""
        slots = len(self._starts)
        flat, slot_of = self._flat.view, self._slots()
        found = [
            np.bincount(slot_of[flat == number], minlength=slots)
            if (number := self._numbers.get(stem))
            else np.zeros(slots)
            for stem in stems
        ]
        return np.array(found, np.float64).reshape(len(found), slots)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> npt.NDArray[np.bool_]:
        """Which slots hold which pair of neighbouring stems: (pairs, slots)."""
        slots = len(self._starts)
        flat, slot_of = self._flat.view, self._slots()
        rows = []
        for first, second in pairs:
            row = np.zeros(slots, np.bool_)
            a, b = self._numbers.get(first), self._numbers.get(second)
            if a and b:
                row[slot_of[:-1][(flat[:-1] == a) & (flat[1:] == b)]] = True
            rows.append(row)
        return np.array(rows, np.bool_).reshape(len(rows), slots)

    def closest(self, stems: Sequence[str]) -> npt.NDArray[np.float32]:
        """For each stem and slot, the spelling similarity of the slot's closest word: (stems, slots), 0 to 1.

        Similarity is the cosine of the two words' sets of spelling features: |a ∩ b| / √(|a|·|b|).
        """
        best = np.zeros((len(stems), len(self._starts)), np.float32)
        if not self._numbers:
            return best
        flat, starts = self._flat.view, self._starts.view
        wanted = np.zeros(FEATURES, np.bool_)
        for row, stem in enumerate(stems):
            features = np.frombuffer(spelling(stem), np.uint16)
            wanted[features] = True
            sharing = self._feature_words.view[wanted[self._features.view]]
            wanted[features] = False
            # index 0 is the break between texts, which is like no word
            similarity = np.bincount(sharing, minlength=len(self._numbers) + 1).astype(np.float32)
            similarity[1:] /= np.sqrt(len(features) * self._feature_counts.view, dtype=np.float32)
            np.maximum.reduceat(similarity[flat], starts, out=best[row])
        return best

    def _number(self, stem: str) -> int:
        number = self._numbers.get(stem)
        if number is None:
            number = self._numbers[stem] = len(self._numbers) + 1
            features = np.frombuffer(spelling(stem), np.uint16)
            self._feature_counts.append(len(features))
            self._features.extend(features)
            self._feature_words.extend([number] * len(features))
        return number

    def _slots(self) -> Ints:
        if self._slot_of is None:
            sizes = np.diff(self._starts.view, append=len(self._flat))
            self._slot_of = np.repeat(np.arange(len(self._starts)), sizes)
        return self._slot_of
