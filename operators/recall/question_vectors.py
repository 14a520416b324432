"""Questions → vectors, with a cache, and with an answer for when the model fails.

A vector depends on the model and the text alone, so that a cached one is the one the model would give again.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

import numpy as np

from recallflow.embedder import NO_FLOATS, Embedder, Matrix, TextVectors, TokenEmbedder
from recallflow.responses import Warn

CACHED = 4_096  # 6 MB of vectors of 384 numbers, and 5 KB for the tokens of each
CACHED_TOKENS = 64  # a question with more of them is not kept: it is none that is asked again
TTL_S = 3_600.0

_log = logging.getLogger(__name__)


class QuestionVector(NamedTuple):
    """A question's (dimension,) vector, L2-normalised, and whether it came from the cache; or why there is none.
    `took_ms`: the model's time. `tokens`: vectors of its tokens, where the model gives them."""

    vector: Matrix | None
    cached: bool = False
    took_ms: float = 0.0
    problem: Warn | None = None
    tokens: Matrix = NO_FLOATS


class QuestionVectors:
    """The configured model for questions, behind a cache of what it gave lately: least recently used out first, none
    older than an hour. Safe to share between the workers of a process.

    Where the model fails there is no vector to compare with the stored ones, as vectors of different models never meet:
    `fallback` then embeds both sides, the question and the texts it is compared with.
    """

    def __init__(
        self, embedder: Embedder, fallback: Embedder | None, timer: Callable[[], float], size: int = CACHED
    ) -> None:
        """`timer`: seconds, from any start. `fallback`: a model that needs nothing but the text."""
        self.embedder = embedder
        self.fallback = fallback
        self._of_tokens = embedder if isinstance(embedder, TokenEmbedder) else None  # slow to find out
        self._timer = timer
        self._size = size
        self._cache: OrderedDict[str, tuple[float, TextVectors]] = OrderedDict()
        self._lock = Lock()

    def cached(self, text: str) -> TextVectors | None:
        """The text's vectors, if they are in the cache and not too old."""
        key = cache_key(self.embedder.name, text)
        with self._lock:
            stored_s, known = self._cache.get(key, (0.0, None))
            if known is None:
                return None
            if self._timer() - stored_s > TTL_S:
                del self._cache[key]
                return None
            self._cache.move_to_end(key)
            return known

    def of(self, text: str) -> QuestionVector:
        """The text's vector. Never raises for what is wrong with the model."""
        if (known := self.cached(text)) is not None:
            return QuestionVector(known.vector, cached=True, tokens=known.tokens)
        began_s = self._timer()
        found = self._embedded(text)
        ended_s = self._timer()
        if isinstance(found, Warn):
            _log.warning("%s", found.detail)
            return QuestionVector(None, took_ms=(ended_s - began_s) * 1000, problem=found)
        if len(found.tokens) <= CACHED_TOKENS:
            with self._lock:
                self._cache[cache_key(self.embedder.name, text)] = ended_s, found
                if len(self._cache) > self._size:
                    self._cache.popitem(last=False)
        return QuestionVector(found.vector, took_ms=(ended_s - began_s) * 1000, tokens=found.tokens)

    def _embedded(self, text: str) -> TextVectors | Warn:
        """What the model gives, or what is wrong with it."""
        name, expected = self.embedder.name, (1, self.embedder.dimension)
        try:
            matrix, tokens = self._read(text)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 a model and its runtime raise what they like; the answer does without
            # Not the error's message: it may quote the question.
            return self._warn("embedding_fallback", f"{name} failed at a question ({type(error).__name__})")
        if matrix.shape != expected:
            return self._warn("wrong_dimension", f"{name} gave an array of {matrix.shape}, not {expected}")
        if not (np.isfinite(matrix).all() and np.isfinite(tokens).all()):
            return self._warn("embedding_fallback", f"{name} gave a vector that is not of numbers")
        for rows in (matrix, tokens):
            rows.setflags(write=False)
        return TextVectors(matrix[0], tokens)

    def _read(self, text: str) -> tuple[Matrix, Matrix]:
        """(1, dimension) of the whole text, and (tokens, token dimension)."""
        if self._of_tokens is not None:
            (read,) = self._of_tokens.embed_tokens([text])
            return np.array([read.vector], np.float32), np.array(read.tokens, np.float32)
        return np.array(self.embedder.embed([text]), np.float32), NO_FLOATS

    def _warn(self, code: str, what: str) -> Warn:
        if self.fallback is None:
            return Warn(code=code, detail=f"{what}; memories were compared by words alone")
        return Warn(code=code, detail=f"{what}; those that fit best by words were compared by {self.fallback.name}")


def cache_key(model: str, text: str) -> str:
    """`emb:` and the first 24 hexadecimal digits of SHA-256 over model and text."""
    return "emb:" + hashlib.sha256("\0".join((model, text)).encode()).hexdigest()[:24]
