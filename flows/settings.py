"""One frozen settings object."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recallflow.embedder import Embedder
from recallflow.errors import UsageError
from recallflow.operators.apply import Rules
from recallflow.state.directory import Fingerprint

MINUTE_MS = 60_000


@dataclass(frozen=True)
class Settings:
    """What a deployment chooses. `partitions`, `embedder` and `episode_gap_minutes` shape the state: a state directory
    remembers them, and cannot be opened with others."""

    embedder: str = "hash"
    model_path: Path | None = None
    partitions: int = 16
    episode_gap_minutes: float = 30.0
    cache_bytes: int = 512 * 1024 * 1024
    epoch_ms: int = 500

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {what}, not {getattr(self, name)}"
            for name, what, good in (
                ("partitions", "1 to 1,000", 1 <= self.partitions <= 1_000),
                ("episode_gap_minutes", "above 0", self.episode_gap_minutes > 0),
                ("cache_bytes", "at least 1 MiB", self.cache_bytes >= 1024 * 1024),
                ("epoch_ms", "at least 10", self.epoch_ms >= 10),
            )
            if not good
        ]
        if problems:
            raise UsageError("; ".join(problems))

    @property
    def episode_gap_ms(self) -> int:
        return round(self.episode_gap_minutes * MINUTE_MS)

    def fingerprint(self, embedder: Embedder) -> Fingerprint:
        """What the state directory remembers of the settings."""
        return Fingerprint(
            partitions=self.partitions,
            embedder=embedder.name,
            dimension=embedder.dimension,
            episode_gap_ms=self.episode_gap_ms,
        )

    def rules(
        self,
        embedder: Embedder,
        query_topic: str | None = None,
        reply_topics: Mapping[str, int] | None = None,
        input_ends: bool = True,
    ) -> Rules:
        """What partition logic reads of the settings, and of where it runs."""
        return Rules(embedder.name, self.episode_gap_ms, query_topic, reply_topics, input_ends)
