"""Settings of the engine itself, with or without Kafka."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recallflow.connectors.embedders import check_embedder, load_embedder
from recallflow.connectors.master_keys import KmsMasterKey, parse_master_key, read_master_key
from recallflow.connectors.rerankers import check_reranker, load_reranker
from recallflow.control import ControlHistory
from recallflow.credentials import KEY_HEADER, ApiKeyText, MasterKey, check_secret
from recallflow.embedder import Embedder
from recallflow.errors import UsageError
from recallflow.llm import Reranker
from recallflow.operators.graph.write import Similarity
from recallflow.operators.rules import Rules
from recallflow.records import Position
from recallflow.state.description import Fingerprint
from recallflow.state.encryption import AtRest
from recallflow.state.keys import FORMAT_VERSION

MINUTE_MS = 60_000
YEAR_MINUTES = 365 * 24 * 60
MODES = ("auto", "off", "required")  # of authorisation


def refuse_unless(settings: object, *rules: tuple[str, str, bool]) -> None:
    """Check rules: field name, valid values, and whether the value is one of them. Raise UsageError."""
    violations = ((name, valid) for name, valid, is_valid in rules if not is_valid)
    if problems := [f"{name} must be {valid}, not {getattr(settings, name)}" for name, valid in violations]:
        raise UsageError("; ".join(problems))


@dataclass(frozen=True)
class Settings:
    """Settings of the engine. `partitions`, `embedder`, `episode_gap_minutes` and `similarity_…` determine the state: a
    state directory records them, and cannot be opened with other values."""

    embedder: str = "meaning"
    model_path: Path | None = None  # the folder of the embedder's model; the reranker's, if the embedder has no model
    partitions: int = 16
    episode_gap_minutes: float = 30.0
    cache_bytes: int = 512 * 1024 * 1024
    sync_ms: int = 500  # the interval between syncs of RocksDB to disk; on Kafka, between barriers
    similarity_threshold: float = 0.85  # the least cosine of memories that the graph links as similar
    similarity_max_k: int = 20  # the number of nearest memories to compare
    similarity_max_per_memory: int = 5  # the largest number of links of a memory; 0 for none
    graph_enabled: bool = True  # whether queries may use the graph at all, regardless of tenants' rollouts
    reranker: str | None = None  # the model that reranks the best candidates: local, or at `reranker_url`
    reranker_path: Path | None = None
    reranker_url: str | None = None
    reranker_key: str | None = field(default=None, repr=False)  # the API key of the service at `reranker_url`
    rerank_timeout_ms: int = 1_500  # the time limit of reranking; after it, an answer is not reranked

    def __post_init__(self) -> None:
        refuse_unless(
            self,
            ("partitions", "1 to 1,000", 1 <= self.partitions <= 1_000),
            ("episode_gap_minutes", "above 0, and at most a year", 0 < self.episode_gap_minutes <= YEAR_MINUTES),
            ("cache_bytes", "at least 1 MiB", self.cache_bytes >= 1024 * 1024),
            ("sync_ms", "10 to 60,000", 10 <= self.sync_ms <= 60_000),
            ("similarity_threshold", "above 0, and at most 1", 0 < self.similarity_threshold <= 1),
            ("similarity_max_k", "1 to 1,000", 1 <= self.similarity_max_k <= 1_000),
            ("rerank_timeout_ms", "1 to 60,000", 1 <= self.rerank_timeout_ms <= 60_000),
            ("similarity_max_per_memory", "0 to 100", 0 <= self.similarity_max_per_memory <= 100),
        )

    @property
    def episode_gap_ms(self) -> int:
        return round(self.episode_gap_minutes * MINUTE_MS)

    def load_reranker(self) -> Reranker | None:
        _, path = self._model_paths
        key, timeout_s = self.reranker_key, self.rerank_timeout_ms / 1000
        return load_reranker(self.reranker, path=path, url=self.reranker_url, key=key, timeout_s=timeout_s)

    def load_embedder(self) -> Embedder:
        return load_embedder(self.embedder, self._model_paths[0])

    def check_models(self) -> None:
        """Check the names and folders of models without loading them. Raise EmbedderError or UsageError."""
        embedder_path, reranker_path = self._model_paths
        check_embedder(self.embedder, embedder_path)
        check_reranker(self.reranker, path=reranker_path, url=self.reranker_url)

    @property
    def _model_paths(self) -> tuple[Path | None, Path | None]:
        """The folders of the embedder and of the reranker."""
        if self.embedder in ("hash", "meaning") and self.reranker is not None and self.reranker_path is None:
            return None, self.model_path
        return self.model_path, self.reranker_path

    def fingerprint(self, embedder: Embedder) -> Fingerprint:
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
        """Return the settings that all members of a deployment must share."""
        fingerprint = asdict(self.fingerprint(embedder))
        del fingerprint["partitions"], fingerprint["episode_gap_ms"]  # the topic determines the partitions
        return fingerprint | {"episode_gap_minutes": self.episode_gap_minutes, "format": FORMAT_VERSION}

    def rules(
        self,
        embedder: Embedder,
        query_topic: str | None = None,
        reply_topics: Mapping[str, int] | None = None,
        input_ends: bool = True,
        decisions: ControlHistory | None = None,
    ) -> Rules:
        similarity = Similarity(self.similarity_threshold, self.similarity_max_k, self.similarity_max_per_memory)
        return Rules(
            embedder.name,
            self.episode_gap_ms,
            query_topic,
            reply_topics,
            input_ends,
            decisions or ControlHistory(),
            similarity,
            graph_enabled=self.graph_enabled,
        )


@dataclass(frozen=True)
class AuthSettings:
    """Settings of authorisation. With the mode `required`, all records need credentials; with `auto`, those after the
    first key."""

    mode: str = "auto"
    jwks: str | None = None  # the file or address of the key set (JWKS) that verifies tokens
    secret: str | None = field(default=None, repr=False)  # a further key, for tokens signed with HS256
    issuer: str | None = None  # the issuer that a token must name
    audience: str | None = None  # the audience that a token must name
    tenant_claim: str = "tenant_id"  # the claim with the tenant
    jwks_refresh_s: float = 300.0  # the refresh interval of a JWKS address
    api_key: str | None = field(default=None, repr=False)  # the key of recallflow's commands and enrichment flow
    control_secret: str | None = field(default=None, repr=False)  # the secret that must have signed each control event

    @property
    def credentials(self) -> tuple[tuple[str, bytes | None], ...]:
        return () if self.api_key is None else ((KEY_HEADER, self.api_key.encode()),)

    def __post_init__(self) -> None:
        # Messages do not show the value, because it may be a secret.
        if self.api_key is not None and ApiKeyText.parse(self.api_key) is None:
            raise UsageError("auth.api_key is not an API key: give the whole output of `recallflow keys create`, rfk_…")
        check_secret("auth.secret", self.secret)
        check_secret("auth.control_secret", self.control_secret)
        refuse_unless(
            self,
            ("mode", "auto, off or required", self.mode in MODES),
            ("tenant_claim", "a claim's name", self.tenant_claim != ""),
            ("jwks_refresh_s", "1 to 86,400", 1 <= self.jwks_refresh_s <= 86_400),
        )


@dataclass(frozen=True)
class EncryptionSettings:
    """Settings of encryption on disk. Without a master key, memories are not encrypted."""

    master_key_file: Path | None = None  # the file of the master key, 32 bytes in base64
    master_key: str | None = field(default=None, repr=False)  # the master key itself
    kms_key: str | None = None  # the id or ARN of a key of AWS KMS, in place of a master key
    kms_region: str | None = None  # the region of the KMS key
    kms_endpoint: str | None = None  # the address of the KMS; None for AWS's own
    encrypt_vectors: bool = True  # encrypt vectors too

    def __post_init__(self) -> None:
        given = [name for name in ("master_key_file", "master_key", "kms_key") if getattr(self, name) is not None]
        if len(given) > 1:  # the message does not show secrets
            raise UsageError(f"{' and '.join(given)} exclude each other: give one master key")


def open_at_rest(settings: EncryptionSettings) -> AtRest:
    key: MasterKey | None = None
    if settings.master_key_file is not None:
        key = read_master_key(settings.master_key_file)
    elif settings.master_key is not None:
        key = parse_master_key(settings.master_key)
    elif settings.kms_key is not None:
        key = KmsMasterKey(settings.kms_key, settings.kms_region, settings.kms_endpoint)
    return AtRest(key, settings.encrypt_vectors)


_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMED = "letters, digits, dots, underscores and hyphens, at most 249"
_POSITION = re.compile(r".+:[0-9]{1,9}:[0-9]{1,18}")


@dataclass(frozen=True)
class TopicNames:
    """Topic names. `replies`: further topics for `reply_to`. `audit`: the access log; None for none."""

    memory: str = "memory.events"
    queries: str = "query.events"
    control: str = "control.events"
    responses: str = "recall.responses"
    receipts: str = "memory.receipts"
    enrichment: str = "enrichment.requests"
    results: str = "enrichment.results"
    dead_letters: str = "dead.letters"
    replies: tuple[str, ...] = field(default=())
    audit: str | None = None

    def __post_init__(self) -> None:
        inputs = self.read_topics()
        names = (*inputs, self.enrichment, self.results, *self.outputs())
        if wrong := sorted({name for name in names if not _NAME.fullmatch(name) or name in (".", "..")}):
            raise UsageError(f"invalid topic name: {', '.join(map(repr, wrong))}; give {_NAMED}")
        # A topic that is read must have no other role.
        own = (*inputs, self.enrichment, self.results)
        if twice := sorted({name for name in own if names.count(name) > 1}):
            raise UsageError(f"{', '.join(twice)}: each topic that is read needs a different name")

    def read_topics(self) -> tuple[str, ...]:
        """Return the topics that the main flow reads."""
        return self.memory, self.queries, self.control

    def read_topics_by_flag(self) -> dict[str, str]:
        """Return the topics that the main flow reads, by the flag of `run` that names each."""
        return dict(zip(("--memory-topic", "--query-topic", "--control-topic"), self.read_topics(), strict=True))

    def outputs(self) -> tuple[str, ...]:
        """Return the topics that the main flow writes and does not read."""
        audit = [] if self.audit is None else [self.audit]
        return (self.responses, self.receipts, self.dead_letters, *audit, *self.replies)

    def written_topics(self, *, enriches: bool = False) -> tuple[str, ...]:
        """Return the topics that the main flow writes: outputs, verdicts (control) and, if `enriches`, requests."""
        return (*self.outputs(), self.control, *([self.enrichment] if enriches else []))

    def enrichment_topics_by_flag(self) -> dict[str, str]:
        """Return the topics that the enrichment flow reads, by the flag of `enrich` that names each."""
        return {
            "--enrichment-topic": self.enrichment,
            "--result-topic": self.results,
            "--control-topic": self.control,
        }

    def enrichment_output_topics(self) -> tuple[str, ...]:
        """Return the topics that the enrichment flow writes. It also reads its results."""
        return self.results, self.memory, self.receipts, self.dead_letters

    def parse_skips(self, texts: Iterable[str]) -> frozenset[Position]:
        """Parse positions to skip. Raise UsageError for positions outside of the memory and query topics."""
        found = []
        for text in texts:
            if not _POSITION.fullmatch(text):
                raise UsageError(f"--skip {text}: give TOPIC:PARTITION:OFFSET, as a log line or a dead letter names it")
            found.append(Position.parse(text))
            if found[-1].topic not in (self.memory, self.queries):
                raise UsageError(f"--skip {text}: this run reads {self.memory} and {self.queries}")
        return frozenset(found)
