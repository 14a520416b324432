"""Feature hashing: a text as the counts of its words and of their parts, in signed buckets."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from recallflow.caching import Kept
from recallflow.embedder import Kind, Matrix
from recallflow.language import grams, words

DIMENSION = 384
_BUCKET = np.dtype(np.int32)
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
        """Return vectors. Bucket sums are whole numbers, so a row does not depend on its batch."""
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for start in range(0, len(texts), _BLOCK):
            rows[start : start + _BLOCK] = self._embed(texts[start : start + _BLOCK])
        return rows

    def _embed(self, texts: Sequence[str]) -> Any:
        hashed = [b"".join(map(self._buckets.__getitem__, words(text))) for text in texts]
        signed = np.frombuffer(b"".join(hashed), _BUCKET)
        signs = signed >> 31  # 0, or -1 where ~b encodes the bucket b
        at = np.repeat(np.arange(0, len(texts) * self.dimension, self.dimension), [*map(_count, hashed)])
        at += signed ^ signs
        sums: Any = np.bincount(at, 2.0 * signs + 1.0, len(texts) * self.dimension)
        # Without any word the sums are whole numbers.
        sums = sums.astype(np.float64, copy=False).reshape(len(texts), self.dimension)
        norms = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
        norms[norms == 0] = 1
        sums /= norms
        return sums


def _count(buckets: bytes) -> int:
    return len(buckets) // _BUCKET.itemsize


class _Buckets:
    """Signed buckets of a word in bytes: b is +1 in bucket b, ~b is -1."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension

    def __call__(self, word: str) -> bytes:
        parts = (word, *(f"#{gram}" for gram in grams(word)))
        hashes = [int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little") for part in parts]
        buckets = [h % self._dimension for h in hashes]
        return np.array([b if h >> 63 else ~b for b, h in zip(buckets, hashes, strict=True)], _BUCKET).tobytes()


_caches: dict[int, Kept[str, bytes]] = {}  # by dimension: embedders of a process share their words
