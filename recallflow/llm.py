"""Interfaces of models: language models, embedding services, rerankers, and a circuit breaker for them.

Models behind an API are called on the thread of an event loop. They must not block, and must support cancellation.
They also handle retries, circuit breaking, budgets and metering: the caller gets a value or one `ModelError`."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from recallflow.embedder import Matrix  # imports numpy, which importers of event types do not need
from recallflow.errors import ModelFailure

Task = Literal[
    "classify",  # relation of a memory to a similar one
    "extract",  # typed relations, with conditions
    "facts",  # self-contained facts in a message
    "resolve",  # which known entity a name means
    "categorise",
    "summarise_category",
    "summarise_episode",
    "select_categories",
    "check_sufficiency",
    "rewrite",
    "embed",
]
# Failures of a batch that one of its texts may have caused: each text is then sent separately.
TEXT_FAILURES: frozenset[ModelFailure] = frozenset(("rejected", "refused", "malformed"))
FAILURES = 5  # consecutive failures that open a circuit breaker
OPEN_S = 10.0  # time for which an open breaker refuses calls


class Prompt(NamedTuple):
    """One question to a language model. `schema` is the strict JSON schema of its answer; `version` is stored with
    the results; `max_tokens` limits the answer."""

    task: Task
    version: str
    system: str
    user: str
    schema: Mapping[str, Any]
    max_tokens: int = 1_000


class Cost(NamedTuple):
    """Cost of calls."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def plus(self, other: "Cost") -> "Cost":
        return Cost(*(one + another for one, another in zip(self, other, strict=True)))


class Completion(NamedTuple):
    """Answer that matches the prompt's schema, with its cost."""

    value: dict[str, Any]
    spent: Cost


class Embeddings(NamedTuple):
    """Vectors as (texts, dimension) float32, L2-normalised rows, with their cost."""

    vectors: "Matrix"
    spent: Cost


class LanguageModel(Protocol):
    """A language model behind an API."""

    @property
    def name(self) -> str:
        """Return the model's name for results."""

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        """Return the answer. Raise ModelError."""


class EmbeddingService(Protocol):
    """An embedding model behind an API."""

    @property
    def name(self) -> str:
        """Return the model's name, which is stored with the vectors: vectors of different models are never mixed."""

    @property
    def dimension(self) -> int:
        """Return the number of floats per vector."""

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:
        """Return the vectors. Raise ModelError, or EmbedderError for vectors of another dimension."""


@runtime_checkable
class RemoteEmbedder(Protocol):
    """Optional interface of an embedder: a model behind an API, with the name and dimension of its `service`. No event
    waits for the service: a memory is stored without a vector, which a later `memory.embedding` event adds. Question
    vectors come from the service. The embedder's own `embed` uses a copy of the model in this process, or raises
    EmbedderError."""

    @property
    def service(self) -> EmbeddingService:
        """Return the service that computes the vectors."""


class Reranker(Protocol):
    """Model that scores a question and a text together."""

    @property
    def name(self) -> str:
        """Return the model's name for answers."""

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a score per text, higher is better. Raise RerankerError. Do not block; support cancellation."""


class Breaker:
    """Circuit breaker: after `FAILURES` consecutive failures, calls are refused for `OPEN_S` seconds. Then one probe
    per interval is permitted, until a probe succeeds. Use a breaker on one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` returns seconds from any origin."""
        self._now_s = now_s
        self._failures = 0
        self._refused_until_s = -math.inf

    @property
    def is_open(self) -> bool:
        """Return whether calls are refused, except probes."""
        return self._failures >= FAILURES

    def begin(self) -> float:
        """Return 0.0 to permit a call, whose outcome must be reported, or the seconds until the next permitted call."""
        now_s = self._now_s()
        if now_s < self._refused_until_s:
            return self._refused_until_s - now_s
        if self.is_open:
            self._refused_until_s = now_s + OPEN_S  # this call is the probe of the interval
        return 0.0

    def succeeded(self) -> None:
        self._failures, self._refused_until_s = 0, -math.inf

    def failed(self, retry_after_s: float = 0.0) -> None:
        """Report a failure. `retry_after_s` is the delay that the service requests."""
        self._failures += 1
        if self.is_open:
            self._refused_until_s = max(self._refused_until_s, self._now_s() + max(OPEN_S, retry_after_s))
