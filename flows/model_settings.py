"""The settings of models behind an API, and of what they are asked for."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from recallflow.connectors.llm import Endpoint, Policy, Waits, load_embedding_service, load_language_model
from recallflow.control import Quota
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.flows.settings import refuse_unless
from recallflow.llm import RemoteEmbedder
from recallflow.operators.enrichment.wanted import Wanted
from recallflow.quota_names import EMBEDDING_TOKENS_PER_DAY, LLM_TOKENS_PER_DAY

if TYPE_CHECKING:
    from recallflow.connectors.llm.chat import OpenAiModel
    from recallflow.connectors.llm.embeddings import OpenAiEmbeddings

CAPACITY_MAX = 1_000
TIMEOUT_MS_MAX = 600_000
ATTEMPTS_MAX = 20

# Who asks, and how long it can wait: a question not at all, a line of input for a few attempts, who has very many texts
# beside that for as long as the service takes no more, the enrichment flow until a service that is down is back.
Asker = Literal["question", "line", "bulk", "enrichment"]
_WAITS: Mapping[Asker, Waits] = {"bulk": "for a limit", "enrichment": "always"}


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Of a model behind an API.

    `base_url`: of any endpoint that speaks OpenAI's protocol, None for OpenAI's own; `headers`: further ones, each as
    `Name: value`. `timeout_ms` holds for each attempt of the enrichment flow, of which there are `attempts`;
    `query_timeout_ms` for a question's step, which is tried once. `capacity`: calls under way at a time.
    `tokens_per_day`: of a tenant, unless a quota says otherwise; None is no limit. `key`: its secret."""

    model: str | None = None
    base_url: str | None = None
    key: str | None = field(default=None, repr=False)
    headers: tuple[str, ...] = field(default=(), repr=False)
    timeout_ms: int = 30_000
    query_timeout_ms: int = 1_500
    attempts: int = 5
    capacity: int = 100
    tokens_per_day: int | None = None

    def __post_init__(self) -> None:
        timeout = "1 to 600,000"
        refuse_unless(
            self,
            ("model", "a model's name", self.model != ""),
            ("timeout_ms", timeout, 1 <= self.timeout_ms <= TIMEOUT_MS_MAX),
            ("query_timeout_ms", timeout, 1 <= self.query_timeout_ms <= TIMEOUT_MS_MAX),
            ("attempts", "1 to 20", 1 <= self.attempts <= ATTEMPTS_MAX),
            ("capacity", "1 to 1,000", 1 <= self.capacity <= CAPACITY_MAX),
            ("tokens_per_day", "0 or more", self.tokens_per_day is None or self.tokens_per_day >= 0),
        )
        self._endpoint("enrichment").check()

    def _endpoint(self, asker: Asker) -> Endpoint:
        timeout_ms = self.query_timeout_ms if asker == "question" else self.timeout_ms
        return Endpoint(self.base_url, self.key, self.headers, timeout_ms / 1000)

    def _policy(self, asker: Asker, quota: str, decisions: History | None, spending: Path | None) -> Policy:
        """`quota`: the name of the control event that says what a tenant may spend a day."""

        def limit(tenant_id: str) -> int | None:
            now_ms = round(time.time() * 1000)
            found = None if decisions is None else decisions.as_of(tenant_id, "quota", quota, now_ms)
            return found.limit if isinstance(found, Quota) else self.tokens_per_day

        return Policy(
            attempts=1 if asker == "question" else self.attempts,
            waits=_WAITS.get(asker, "never"),
            capacity=self.capacity if asker == "question" else None,
            limit=limit,
            spending=spending,
        )


@dataclass(frozen=True)
class LlmSettings(ServiceSettings):
    """The language model; without `model` there is none, and no step asks one."""

    model: str | None = None

    def load_model(
        self, asker: Asker, decisions: History | None = None, spending: Path | None = None
    ) -> "OpenAiModel | None":
        """To be closed on the loop that uses it. `decisions`: with the tenants' quotas; `spending`: the file that
        remembers across restarts what they spent."""
        if self.model is None:
            return None
        policy = self._policy(asker, LLM_TOKENS_PER_DAY, decisions, spending)
        return load_language_model(self.model, self._endpoint(asker), policy)


@dataclass(frozen=True)
class EmbeddingSettings(ServiceSettings):
    """The embedding service that `--embedder openai` means. `dimension`: floats of its vectors, part of what a state
    directory remembers. Where no `base_url` is given, that of the language model is meant, with its key and headers."""

    model: str = "text-embedding-3-small"
    dimension: int = 1_536

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless(self, ("dimension", "1 to 8,192", 1 <= self.dimension <= 8_192))

    def load_service(
        self, asker: Asker = "line", decisions: History | None = None, spending: Path | None = None
    ) -> "OpenAiEmbeddings":
        policy = self._policy(asker, EMBEDDING_TOKENS_PER_DAY, decisions, spending)
        return load_embedding_service(self.model, self.dimension, self._endpoint(asker), policy)


class ModelSettings(NamedTuple):
    """Of the models behind an API that a run may ask."""

    llm: LlmSettings = LlmSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()


@dataclass(frozen=True)
class EnrichmentSettings:
    """What the main flow asks the enrichment flow for, and what of the answers is kept.

    `relationships`: what memories say to each other, and which entity is meant; pairs whose cosine is within
    `ambiguous_similarity_min` and `…_max` are asked about, and kept from `relationship_confidence` on. Texts of
    `semantic_min_chars` are read for relations, beside `semantic_context_limit` recent memories, and these kept from
    `semantic_confidence` on. `facts`, `categories`, `summaries`: whether to find them. `batch_size` messages of a
    session are read in one call, at most `batch_wait_ms` after the first."""

    relationships: bool = False
    facts: bool = False
    categories: bool = False
    summaries: bool = False
    ambiguous_similarity_min: float = 0.70
    ambiguous_similarity_max: float = 0.90
    relationship_confidence: float = 0.70
    semantic_context_limit: int = 20
    semantic_confidence: float = 0.60
    semantic_min_chars: int = 20
    batch_size: int = 8
    batch_wait_ms: int = 2_000

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

    def unavailable(self) -> str | None:
        """Return the warning for an engine without Kafka, which asks no enrichment flow; None where nothing is wanted
        of one."""
        if not (wanted := self.llm_tasks()):
            return None
        also = " (GRAPH_LLM_EXTRACTION_ENABLED)" if self.relationships else ""
        return f"{', '.join(wanted)}{also} does nothing here: models are asked by recallflow run and enrich, on Kafka"

    def llm_tasks(self) -> list[str]:
        """Return the settings that ask a language model."""
        tasks = ("relationships", "facts", "categories", "summaries")
        return [f"enrichment.{task}" for task in tasks if getattr(self, task)]

    def wanted(self, embedder: Embedder) -> Wanted | None:
        """What the main flow asks for; None where that is nothing. A remote embedder gives no vector at once."""
        found = Wanted(
            embed=isinstance(embedder, RemoteEmbedder),
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
        return found if any((found.embed, self.relationships, self.facts, self.categories, self.summaries)) else None
