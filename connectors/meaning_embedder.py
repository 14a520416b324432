"""Embedder `meaning`: static word vectors of thirteen languages, and the hashed spelling of the words.

It needs no model and no download. Synonyms are close by their word vectors (`language/word_vectors.py`); names, typing
errors and rare words by the buckets of `HashEmbedder`. A vector is the concatenation of both parts.
"""

from collections.abc import Sequence

import numpy as np

from recallflow.connectors.hash_embedder import HashEmbedder
from recallflow.embedder import Kind, Matrix
from recallflow.language.word_vectors import word_vectors

SPELLING_BUCKETS = 256
MEANING_SHARE = 0.8  # of a cosine, where both texts have meaning


class MeaningEmbedder:
    """Embedder of word vectors and hashed spelling."""

    kind: Kind = "blended"

    def __init__(self) -> None:
        self._words = word_vectors()
        self._spelling = HashEmbedder(SPELLING_BUCKETS)
        self.dimension = self._words.dimension + SPELLING_BUCKETS
        self.name = f"meaning-{self.dimension}-{self._words.digest}"

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (texts, dimension) rows of length 1: the word vectors first, then the hashed spelling."""
        size = self._words.dimension
        rows = np.empty((len(texts), self.dimension), np.float32)
        meaning = self._words.sums(texts)
        np.multiply(meaning, _per_length(meaning, MEANING_SHARE), out=rows[:, :size])
        np.multiply(self._spelling.embed(texts), np.float32((1 - MEANING_SHARE) ** 0.5), out=rows[:, size:])
        rows *= _per_length(rows, 1.0)
        return rows


def _per_length(rows: Matrix, share: float) -> Matrix:
    """Return the factor that gives each row the square root of the share as its length; 0 for a row of zeros."""
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    factors: Matrix = np.divide(np.float32(share**0.5), lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return factors
