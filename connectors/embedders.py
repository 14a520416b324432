"""Embedders by name, and those without a model file: hashed spelling, word vectors, and a service."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recallflow.caching import BoundedCache
from recallflow.connectors.model_embedders import StaticEmbedder, load_folder, load_minilm, load_named
from recallflow.embedder import Embedder, Kind, Matrix
from recallflow.errors import EmbedderError
from recallflow.language.scripts import grams
from recallflow.language.word_vectors import word_vectors
from recallflow.language.words import words
from recallflow.llm import EmbeddingService

DIMENSION = 384
_BUCKET = np.dtype(np.int32)
_BLOCK = 128  # texts per step: their sums stay in the processor's cache
_CACHE_BYTES = 32 * 1024 * 1024


class HashEmbedder:
    """Feature hashing (Weinberger et al. 2009): words and their parts (`grams`) fall into signed buckets.

    It needs no download, is deterministic, and knows spelling only."""

    kind: Kind = "spelling"

    def __init__(self, dimension: int = DIMENSION) -> None:
        self.dimension = dimension
        self.name = f"hash-{dimension}"
        self._buckets = _caches.setdefault(dimension, BoundedCache(partial(_signed_buckets, dimension), _CACHE_BYTES))

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return vectors. Sums of a bucket's integers are exact in any order, so a row does not depend on its batch."""
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for start in range(0, len(texts), _BLOCK):
            rows[start : start + _BLOCK] = self._embed(texts[start : start + _BLOCK])
        return rows

    def _embed(self, texts: Sequence[str]) -> Any:
        hashed = [b"".join(map(self._buckets.__getitem__, words(text))) for text in texts]
        signed = np.frombuffer(b"".join(hashed), _BUCKET)
        signs = signed >> 31  # 0, or -1 where ~b encodes the bucket b
        counts = [len(buckets) // _BUCKET.itemsize for buckets in hashed]
        cells = np.repeat(np.arange(0, len(texts) * self.dimension, self.dimension), counts)
        cells += signed ^ signs
        sums: Any = np.bincount(cells, 2.0 * signs + 1.0, len(texts) * self.dimension)
        # bincount returns an array of integers if there are no words.
        sums = sums.astype(np.float64, copy=False).reshape(len(texts), self.dimension)
        norms = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
        norms[norms == 0] = 1
        sums /= norms
        return sums


def _signed_buckets(dimension: int, word: str) -> bytes:
    """Return the signed buckets of a word as int32: b is +1 in bucket b, ~b is -1."""
    parts = (word, *(f"#{gram}" for gram in grams(word)))
    hashes = [int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little") for part in parts]
    return np.array([h % dimension if h >> 63 else ~(h % dimension) for h in hashes], _BUCKET).tobytes()


_caches: dict[int, BoundedCache[str, bytes]] = {}  # by dimension; the embedders of a process share them


SPELLING_BUCKETS = 256
MEANING_SHARE = 0.8  # share of the word vectors in a cosine, if both texts have words with a vector


class MeaningEmbedder:
    """Embedder `meaning`: static word vectors of thirteen languages, and the hashed spelling of the words.

    It needs no model and no download. Synonyms have similar word vectors; similar spellings have similar buckets."""

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
        meaning = self._words.sum_texts(texts)
        np.multiply(meaning, _length_factors(meaning, MEANING_SHARE), out=rows[:, :size])
        np.multiply(self._spelling.embed(texts), np.float32((1 - MEANING_SHARE) ** 0.5), out=rows[:, size:])
        rows *= _length_factors(rows, 1.0)
        return rows


def _length_factors(rows: Matrix, share: float) -> Matrix:
    """Return the factors that give each row the square root of the share as its length; 0 for a row of zeros."""
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    factors: Matrix = np.divide(np.float32(share**0.5), lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return factors


class RemoteModel:
    """Embedding model of a service, a `RemoteEmbedder`. `local_copy` is the same model in this process, or None."""

    kind: Kind = "contextual"

    def __init__(self, service: EmbeddingService, local_copy: Embedder | None = None) -> None:
        """Raise EmbedderError if the local copy has another dimension."""
        self.service = service
        self.name, self.dimension = service.name, service.dimension
        self._local_copy = local_copy
        if local_copy is not None and local_copy.dimension != self.dimension:
            raise EmbedderError(
                f"--model-path: {local_copy.name} has {local_copy.dimension} dimensions, and embedding.dimension is "
                f"{self.dimension}: give the folder of {self.name}, or no folder"
            )

    def embed(self, texts: Sequence[str]) -> Matrix:
        if self._local_copy is None:
            raise EmbedderError(f"there is no local copy of {self.name}: name its folder by --model-path")
        return self._local_copy.embed(texts)


REMOTE = "openai"  # a service with OpenAI's protocol
_LOADERS: Mapping[str, Callable[[Any], Embedder]] = {
    "meaning": lambda _: MeaningEmbedder(),
    "hash": lambda _: HashEmbedder(),
    "static": StaticEmbedder,
    "minilm": load_minilm,
    "onnx": load_folder,
}
NAMES = (*_LOADERS, REMOTE)


def check_embedder(name: str, model_path: Path | None = None) -> None:
    """Raise EmbedderError for an unknown name or a missing folder, without loading the model."""
    if name not in NAMES and "/" not in name:
        names = ", ".join(NAMES)
        raise EmbedderError(f"unknown embedder {name!r}: give one of {names}, or a model of fastembed as ORG/NAME")
    if name in ("hash", "meaning") and model_path is not None:
        raise EmbedderError(f"the {name} embedder loads no model: remove --model-path, or give another --embedder")
    if name == "onnx" and model_path is None:
        raise EmbedderError("the onnx embedder needs --model-path: a folder with model.onnx")
    if model_path is not None and not model_path.is_dir():
        raise EmbedderError(f"--model-path: {model_path} is not a folder; give the folder of the model")


def load_remote(service: EmbeddingService, model_path: Path | None = None) -> RemoteModel:
    """Return the embedder of a service. `model_path` is the folder of an ONNX copy of the model, which embeds questions
    if the service does not answer. Raise EmbedderError."""
    check_embedder(REMOTE, model_path)
    return RemoteModel(service, None if model_path is None else load_folder(model_path))


def load_embedder(name: str, model_path: Path | None = None) -> Embedder:
    """Return the embedder of this name, loaded in this process. Raise EmbedderError with the remedy."""
    check_embedder(name, model_path)
    if name == REMOTE:
        raise EmbedderError("the openai embedder calls a service, and cannot be loaded")
    return _LOADERS[name](model_path) if name in _LOADERS else load_named(name, model_path)
