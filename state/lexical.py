"""Words of one owner's memories: a forward index over stems, from which occurrences and the similarity of spellings are
read at query time.

A forward index (each memory's stems in order): an added memory is an append, a removed one is passed over by its
reader. Where a stem stands is looked up by comparing all numbers with its own, once; what was found is kept, and the
next question looks only at what was added since.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.caching import Kept
from recallflow.state.arrays import GrowingArray
from recallflow.state.segment import Words

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Unsigned = npt.NDArray[np.uint32]

GRAM = 4
FEATURES = 1 << 16
_NOWHERE: Unsigned = np.zeros(0, np.uint32)
_NOTHING = np.zeros(0, np.float32)
_POSTING_BYTES = 250  # of Python objects


def spelling(stem: str) -> bytes:
    """The stem's spelling features as packed uint16: the word itself and its character 4-grams, hashed."""
    marked = f"<{stem}>"
    grams = {marked, *(marked[i : i + GRAM] for i in range(len(marked) - GRAM + 1))}
    return np.array(sorted({zlib.crc32(g.encode()) % FEATURES for g in grams}), np.uint16).tobytes()


_spellings = Kept(spelling, 16 * 1024 * 1024)


def distinct(slots: Unsigned) -> Unsigned:
    """Rising slots, each once."""
    if len(slots) < 2:
        return slots
    once = np.empty(len(slots), np.bool_)
    once[0] = True
    np.not_equal(slots[1:], slots[:-1], out=once[1:])
    return slots[once]


class _Posting(NamedTuple):
    """The slot of each occurrence of a stem among the first `looked` numbers of the index."""

    looked: int
    slots: Unsigned


class _Alike(NamedTuple):
    """The words spelt alike a stem, rising, among the first `looked` of the index, and how alike they are."""

    looked: int
    words: Unsigned
    similarities: npt.NDArray[np.float32]


class LexicalIndex:
    """Stems of memories by slot. Slots come in rising order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = defaultdict(count().__next__)  # of stems, given when they are first looked up
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
    def stem_bytes(self) -> int:
        """What one occurrence of a stem takes."""
        return self._flat.view.itemsize + self._slot_of.view.itemsize

    @property
    def nbytes(self) -> int:
        growing = (self._flat, self._slot_of, self._starts, self._lengths)
        spellings = (self._features, self._feature_words, self._feature_counts, self._feature_starts)
        postings = sum(_POSTING_BYTES + posting.slots.nbytes for posting in self._postings.values())
        alike = sum(_POSTING_BYTES + 2 * found.words.nbytes for found in self._alike.values())
        return sum(array.nbytes for array in (*growing, *spellings)) + 100 * len(self._numbers) + postings + alike

    def add(self, texts: Iterable[Sequence[str]]) -> None:
        """Appends the next slots: the stems of each, in order."""
        flat: list[int] = []
        starts: list[int] = []
        before, known, number = len(self._flat), len(self._numbers), self._numbers.__getitem__
        for stems in texts:
            starts.append(before + len(flat))
            flat += map(number, stems)
        self._spell([*islice(self._numbers, known, None)])
        lengths: Ints = np.array([*starts[1:], before + len(flat)], np.int64) - np.array(starts, np.int64)
        slots = np.arange(len(self._starts), len(self._starts) + len(starts))
        self._slot_of.extend(np.repeat(slots, lengths))
        self._starts.extend(starts)
        self._lengths.extend(lengths)
        self._flat.extend(flat)

    def append(self, words: Words) -> None:
        """Appends the next slots as they were packed."""
        known, before = len(self._numbers), len(self._flat)
        numbers = np.fromiter(map(self._numbers.__getitem__, words.stems), np.uint32, len(words.stems))
        added = numbers >= known
        counts: Ints = words.counts.astype(np.int64)
        features = words.features if added.all() else words.features[np.repeat(added, counts)]
        self._take_features(counts[added], features)
        lengths: Ints = words.lengths.astype(np.int64)
        slots = np.arange(len(self._starts), len(self._starts) + len(lengths), dtype=np.uint32)
        self._slot_of.extend(np.repeat(slots, lengths))
        self._starts.extend(before + np.cumsum(lengths) - lengths)
        self._lengths.extend(lengths)
        self._flat.extend(numbers.take(words.flat) if len(numbers) else words.flat)

    def packed(self) -> Words:
        """All slots, as another index can append them."""
        return Words(
            [*self._numbers], self._flat.view, self._lengths.view, self._feature_counts.view, self._features.view
        )

    def reserve(self, slots: int, stems: int) -> None:
        """Makes room for so many more slots with so many stems in all."""
        for of_slots in (self._starts, self._lengths):
            of_slots.reserve(slots)
        for of_stems in (self._flat, self._slot_of):
            of_stems.reserve(stems)

    def lengths(self) -> Ints:
        """Stems per slot."""
        return self._lengths.view

    def occurrences(self, stem: str) -> Unsigned:
        """The slot of each occurrence of the stem, in rising order: a slot that holds it twice comes twice."""
        number = self._numbers.get(stem)
        if number is None:
            return _NOWHERE
        flat = self._flat.view
        known = self._postings.get(number, _Posting(0, _NOWHERE))
        if known.looked < len(flat):
            added = self._slot_of.view[known.looked :][flat[known.looked :] == number]
            known = self._postings[number] = _Posting(len(flat), np.concatenate([known.slots, added]))
        return known.slots

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
        alike = np.zeros((len(stems), len(self._numbers)), np.float32)
        some = np.zeros(len(self._numbers), np.bool_)
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
        known = self._alike.get(-1 if number is None else number, _Alike(0, _NOWHERE, _NOTHING))
        if known.looked == words:
            return known
        features = np.frombuffer(_spellings[stem], np.uint16)
        start = self._feature_starts.view[known.looked]
        those, of = self._features.view[start:], self._feature_words.view[start:]
        # One look for each of a handful of features: faster than a table of all features there may be.
        shares = those == features[0]
        for feature in features[1:]:
            shares |= those == feature
        sharing = of[shares.nonzero()[0]]
        added = distinct(sharing)
        shared = np.searchsorted(sharing, added, "right") - np.searchsorted(sharing, added)
        cosines = (shared / np.sqrt(len(features) * self._feature_counts.view[added])).astype(np.float32)
        found = _Alike(words, np.concatenate([known.words, added]), np.concatenate([known.similarities, cosines]))
        if number is not None:
            self._alike[number] = found
        return found

    def _places(self, slots: Ints) -> Ints:
        """Where the slots' stems stand in the index, one slot after the other."""
        sizes = self._lengths.view[slots]
        firsts = sizes.cumsum() - sizes
        places: Ints = np.arange(sizes.sum()) + np.repeat(self._starts.view[slots] - firsts, sizes)
        return places

    def _spell(self, added: list[str]) -> None:
        """Takes in the spelling features of the stems with the next numbers."""
        if not added:
            return
        features = [_spellings[stem] for stem in added]
        counts = np.array([len(packed) // 2 for packed in features], np.int64)
        self._take_features(counts, np.frombuffer(b"".join(features), np.uint16))

    def _take_features(self, counts: Ints, features: npt.NDArray[np.uint16]) -> None:
        """Takes in features, word by word, of the words with the next numbers; `counts`: how many each has."""
        self._feature_starts.extend(len(self._features) + np.cumsum(counts) - counts)
        self._feature_words.extend(np.repeat(np.arange(len(counts)) + len(self._feature_counts), counts))
        self._feature_counts.extend(counts)
        self._features.extend(features)
