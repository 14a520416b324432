"""Embedding models by name."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recallflow.caching import Kept
from recallflow.connectors.onnx_embedder import load_folder, load_minilm, load_named
from recallflow.connectors.remote_embedder import RemoteModel
from recallflow.connectors.static_embedder import StaticEmbedder
from recallflow.embedder import Embedder, Kind, Matrix
from recallflow.errors import EmbedderError
from recallflow.language import grams, words
from recallflow.llm import EmbeddingService

REMOTE = "openai"  # any service that speaks its protocol
NAMES = ("hash", "static", "minilm", "onnx", REMOTE)
_BLOCK = 128  # texts at a time: their sums stay in the processor's cache


def check_embedder(name: str, model_path: Path | None = None) -> None:
    """Raises EmbedderError for a name or a folder that there is not, without loading anything."""
    if name not in NAMES and "/" not in name:
        known = ", ".join(NAMES)
        raise EmbedderError(
            f"no embedder is called {name!r}: give one of {known}, or a model of fastembed's as ORG/NAME"
        )
    if name == "hash" and model_path is not None:
        raise EmbedderError("the hash embedder has no model: leave --model-path out, or give another --embedder")
    if name == "onnx" and model_path is None:
        raise EmbedderError("the onnx embedder needs --model-path: the folder of a model with model.onnx in it")
    if model_path is not None and not model_path.is_dir():
        raise EmbedderError(f"--model-path: {model_path} is no folder; give that of the model")


def load_remote(service: EmbeddingService, model_path: Path | None = None) -> RemoteModel:
    """The embedder whose vectors come from a service. `model_path`: a copy of its model, in ONNX, for questions that it
    does not answer. Raises EmbedderError."""
    check_embedder(REMOTE, model_path)
    return RemoteModel(service, None if model_path is None else load_folder(model_path))


def load_embedder(name: str, model_path: Path | None = None) -> Embedder:
    """The embedder of this name, in this process. Raises EmbedderError with what to install, download or correct."""
    check_embedder(name, model_path)
    if name == REMOTE:
        raise EmbedderError("the openai embedder asks a service, and is not loaded")
    if name == "hash":
        return HashEmbedder()
    if name == "static":
        return StaticEmbedder(model_path)
    if name == "minilm":
        return load_minilm(model_path)
    if name == "onnx" and model_path is not None:
        return load_folder(model_path)
    return load_named(name, model_path)


class HashEmbedder:
    """Feature hashing (Weinberger et al. 2009): words and their parts (`language.grams`) fall into signed buckets.

    Needs no download, is deterministic, and knows spelling only.
    """

    name = "hash-384"
    dimension = 384
    kind: Kind = "spelling"

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Bucket sums are whole numbers, so a row is exact whatever batch it is in."""
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for start in range(0, len(texts), _BLOCK):
            rows[start : start + _BLOCK] = self._embed(texts[start : start + _BLOCK])
        return rows

    def _embed(self, texts: Sequence[str]) -> Any:
        hashed = [[_buckets[word] for word in words(text)] for text in texts]
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


def _buckets_of(word: str) -> Any:
    """The word's signed buckets as int64: b stands for +1 in bucket b, ~b for -1."""
    parts = (word, *(f"#{gram}" for gram in grams(word)))
    hashes = [int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little") for part in parts]
    buckets = [h % HashEmbedder.dimension for h in hashes]
    return np.array([b if h >> 63 else ~b for b, h in zip(buckets, hashes, strict=True)], np.int64)


_buckets = Kept(_buckets_of, 32 * 1024 * 1024)
