"""State that recall shares between all partitions of a process: caches, the question model, step costs, and the graph's
quality gates.

It is not part of the partition state: a query has the same answer with other caches. A vector depends on the model and
the text alone, so that a cached vector equals a new one."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from sys import getsizeof
from threading import Lock
from typing import Generic, NamedTuple, Self, TypeVar
from weakref import ref

import numpy as np

from recallflow.embedder import (
    NO_FLOATS,
    Embedder,
    Matrix,
    QuestionEmbedder,
    TextVectors,
    TokenCounter,
    TokenEmbedder,
    token_counter,
)
from recallflow.operators.graph.quality_gate import QualityGates
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.deadline import StepCosts
from recallflow.responses import Warn
from recallflow.state.index import Conversation
from recallflow.stepped import Rotation

CACHED_QUESTIONS = 4_096  # 6 MB of vectors of 384 numbers, and 5 KB for the tokens of each
CACHED_TOKENS_MAX = 64  # questions with more tokens are not cached, because they rarely recur
TTL_S = 3_600.0
CANDIDATES_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 1_000  # of the Python objects of a cached entry
K = TypeVar("K")
V = TypeVar("V")
_log = logging.getLogger(__name__)


class _LruCache(Generic[K, V]):
    """A thread-safe LRU cache with a size budget."""

    def __init__(self, budget: int) -> None:
        self.size = 0
        self._budget = budget
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if (entry := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Cache the value, unless it alone exceeds the budget."""
        if size > self._budget:
            return
        with self._lock:
            self.size += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, size
            while self.size > self._budget:
                self.size -= self._values.popitem(last=False)[1][1]

    def drop(self, is_stale: Callable[[V], bool]) -> None:
        with self._lock:
            for key in [key for key, (value, _) in self._values.items() if is_stale(value)]:
                self.size -= self._values.pop(key)[1]


class QuestionVector(NamedTuple):
    """A question's vector, or the problem that prevented it."""

    vector: Matrix | None  # (dimension,), L2-normalised
    cached: bool = False  # whether it came from the cache
    took_ms: float = 0.0  # the model's time
    problem: Warn | None = None
    tokens: Matrix = NO_FLOATS  # vectors of its tokens, if the model has them


class QuestionVectors:
    """The question model behind a cache of one hour. An embedding service is called elsewhere, and its result is passed
    to `receive`. If the service fails, a copy of the same model in this process replaces it, if there is one. Vectors
    of different models are never compared. If the model gives no vector, `fallback` therefore embeds both the question
    and the compared texts."""

    def __init__(
        self, embedder: Embedder, fallback: Embedder | None, timer: Callable[[], float], size: int = CACHED_QUESTIONS
    ) -> None:
        """Create the question model. `timer` returns seconds from any origin. `fallback` runs in this process."""
        self.embedder = embedder
        self.fallback = fallback
        self._embed_with_tokens: Callable[[str], TextVectors] | None = None  # stored, because the check is slow
        if isinstance(embedder, QuestionEmbedder):
            self._embed_with_tokens = embedder.embed_question
        elif isinstance(embedder, TokenEmbedder):
            self._embed_with_tokens = lambda text: embedder.embed_tokens([text])[0]
        self._timer = timer
        self._failing = False
        self._cache = _LruCache[str, tuple[float, TextVectors]](size)

    def cached(self, text: str) -> TextVectors | None:
        stored_s, vectors = self._cache.get(text) or (0.0, None)
        return None if vectors is None or self._timer() - stored_s > TTL_S else vectors

    def embed(self, text: str) -> QuestionVector:
        """Return the text's vector by the model in this process. A model error becomes `problem`."""
        if (cached := self.cached(text)) is not None:
            return QuestionVector(cached.vector, cached=True, tokens=cached.tokens)
        began_s = self._timer()
        vectors = self._run_model(text)
        return self._keep(text, vectors, (self._timer() - began_s) * 1000)

    def receive(self, text: str, result: Matrix | str, took_ms: float) -> QuestionVector:
        """Return the text's vector from the service's result or, if `result` is an error code, from a copy of the model
        in this process."""
        if not isinstance(result, str):
            return self._keep(text, self._checked(np.array([result], np.float32), NO_FLOATS), took_ms)
        began_s = self._timer()
        vectors = self._run_model(text)
        if isinstance(vectors, Warn):
            problem = f"{self.embedder.name} gave no vector of the question ({result})"
            vectors = self._warn("embedding_fallback", problem)
        return self._keep(text, vectors, took_ms + (self._timer() - began_s) * 1000)

    def _keep(self, text: str, vectors: TextVectors | Warn, took_ms: float) -> QuestionVector:
        """Cache the result, and log the first of consecutive failures."""
        if isinstance(vectors, Warn):
            if not self._failing:
                _log.warning("%s", vectors.detail)
            self._failing = True
            return QuestionVector(None, took_ms=took_ms, problem=vectors)
        self._failing = False
        if len(vectors.tokens) <= CACHED_TOKENS_MAX:
            self._cache.put(text, (self._timer(), vectors))
        return QuestionVector(vectors.vector, took_ms=took_ms, tokens=vectors.tokens)

    def _run_model(self, text: str) -> TextVectors | Warn:
        tokens = NO_FLOATS
        try:
            if self._embed_with_tokens is None:
                matrix = np.array(self.embedder.embed([text]), np.float32)
            else:
                embedded = self._embed_with_tokens(text)
                matrix, tokens = np.array([embedded.vector], np.float32), np.array(embedded.tokens, np.float32)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 a model and its runtime raise anything; the query is answered without a vector
            # The error's message is omitted, because it may quote the question.
            problem = f"{self.embedder.name} failed at a question ({type(error).__name__})"
            return self._warn("embedding_fallback", problem)
        return self._checked(matrix, tokens)

    def _checked(self, matrix: Matrix, tokens: Matrix) -> TextVectors | Warn:
        """Return a question's vectors, or a warning if they are invalid."""
        name, expected = self.embedder.name, (1, self.embedder.dimension)
        if matrix.shape != expected:
            return self._warn("wrong_dimension", f"{name} gave an array of {matrix.shape}, not {expected}")
        if not (np.isfinite(matrix).all() and np.isfinite(tokens).all()):
            return self._warn("embedding_fallback", f"{name} gave a vector with infinity or NaN")
        for rows in (matrix, tokens):
            rows.setflags(write=False)
        return TextVectors(matrix[0], tokens)

    def _warn(self, code: str, problem: str) -> Warn:
        if self.fallback is None:
            return Warn(code=code, detail=f"{problem}; memories were compared by words alone")
        return Warn(code=code, detail=f"{problem}; those that fit best by words were compared by {self.fallback.name}")


class CandidatesCache:
    """A cache of the columns of recurring questions, which dominate the cost of a query. It holds columns but no
    scores, because scores depend on time, session and usage. Every change of an owner's memories creates a new
    `Conversation`, so that an entry is valid for exactly one version of them."""

    def __init__(self, budget_bytes: int = CANDIDATES_BYTES) -> None:
        self._cache = _LruCache[tuple[int, str], tuple["ref[Conversation]", Columns]](budget_bytes)

    @property
    def total_bytes(self) -> int:
        return self._cache.size

    def get(self, conversation: Conversation, text: str) -> Columns | None:
        cached = self._cache.get((id(conversation), text))
        # A conversation that was freed may have had the same address.
        return cached[1] if cached is not None and cached[0]() is conversation else None

    def drop_freed(self) -> None:
        """Drop the entries of conversations that have been freed."""
        self._cache.drop(lambda cached: cached[0]() is None)

    def put(self, conversation: Conversation, text: str, columns: Columns) -> None:
        size_bytes = _ENTRY_BYTES + getsizeof(text) + columns.nbytes
        self._cache.put((id(conversation), text), (ref(conversation), columns), size_bytes)


@dataclass(frozen=True, slots=True)
class Shared:
    questions: QuestionVectors
    candidates: CandidatesCache
    tokens: Callable[[], TokenCounter]  # returns the token counter, and loads it on first use
    costs: StepCosts
    gates: QualityGates
    rotation: Rotation

    @classmethod
    def of(
        cls,
        embedder: Embedder,
        timer: Callable[[], float],
        fallback: Embedder | None = None,
        exact_tokens: Callable[[], TokenCounter | None] = lambda: None,
    ) -> Self:
        """Create the shared objects. `timer` returns seconds from any origin. `fallback` is ignored if it is the model
        itself. `exact_tokens` loads the preferred token counter."""
        is_same = fallback is not None and fallback.name == embedder.name
        questions = QuestionVectors(embedder, None if is_same else fallback, timer)
        counter = cache(lambda: token_counter(exact_tokens(), embedder))
        return cls(questions, CandidatesCache(), counter, StepCosts(), QualityGates(), Rotation())
