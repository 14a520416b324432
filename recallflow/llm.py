"""What recallflow asks of models behind an API: a language model, and an embedding service.

Both are called on the loop thread of async calls. They must not block, and let themselves be cancelled. Retries, the
circuit breaker, budgets and metering are the client's: who calls sees a value, or one `ModelError` that says why there
is none.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from recallflow.embedder import Matrix  # who imports types of records is spared numpy
from recallflow.errors import ModelFailure

Task = Literal[
    "classify",  # what a memory says to a similar one
    "extract",  # typed relations, with conditions
    "facts",  # what of a message is worth remembering by itself
    "resolve",  # which known entity a name means
    "categorise",
    "summarise_category",
    "summarise_episode",
    "select_categories",
    "check_sufficiency",
    "rewrite",
    "embed",
]

# A single text of several may be what the service or the model does not like: then each is tried by itself.
ONE_TO_BLAME: frozenset[ModelFailure] = frozenset(("rejected", "refused", "malformed"))


class Prompt(NamedTuple):
    """One question to a language model. `schema`: the JSON schema of its answer, strict; `version` is kept with what
    comes of it; `most_tokens`: of the answer."""

    task: Task
    version: str
    system: str
    user: str
    schema: Mapping[str, Any]
    most_tokens: int = 1_000


class Spent(NamedTuple):
    """What calls cost."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def plus(self, other: "Spent") -> "Spent":
        return Spent(*(one + another for one, another in zip(self, other, strict=True)))


class Completion(NamedTuple):
    """An answer that has the prompt's schema, and what it cost."""

    value: dict[str, Any]
    spent: Spent


class Embedded(NamedTuple):
    """(texts, dimension) float32, L2-normalised rows, and what they cost."""

    vectors: "Matrix"
    spent: Spent


class LanguageModel(Protocol):
    """A language model behind an API."""

    @property
    def name(self) -> str:
        """The model, as results name it."""

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        """Raises ModelError."""


class EmbeddingService(Protocol):
    """An embedding model behind an API."""

    @property
    def name(self) -> str:
        """The model, as kept with the vectors: vectors of different models never meet."""

    @property
    def dimension(self) -> int:
        """Floats per vector."""

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
        """Raises ModelError, or EmbedderError for vectors of another size."""


@runtime_checkable
class RemoteEmbedder(Protocol):
    """What an embedder may be beside: a model behind an API, which no event waits for. It has the name and dimension of
    its `service`. A memory is stored without vector, and gets it by `memory.embedding`; a question's comes from the
    service. `embed` is that of a copy of the same model in this process, and raises EmbedderError where there is none.
    """

    @property
    def service(self) -> EmbeddingService:
        """Where vectors come from."""
