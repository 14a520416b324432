"""The settings of the engine itself: what shapes its state and its answers, with Kafka or without."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recallflow.connectors.embedders import check_embedder, load_embedder
from recallflow.connectors.rerankers import check_reranker, load_reranker
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.errors import UsageError
from recallflow.operators.graph.similar import Similarity
from recallflow.operators.rules import Rules
from recallflow.reranker import Reranker
from recallflow.state.fingerprint import Fingerprint
from recallflow.state.keys import FORMAT_VERSION

MINUTE_MS = 60_000
YEAR_MINUTES = 365 * 24 * 60


def refuse_unless(settings: object, *rules: tuple[str, str, bool]) -> None:
    """Checks rules: the name of a field, what it must be, and whether it is. Raises UsageError with all that fail."""
    if problems := [
        f"{name} must be {what}, not {getattr(settings, name)}" for name, what, holds in rules if not holds
    ]:
        raise UsageError("; ".join(problems))


@dataclass(frozen=True)
class Settings:
    """What a deployment chooses. `partitions`, `embedder`, `episode_gap_minutes` and `similarity_…` shape the state: a
    state directory remembers them, and cannot be opened with others.

    `similarity_threshold`: the least cosine of memories that the graph links as similar; `similarity_max_k`: how many
    of the nearest are looked at; `similarity_max_per_memory`: how many a memory is linked to, 0 to link none.
    `graph_enabled`: whether queries may follow the graph at all, whatever tenants decided.

    `reranker`: the model that reads the best candidates once more, a local one or the one that the service at
    `reranker_url` has by this name; `reranker_key` is for that service, and answers go without it after
    `rerank_timeout_ms`. `model_path` is the reranker's where the embedder has no model."""

    embedder: str = "meaning"
    model_path: Path | None = None
    partitions: int = 16
    episode_gap_minutes: float = 30.0
    cache_bytes: int = 512 * 1024 * 1024
    epoch_ms: int = 500
    similarity_threshold: float = 0.85
    similarity_max_k: int = 20
    similarity_max_per_memory: int = 5
    graph_enabled: bool = True
    reranker: str | None = None
    reranker_path: Path | None = None
    reranker_url: str | None = None
    reranker_key: str | None = field(default=None, repr=False)
    rerank_timeout_ms: int = 1_500

    def __post_init__(self) -> None:
        refuse_unless(
            self,
            ("partitions", "1 to 1,000", 1 <= self.partitions <= 1_000),
            ("episode_gap_minutes", "above 0, and at most a year", 0 < self.episode_gap_minutes <= YEAR_MINUTES),
            ("cache_bytes", "at least 1 MiB", self.cache_bytes >= 1024 * 1024),
            ("epoch_ms", "10 to 60,000", 10 <= self.epoch_ms <= 60_000),
            ("similarity_threshold", "above 0, and at most 1", 0 < self.similarity_threshold <= 1),
            ("similarity_max_k", "1 to 1,000", 1 <= self.similarity_max_k <= 1_000),
            ("rerank_timeout_ms", "1 to 60,000", 1 <= self.rerank_timeout_ms <= 60_000),
            ("similarity_max_per_memory", "0 to 100", 0 <= self.similarity_max_per_memory <= 100),
        )

    @property
    def episode_gap_ms(self) -> int:
        return round(self.episode_gap_minutes * MINUTE_MS)

    def load_reranker(self) -> Reranker | None:
        """The reranker that is chosen, if one is. Raises UsageError."""
        return load_reranker(
            self.reranker,
            path=self._reranker_folder,
            url=self.reranker_url,
            key=self.reranker_key,
            timeout_s=self.rerank_timeout_ms / 1000,
        )

    def load_embedder(self) -> Embedder:
        """The embedder that is chosen. Raises EmbedderError."""
        return load_embedder(self.embedder, self._embedder_folder)

    def check_models(self) -> None:
        """Raises EmbedderError or UsageError for models that there cannot be, without loading them."""
        check_embedder(self.embedder, self._embedder_folder)
        check_reranker(self.reranker, path=self._reranker_folder, url=self.reranker_url)

    @property
    def _embedder_folder(self) -> Path | None:
        return None if self.model_path_is_the_rerankers else self.model_path

    @property
    def _reranker_folder(self) -> Path | None:
        return self.reranker_path or (self.model_path if self.model_path_is_the_rerankers else None)

    @property
    def model_path_is_the_rerankers(self) -> bool:
        """Whether `model_path` cannot be meant for the embedder, which has no model."""
        return self.embedder in ("hash", "meaning") and self.reranker is not None and self.reranker_path is None

    def fingerprint(self, embedder: Embedder) -> Fingerprint:
        """What the state directory remembers of the settings."""
        return Fingerprint(
            partitions=self.partitions,
            embedder=embedder.name,
            dimension=embedder.dimension,
            episode_gap_ms=self.episode_gap_ms,
            similarity_threshold=self.similarity_threshold,
            similarity_max_k=self.similarity_max_k,
            similarity_max_per_memory=self.similarity_max_per_memory,
        )

    def shared_settings(self, embedder: Embedder) -> dict[str, object]:
        """Return the settings that shape state, by which all members of a deployment have to go."""
        shape = asdict(self.fingerprint(embedder))
        del shape["partitions"], shape["episode_gap_ms"]  # the first is the topic's
        return shape | {"episode_gap_minutes": self.episode_gap_minutes, "format": FORMAT_VERSION}

    def rules(
        self,
        embedder: Embedder,
        query_topic: str | None = None,
        reply_topics: Mapping[str, int] | None = None,
        input_ends: bool = True,
        decisions: History | None = None,
    ) -> Rules:
        """What partition logic reads of the settings, and of where it runs."""
        similarity = Similarity(self.similarity_threshold, self.similarity_max_k, self.similarity_max_per_memory)
        return Rules(
            embedder.name,
            self.episode_gap_ms,
            query_topic,
            reply_topics,
            input_ends,
            decisions or History(),
            similarity,
            graph_enabled=self.graph_enabled,
        )
