"""Feature hashing: a text as the counts of its words and of their parts, in signed buckets."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from recallflow.caching import Kept
from recallflow.embedder import Kind, Matrix
from recallflow.language import grams, words

DIMENSION = 384
_BLOCK = 128  # texts at a time: their sums stay in the processor's cache
_CACHE_BYTES = 32 * 1024 * 1024


class HashEmbedder:
    """Feature hashing (Weinberger et al. 2009): words and their parts (`language.grams`) fall into signed buckets.

    Needs no download, is deterministic, and knows spelling only.
    """

    kind: Kind = "spelling"

    def __init__(self, dimension: int = DIMENSION) -> None:
        self.dimension = dimension
        self.name = f"hash-{dimension}"
        self._buckets = _caches.setdefault(dimension, Kept(_Buckets(dimension), _CACHE_BYTES))

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Bucket sums are whole numbers, so a row is exact whatever batch it is in."""
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for start in range(0, len(texts), _BLOCK):
            rows[start : start + _BLOCK] = self._embed(texts[start : start + _BLOCK])
        return rows

    def _embed(self, texts: Sequence[str]) -> Any:
        hashed = [[self._buckets[word] for word in words(text)] for text in texts]
        sizes = [sum(map(len, row)) for row in hashed]
        parts = [part for row in hashed for part in row]
        signed = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        row_of = np.repeat(np.arange(len(texts)), sizes) * self.dimension
        weights = np.where(signed < 0, -1.0, 1.0)
        buckets = np.where(signed < 0, ~signed, signed)
        sums = np.bincount(row_of + buckets, weights, len(texts) * self.dimension).astype(np.float64)
        sums = sums.reshape(len(texts), self.dimension)
        norms = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
        return np.divide(sums, norms, out=np.zeros_like(sums), where=norms > 0)


class _Buckets:
    """Signed buckets of a word as int64: b stands for +1 in bucket b, ~b for -1."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension

    def __call__(self, word: str) -> Any:
        parts = (word, *(f"#{gram}" for gram in grams(word)))
        hashes = [int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little") for part in parts]
        buckets = [h % self._dimension for h in hashes]
        return np.array([b if h >> 63 else ~b for b, h in zip(buckets, hashes, strict=True)], np.int64)


_caches: dict[int, Kept[str, Any]] = {}  # by dimension: embedders of a process share their words
