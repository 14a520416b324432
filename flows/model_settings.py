"""Settings of models behind an API, and of enrichment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from recallflow.connectors.llm.policy import Endpoint, Policy, WaitsForBreaker
from recallflow.control import ControlHistory, Quota
from recallflow.embedder import Embedder
from recallflow.flows.runner import now_ms
from recallflow.flows.settings import refuse_unless
from recallflow.limits import EMBEDDING_TOKENS_PER_DAY, LLM_TOKENS_PER_DAY
from recallflow.llm import RemoteEmbedder
from recallflow.operators.rules import EnrichmentTasks

if TYPE_CHECKING:
    from recallflow.connectors.llm.calls import OpenAiEmbeddings, OpenAiModel

# The kind of caller decides how long a call may wait. "question": a query, with one attempt. "embedded": the
# embedded engine, with several attempts. "bulk": `reembed`, which also waits for the end of rate limits. "enrichment":
# the enrichment flow, which waits until a failed service works again.
CallerKind = Literal["question", "embedded", "bulk", "enrichment"]
_WAITS: Mapping[CallerKind, WaitsForBreaker] = {"bulk": "rate limits", "enrichment": "always"}


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    model: str | None = None
    base_url: str | None = None  # an endpoint with OpenAI's protocol; None for OpenAI's own
    key: str | None = field(default=None, repr=False)
    headers: tuple[str, ...] = field(default=(), repr=False)  # further headers, each as `Name: value`
    timeout_ms: int = 30_000  # the limit of each attempt, except for a query
    query_timeout_ms: int = 1_500  # the limit of the only attempt of a query
    attempts: int = 5  # the number of attempts, except for a query
    capacity: int = 100  # the number of concurrent calls
    tokens_per_day: int | None = None  # the limit of a tenant without its own quota; None for no limit

    def __post_init__(self) -> None:
        timeout = "1 to 600,000"
        refuse_unless(
            self,
            ("model", "a model's name", self.model != ""),
            ("timeout_ms", timeout, 1 <= self.timeout_ms <= 600_000),
            ("query_timeout_ms", timeout, 1 <= self.query_timeout_ms <= 600_000),
            ("attempts", "1 to 20", 1 <= self.attempts <= 20),
            ("capacity", "1 to 1,000", 1 <= self.capacity <= 1_000),
            ("tokens_per_day", "0 or more", self.tokens_per_day is None or self.tokens_per_day >= 0),
        )
        self._endpoint("enrichment").check()

    def _endpoint(self, caller: CallerKind) -> Endpoint:
        timeout_ms = self.query_timeout_ms if caller == "question" else self.timeout_ms
        return Endpoint(self.base_url, self.key, self.headers, timeout_ms / 1000)

    def _policy(
        self, caller: CallerKind, quota: str, decisions: ControlHistory | None, spending_file: Path | None
    ) -> Policy:
        """Return the call policy. `quota` names the control event with a tenant's daily limit."""

        def limit(tenant_id: str) -> int | None:
            found = None if decisions is None else decisions.as_of(tenant_id, "quota", quota, now_ms())
            return found.limit if isinstance(found, Quota) else self.tokens_per_day

        return Policy(
            attempts=1 if caller == "question" else self.attempts,
            waits_for_breaker=_WAITS.get(caller, "never"),
            capacity=self.capacity if caller in ("question", "enrichment") else None,
            daily_token_limit=limit,
            spending_file=spending_file,
        )


@dataclass(frozen=True)
class LlmSettings(ServiceSettings):
    """Settings of the language model. Without `model`, no step calls one."""

    model: str | None = None

    def load_model(
        self, caller: CallerKind, decisions: ControlHistory | None = None, spending_file: Path | None = None
    ) -> "OpenAiModel | None":
        """Return the language model, if one is configured. Close it on the event loop that uses it. `decisions` has the
        tenants' quotas; `spending_file` keeps the number of spent tokens across restarts."""
        if self.model is None:
            return None
        from recallflow.connectors.llm.calls import OpenAiModel  # the official client takes a second to import

        policy = self._policy(caller, LLM_TOKENS_PER_DAY, decisions, spending_file)
        return OpenAiModel(self.model, self._endpoint(caller), policy)


@dataclass(frozen=True)
class EmbeddingSettings(ServiceSettings):
    """Settings of the embedding service of `--embedder openai`. A state directory records the dimension of its vectors.
    Without a `base_url`, the address, key and headers of the language model apply."""

    model: str = "text-embedding-3-small"
    dimension: int = 1_536

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless(self, ("dimension", "1 to 8,192", 1 <= self.dimension <= 8_192))

    def load_service(
        self, caller: CallerKind, decisions: ControlHistory | None = None, spending_file: Path | None = None
    ) -> "OpenAiEmbeddings":
        from recallflow.connectors.llm.calls import OpenAiEmbeddings  # the official client takes a second to import

        policy = self._policy(caller, EMBEDDING_TOKENS_PER_DAY, decisions, spending_file)
        return OpenAiEmbeddings(self.model, self.dimension, self._endpoint(caller), policy)


class ModelSettings(NamedTuple):
    llm: LlmSettings = LlmSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()


@dataclass(frozen=True)
class EnrichmentSettings:
    """The tasks that the main flow requests from the enrichment flow, and the thresholds of their results."""

    relationships: bool = False  # find relationships between memories, and resolve ambiguous entities
    facts: bool = False
    categories: bool = False
    summaries: bool = False
    ambiguous_similarity_min: float = 0.70  # the least cosine of pairs that a model classifies
    ambiguous_similarity_max: float = 0.90  # the greatest cosine of such pairs
    relationship_confidence: float = 0.70  # the least confidence of a relationship of two memories or a resolved entity
    semantic_context_limit: int = 20  # the number of recent memories given as context for the extraction of relations
    semantic_confidence: float = 0.60  # the least confidence of other results: stated relations, facts, categories
    semantic_min_chars: int = 20  # the least length of a text for the extraction of relations
    batch_size: int = 8  # the number of messages of a session in one call
    batch_wait_ms: int = 2_000  # the longest wait of the first message of a batch

    def __post_init__(self) -> None:
        shares = ("ambiguous_similarity_min", "ambiguous_similarity_max", "relationship_confidence")
        refuse_unless(
            self,
            *((name, "0 to 1", 0 <= getattr(self, name) <= 1) for name in (*shares, "semantic_confidence")),
            ("semantic_context_limit", "0 to 50", 0 <= self.semantic_context_limit <= 50),
            ("semantic_min_chars", "0 or more", self.semantic_min_chars >= 0),
            ("batch_size", "1 to 50", 1 <= self.batch_size <= 50),
            ("batch_wait_ms", "0 to 60,000", 0 <= self.batch_wait_ms <= 60_000),
        )

    def unavailable_warning(self) -> str | None:
        """Return the warning for an engine without an enrichment flow; None if no task is configured."""
        if not (tasks := self.llm_tasks()):
            return None
        variable = " (GRAPH_LLM_EXTRACTION_ENABLED)" if self.relationships else ""
        return f"{', '.join(tasks)}{variable} has no effect here: only recallflow run and enrich, on Kafka, call models"

    def llm_tasks(self) -> list[str]:
        tasks = ("relationships", "facts", "categories", "summaries")
        return [f"enrichment.{task}" for task in tasks if getattr(self, task)]

    def requested_tasks(self, embedder: Embedder) -> EnrichmentTasks | None:
        """Return the tasks that the main flow requests, if any. A remote embedder embeds in the enrichment flow."""
        embeds = isinstance(embedder, RemoteEmbedder)
        if not embeds and not self.llm_tasks():
            return None
        return EnrichmentTasks(
            embed=embeds,
            by_meaning=embedder.kind != "spelling",
            relationships=self.relationships,
            facts=self.facts,
            categories=self.categories,
            summaries=self.summaries,
            similarity_min=self.ambiguous_similarity_min,
            similarity_max=self.ambiguous_similarity_max,
            min_chars=self.semantic_min_chars,
            recent=self.semantic_context_limit,
        )
