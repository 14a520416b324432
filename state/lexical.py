"""Words of one owner's memories: a forward index over stems, for occurrences and spelling similarity at query time.

It contains each memory's stems in order, also of removed memories, which readers skip. Occurrences of a stem are found
by a scan; the result is cached, and later queries scan only additions."""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, count, islice, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from recallflow.caching import BoundedCache
from recallflow.language.scripts import grams, is_character
from recallflow.state.arrays import Array, Column, GrowingArray, Ints, Unsigned, best_part, ranges, run_starts
from recallflow.state.segment import Words
from recallflow.stepped import spend

FEATURES = 1 << 16
_NO_NUMBERS: Unsigned = np.zeros(0, np.uint32)
_NO_FLOATS = np.zeros(0, np.float32)
_NO_PARTS: Mapping[int, Sequence[int]] = MappingProxyType({})
_CHUNK = 32_768  # occurrences: they stay in the processor's cache
_POSTING_BYTES = 250  # of Python objects per posting
_ADDED_WORDS = 10  # added to a text's number of words, so that short texts score lower
_STEM_BYTES = 200
OCCURRENCE_BYTES = np.dtype(np.uint32).itemsize  # of one occurrence of a stem
STEMS_PER_READ = 100  # packed stems that cost as much as the read of a record


class Spelling(int):
    """The identity of a stem: 64 bits of its hash."""

    features: bytes  # hashes of the word and its parts for spelling similarity, packed uint16

    @classmethod
    def of(cls, stem: str) -> Self:
        parts = {f"<{stem}>", *grams(stem)}
        found = cls.from_bytes(blake2b(stem.encode(), digest_size=8).digest(), "little")
        found.features = np.array(sorted({zlib.crc32(part.encode()) % FEATURES for part in parts}), np.uint16).tobytes()
        return found


_spellings = BoundedCache(Spelling.of, 16 * 1024 * 1024)


def distinct(numbers: Array) -> Array:
    """Return the distinct values of ascending numbers."""
    return numbers[run_starts(numbers)] if len(numbers) else numbers


def _distinct_of(values: Array) -> tuple[Array, Ints, Ints]:
    """Return the distinct values, ascending, the index of an occurrence of each, and each value's index in them."""
    order = values.argsort()  # not stable: a stable sort would take several times as long
    ordered = values[order]
    first = np.ones(len(values), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    index_of = np.empty(len(values), np.int64)
    index_of[order] = first.cumsum() - 1
    return ordered[first], order[first], index_of


def _containing(starts: Ints, positions: Ints) -> Ints:
    """Return the index of the text that contains each position. `starts` are the first positions of the texts."""
    return np.searchsorted(starts, positions, "right") - 1


class _Posting(NamedTuple):
    scanned: int  # the number of scanned occurrences of the index
    positions: Unsigned  # the position of each occurrence in the index, ascending
    slots: Unsigned  # the slot of each occurrence


_ABSENT = _Posting(0, _NO_NUMBERS, _NO_NUMBERS)


class _SimilarWords(NamedTuple):
    """Words with a spelling similar to a stem."""

    scanned: int  # the number of scanned words of the index
    words: Unsigned  # ascending
    similarities: npt.NDArray[np.float32]  # of each word


class Parts(NamedTuple):
    """The passages (parts) of all memories, slot by slot."""

    starts: Ints  # (parts,) the first occurrence of each
    lengths: Ints  # (parts,) the number of occurrences
    slots: Ints  # (parts,) the slot of each
    firsts: Ints  # (slots,) the first part of each slot

    def counts(self, slots: Ints) -> Ints:
        """Return the number of parts of each slot."""
        return np.append(self.firsts, len(self.starts))[slots + 1] - self.firsts[slots]


class LexicalIndex:
    """Stems of memories by slot, in ascending order of slots. A memory with several passages has a part for each; where
    passages overlap, the stems belong to the first."""

    def __init__(self) -> None:
        # Numbers of stems by identity, in the order of their first occurrence.
        self._next = count()
        self._numbers: dict[int, int] = defaultdict(self._next.__next__)
        self._packed: list[Words] = []  # segments appended since the last lookup, decoded on demand
        self._flat = GrowingArray(np.uint32, 256)
        self._starts = GrowingArray(np.int64)
        self._lengths = GrowingArray(np.int64)
        self._cuts = GrowingArray(np.int64)  # start of each part that is not the first of its slot
        self._cut_slots = GrowingArray(np.int64)
        self._parts: Parts | None = None  # cache, valid until slots are added
        self._features = GrowingArray(np.uint16, 256)
        self._feature_words = GrowingArray(np.uint32, 256)
        self._feature_counts = GrowingArray(np.int64)
        self._feature_starts = GrowingArray(np.int64)
        self._postings: dict[int, _Posting] = {}
        self._similar: dict[int, _SimilarWords] = {}
        self.cache_bytes = 0  # size of the two caches above

    @property
    def nbytes(self) -> int:
        growing = (self._flat, self._starts, self._lengths, self._cuts, self._cut_slots)
        spellings = (self._features, self._feature_words, self._feature_counts, self._feature_starts)
        packed = sum(array.nbytes for words in self._packed for array in words)
        parts = 0 if self._parts is None else sum(array.nbytes for array in self._parts)
        stems = _STEM_BYTES * len(self._numbers)
        return sum(array.nbytes for array in (*growing, *spellings)) + stems + packed + parts

    def add(self, texts: Iterable[Sequence[str]], parts: Mapping[int, Sequence[int]] = _NO_PARTS) -> None:
        """Append the next slots with their stems in order. For texts with several passages, `parts` are the numbers of
        stems per passage, by index of the text."""
        self.unpack()
        flat: list[int] = []
        lengths: list[int] = []
        before, number, spelling = len(self._numbers), self._numbers.__getitem__, _spellings.__getitem__
        for stems in texts:
            stem_count = len(self._numbers)
            flat += map(number, map(spelling, stems))
            lengths.append(len(stems))
            spend(len(self._numbers) - stem_count)
        new_stems: Iterable[Any] = islice(self._numbers, before, None)
        added = [stem.features for stem in new_stems]
        counts: Ints = np.array([len(features) // 2 for features in added], np.int64)
        self._append_features(counts, np.frombuffer(b"".join(added), np.uint16))
        ends = np.cumsum(lengths) + len(self._flat)
        for text, sizes in parts.items():
            self._cuts.extend(ends[text] - np.cumsum(sizes[:0:-1])[::-1])
            self._cut_slots.extend(np.full(len(sizes) - 1, len(self._lengths) + text))
        self._append_slots(np.array(lengths, np.int64))
        self._flat.extend(flat)

    def append(self, words: Words) -> None:
        """Append the slots of a segment. Arrays are copied, so that the segment's bytes can be freed."""
        self._packed.append(Words(*map(np.array, words)))

    def unpack(self) -> None:
        """Decode all appended segments together, because each contains most of the owner's words."""
        if not self._packed:
            return
        packed, self._packed = self._packed, []
        known = len(self._numbers)
        stems = np.concatenate([np.fromiter(self._numbers, np.uint64, known), *(words.stems for words in packed)])
        unique, firsts, index_of = _distinct_of(stems)
        spend(len(stems) // STEMS_PER_READ)
        numbers = np.full(len(unique), -1)
        numbers[index_of[:known]] = np.arange(known)
        new = np.flatnonzero(numbers < 0)
        numbers[new] = np.arange(known, len(unique))
        self._numbers.update(zip(unique[new].tolist(), islice(self._next, len(new)), strict=True))
        spend(len(new) // STEMS_PER_READ)
        counts: Ints = np.concatenate([words.counts for words in packed], dtype=np.int64)
        starts, added = counts.cumsum() - counts, firsts[new] - known
        features = np.concatenate([words.features for words in packed])
        self._append_features(counts[added], features[ranges(starts[added], counts[added])])
        numbers_of = numbers.astype(np.uint32).take(index_of)
        first = len(self._lengths)
        self._append_slots(np.concatenate([words.lengths for words in packed], dtype=np.int64))
        self._flat.reserve(sum(len(words.flat) for words in packed))
        ends = accumulate((len(words.stems) for words in packed), initial=known)
        for words, (start, end) in zip(packed, pairwise(ends), strict=True):
            self._cuts.extend(words.cuts + np.int64(len(self._flat)))
            self._cut_slots.extend(words.cut_places + np.int64(first))
            first += len(words.lengths)
            numbers_of[start:end].take(words.flat, out=self._flat.extend_unwritten(len(words.flat)), mode="clip")

    def packed(self) -> Words:
        """Return all slots in the form that `append` takes."""
        self.unpack()
        stems = np.fromiter(self._numbers, np.uint64, len(self._numbers))
        features, cuts = (self._feature_counts.view, self._features.view), (self._cuts.view, self._cut_slots.view)
        return Words(stems, self._flat.view, self._lengths.view, *features, *cuts)

    def _append_slots(self, lengths: Ints) -> None:
        """Append the lengths of the next slots, whose stems the caller appends."""
        self._parts = None
        self._starts.extend(len(self._flat) + lengths.cumsum() - lengths)
        self._lengths.extend(lengths)

    def lengths(self) -> Ints:
        """Return the number of stems per slot."""
        self.unpack()
        return self._lengths.view

    def shares(self, slots: Ints) -> Column:
        """Return each word's share of all occurrences in these slots, by its number."""
        self.unpack()
        counts = np.bincount(self._words_of(slots), minlength=len(self._numbers))
        shares: Column = counts / max(counts.sum(), 1)
        return shares

    def information(self, slots: Ints, shares: Column) -> Column:
        """Return the information content of each slot's words: the mean of -ln(share), lowered for short texts."""
        self.unpack()
        lengths = self._lengths.view[slots]
        text_of = np.repeat(np.arange(len(slots)), lengths)
        rarity = -np.log(shares.take(self._words_of(slots)))
        rarities: Column = np.bincount(text_of, rarity, len(slots)) / (lengths + _ADDED_WORDS)
        return rarities

    def _words_of(self, slots: Ints) -> Unsigned:
        return self._flat.view.take(ranges(self._starts.view[slots], self._lengths.view[slots]))

    def number(self, stem: str) -> int | None:
        """Return the number of a stem; None if it does not occur."""
        self.unpack()
        return self._numbers.get(_spellings[stem])

    def occurrences(self, stem: str) -> Unsigned:
        """Return the slot of each occurrence of the stem, ascending, with repetitions. A single character of a script
        without blanks occurs in each word that contains it."""
        return self._posting(stem).slots

    def adjacent(self, first: str, second: str) -> Unsigned:
        """Return the slot of each occurrence of the first stem directly before the second, ascending."""
        before, after = self._posting(first), self._posting(second)
        if not len(before.positions) or not len(after.positions):
            return _NO_NUMBERS
        # The shorter posting list is searched in the longer one.
        if len(before.positions) <= len(after.positions):
            few, many, wanted = before, after, before.positions + 1
        else:
            few, many, wanted = after, before, after.positions - 1  # position 0 wraps around, and matches nothing
        nearest = many.positions.searchsorted(wanted)
        is_adjacent = many.positions.take(nearest, mode="clip") == wanted
        slots = few.slots[is_adjacent]
        in_one_slot: Unsigned = slots[slots == many.slots.take(nearest[is_adjacent])]
        return in_one_slot

    def _posting(self, stem: str) -> _Posting:
        """Return the posting list of the stem. Only occurrences added since the last call are scanned."""
        self.unpack()
        spelling, is_part = _spellings[stem], is_character(stem)  # a character is a part of longer words
        number = spelling if is_part else self._numbers.get(spelling)
        if number is None:
            return _ABSENT
        flat = self._flat.view
        known = self._postings.get(number, _ABSENT)
        if known.scanned < len(flat):
            added = flat[known.scanned :]
            if is_part:  # the words that share a spelling feature contain it
                contains = np.zeros(len(self._numbers), np.bool_)
                contains[self._similar_words(stem).words] = True
                matches = contains.take(added)
            else:
                matches = added == number
            new = matches.nonzero()[0] + known.scanned
            slots = np.concatenate([known.slots, _containing(self._starts.view, new).astype(np.uint32)])
            positions = np.concatenate([known.positions, new.astype(np.uint32)])
            self.cache_bytes += 2 * (positions.nbytes - known.positions.nbytes)
            self.cache_bytes += 0 if number in self._postings else _POSTING_BYTES
            known = self._postings[number] = _Posting(len(flat), positions, slots)
        return known

    def part_occurrences(self, stem: str) -> Ints:
        """Return the part of each occurrence, in place of its slot (see `occurrences`)."""
        found = self._posting(stem)
        return found.slots + self._cuts.view.searchsorted(found.positions, "right")

    @property
    def has_parts(self) -> bool:
        """Return whether any memory has several parts. Otherwise parts equal slots."""
        self.unpack()
        return len(self._cuts) > 0

    def parts(self) -> Parts:
        """Return the parts of all slots. Later additions have higher numbers."""
        self.unpack()
        if self._parts is None:
            slots, of_cuts = np.arange(len(self._lengths)), self._cut_slots.view
            firsts = slots + of_cuts.searchsorted(slots)
            others = np.arange(len(of_cuts)) + of_cuts + 1
            starts, owners = np.empty((2, len(slots) + len(of_cuts)), np.int64)
            starts[firsts], starts[others] = self._starts.view, self._cuts.view
            owners[firsts], owners[others] = slots, of_cuts
            lengths = np.diff(starts, append=len(self._flat))
            self._parts = Parts(starts, lengths, owners, firsts)
        return self._parts

    def closest(self, stems: Sequence[str], slots: Ints, weights: Column) -> npt.NDArray[np.float32]:
        """Return the spelling similarity of the closest word in each slot's best part for each stem: (stems, slots), 0
        to 1.

        The best part has the highest weighted sum of similarities. Similarity is the cosine of the two words' sets of
        spelling features: |a ∩ b| / √(|a|·|b|)."""
        self.unpack()
        words = len(self._numbers)
        best = np.zeros((len(stems), len(slots)), np.float32)
        if not words or not len(slots) or not stems:
            return best
        similarities = np.zeros((len(stems), words), np.float32)
        is_similar = np.zeros(words, np.bool_)  # to any of the stems
        for row, stem in enumerate(stems):
            found = self._similar_words(stem)
            similarities[row, found.words] = found.similarities
            is_similar[found.words] = True
        flat, starts, few = self._flat.view, self._starts.view, 2 * len(slots) < len(self._lengths)
        if few:
            lengths = self._lengths.view[slots]
            flat, starts = flat.take(ranges(starts[slots], lengths)), lengths.cumsum() - lengths
        of_part = None
        if self.has_parts:
            parts = self.parts()
            starts, of_part = parts.starts, parts.slots
            if few:
                counts = parts.counts(slots)
                lengths = parts.lengths[ranges(parts.firsts[slots], counts)]
                starts, of_part = lengths.cumsum() - lengths, np.repeat(np.arange(len(slots)), counts)
        chunks = (flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK))
        hits_of_chunks = [is_similar.take(chunk).nonzero()[0] + number * _CHUNK for number, chunk in enumerate(chunks)]
        if not any(map(len, hits_of_chunks)):
            return best
        hits = np.concatenate(hits_of_chunks)
        texts = _containing(starts, hits)
        firsts = run_starts(texts)
        closest = np.maximum.reduceat(similarities.take(flat.take(hits), axis=1), firsts, axis=1)
        columns = texts.take(firsts)
        if of_part is not None:
            columns = of_part.take(columns)
            firsts = run_starts(columns)
            closest = best_part(closest, weights, np.diff(firsts, append=len(columns)))
            columns = columns[firsts]
        if not few:
            column_of = np.full(len(self._lengths), -1)
            column_of[slots] = np.arange(len(slots))
            columns = column_of.take(columns)
            if len(slots) < len(column_of):
                closest, columns = closest[:, columns >= 0], columns[columns >= 0]
        best[:, columns] = closest
        return best

    def _similar_words(self, stem: str) -> _SimilarWords:
        """Return all words that share a spelling feature with a stem."""
        spelling, words = _spellings[stem], len(self._numbers)
        number = self._numbers.get(spelling)
        known = self._similar.get(-1 if number is None else number, _SimilarWords(0, _NO_NUMBERS, _NO_FLOATS))
        if known.scanned == words:
            return known
        features = np.frombuffer(spelling.features, np.uint16)
        start = self._feature_starts.view[known.scanned]
        added_features, words_of = self._features.view[start:], self._feature_words.view[start:]
        # One scan per feature, of few features, is faster than a table of all possible features.
        is_shared = added_features == features[0]
        for feature in features[1:]:
            is_shared |= added_features == feature
        shared = np.bincount(words_of[is_shared])
        added = shared.nonzero()[0].astype(np.uint32)
        sizes = np.sqrt(len(features) * self._feature_counts.view.take(added))
        cosines = (shared.take(added) / sizes).astype(np.float32)
        found = _SimilarWords(
            words, np.concatenate([known.words, added]), np.concatenate([known.similarities, cosines])
        )
        if number is not None:
            self.cache_bytes += 2 * (found.words.nbytes - known.words.nbytes)
            self.cache_bytes += 0 if number in self._similar else _POSTING_BYTES
            self._similar[number] = found
        return found

    def _append_features(self, counts: Ints, features: Array) -> None:
        """Append the spelling features of the next words. `counts` are the numbers of features of each word."""
        self._feature_starts.extend(len(self._features) + np.cumsum(counts) - counts)
        self._feature_words.extend(np.repeat(np.arange(len(counts)) + len(self._feature_counts), counts))
        self._feature_counts.extend(counts)
        self._features.extend(features)
