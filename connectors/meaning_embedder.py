"""Meaning and spelling: what words mean, from a table of token vectors in the package, and how they are spelt.

`benchmarks/meaning_table.py` makes the table: the mean of a text's token vectors reproduces the sentence vector of
all-MiniLM-L6-v2, so that synonyms are close. The table knows English. Names, typing errors and other languages are
compared by their spelling, with the buckets of `HashEmbedder`: both parts stand side by side in one vector.
"""

import hashlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.connectors.hash_embedder import HashEmbedder
from recallflow.connectors.token_counters import ModelTokenCounter
from recallflow.embedder import Kind, Matrix
from recallflow.errors import EmbedderError

TABLE = Path(__file__).with_name("meaning_table.npz")
TOKENIZER = Path(__file__).with_name("meaning_tokenizer.json")
SPELLING_BUCKETS = 256
MEANING_SHARE = 0.8  # of a cosine, where both texts have meaning
_TOKENS_MAX = 512


class MeaningEmbedder(ModelTokenCounter):
    """Static token vectors and hashed spelling in one vector."""

    kind: Kind = "blended"

    def __init__(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise EmbedderError("the meaning embedder needs tokenizers: pip install 'recallflow[meaning]'") from None
        with np.load(TABLE) as stored:
            self._codes: npt.NDArray[np.int8] = stored["codes"]
            self._scales: npt.NDArray[np.float32] = stored["scales"].astype(np.float32)
        self._tokenizer: Any = Tokenizer.from_file(str(TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_TOKENS_MAX)
        self._spelling = HashEmbedder(SPELLING_BUCKETS)
        self.dimension = self._codes.shape[1] + SPELLING_BUCKETS
        digest = hashlib.blake2b(self._codes.tobytes() + self._scales.tobytes(), digest_size=4)
        self.name = f"meaning-{self.dimension}-{digest.hexdigest()}"

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (texts, dimension) rows: the meaning first, then the spelling."""
        rows = np.zeros((len(texts), self.dimension), np.float32)
        size = self._codes.shape[1]
        found = [one.ids for one in self._tokenizer.encode_batch_fast([*texts], add_special_tokens=False)]
        filled = [number for number, ids in enumerate(found) if ids]
        if filled:
            tokens = np.array([*chain.from_iterable(found)], np.int64)
            starts = np.cumsum([0, *(len(found[number]) for number in filled[:-1])])
            # Each text's tokens are added one after the other, so that a vector is the same in any batch.
            sums = np.add.reduceat(self._codes[tokens] * self._scales[tokens, np.newaxis], starts, axis=0)
            rows[filled, :size] = sums * _per_length(sums, MEANING_SHARE)
        rows[:, size:] = self._spelling.embed(texts) * np.float32((1 - MEANING_SHARE) ** 0.5)
        rows *= _per_length(rows, 1.0)
        return rows


def _per_length(rows: Matrix, share: float) -> Matrix:
    """Return the factor that gives each row the square root of the share as its length; 0 for a row of zeros."""
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    factors: Matrix = np.divide(np.float32(share**0.5), lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return factors
