"""Settings of a deployment in one frozen object: `Config`, by section, and how it is read.

A value comes from the first of these that names it: a flag, the environment, the file (`--config`), the default. A key
is a section and a field, as in `engine.cache_bytes`; its environment variable is `RECALLFLOW_ENGINE_CACHE_BYTES`.
"""

import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import orjson

from recallflow.brokers.options import SESSION_MAX_S, SESSION_MIN_S, SESSION_S, KafkaOptions
from recallflow.errors import UsageError
from recallflow.flows.config_values import AUTO, PARSERS, parse_any, parse_bytes
from recallflow.flows.model_settings import EmbeddingSettings, EnrichmentSettings, LlmSettings, ModelSettings
from recallflow.flows.security_settings import AuthSettings, EncryptionSettings
from recallflow.flows.settings import Settings, refuse_unless
from recallflow.flows.topics import Topics
from recallflow.ranges import parse_ranges
from recallflow.records import Position
from recallflow.supervised import MEMBER_VARIABLE

PORT_MAX = 65_535
WAIT_MAX_S = 3_600
PREFIX = "RECALLFLOW_"
FILE_VARIABLE = "RECALLFLOW_CONFIG"
SHARED_VARIABLE = "RECALLFLOW_SHARED"  # read by tests and benchmarks
LOCAL = "localhost:9092"
LOG_FORMATS = ("text", "json")
PROCESSES_MAX = 1_000
STANDBY_MAX = 10


@dataclass(frozen=True)
class ServeSettings:
    """Where the gateway listens, and how much one request may take.

    `timeout_s`: until a query is answered, or an event applied. `body_timeout_s`: until what is asked for is there,
    headers and body. `concurrency`: requests that are under way at once. `stop_timeout_s`: how long answers under way
    have at the end. `reply_topic`: where answers go in place of the response topic, to `reply_partition` or any one of
    it, and that alone is read."""

    host: str = "127.0.0.1"
    port: int = 8080
    timeout_s: float = 10.0
    body_timeout_s: float = 10.0
    concurrency: int = 512
    stop_timeout_s: float = 15.0
    reply_topic: str | None = None
    reply_partition: int | None = None

    def __post_init__(self) -> None:
        seconds = f"above 0, to {WAIT_MAX_S:,}"
        refuse_unless(
            self,
            ("host", "an address or a name", self.host != ""),
            ("port", "0 to 65,535", 0 <= self.port <= PORT_MAX),
            ("concurrency", "at least 1", self.concurrency >= 1),
            ("reply_partition", "0 or more", self.reply_partition is None or self.reply_partition >= 0),
            ("reply_partition", "of a reply_topic", self.reply_partition is None or self.reply_topic is not None),
            *((name, seconds, 0 < getattr(self, name) <= WAIT_MAX_S)
              for name in ("timeout_s", "body_timeout_s", "stop_timeout_s")),
        )  # fmt: skip


@dataclass(frozen=True)
class RunSettings:
    """How `recallflow run` shares its deployment with other members, and what it shows of itself.

    `deployment`: whose partitions its members share; None names it after the memory topic. `processes`: members on this
    machine, or "auto": one a CPU. `own`: partitions of its own, as `0-7`, where the group is not to assign them;
    `instance_id`: of a member whose partitions are kept for it while it restarts. `checkpoint_to`: where checkpoints of
    partitions are kept, by their URL. `standby`: so many members keep each partition warm. `give_up_unanswered`:
    queries that retention took are done without. `skip`: positions of records to pass over unread. `metrics_port`:
    None serves nothing."""

    processes: int | Literal["auto"] = 1
    deployment: str | None = None
    session_timeout_s: float = SESSION_S
    own: str | None = None
    instance_id: str | None = None
    accept_repeats: bool = False
    give_up_unanswered: bool = False
    standby: int = 0
    checkpoint_to: str | None = None
    checkpoint_minutes: float = 10.0
    checkpoint_keep: int = 3
    serve_while_catching_up: bool = False
    skip: tuple[str, ...] = ()
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    log_format: str = LOG_FORMATS[0]

    def __post_init__(self) -> None:
        session = f"{SESSION_MIN_S:g} to {SESSION_MAX_S:,g}"
        refuse_unless(
            self,
            ("processes", "1 to 1,000", self.processes == AUTO or 1 <= self.processes <= PROCESSES_MAX),
            ("standby", "0 to 10", 0 <= self.standby <= STANDBY_MAX),
            ("checkpoint_minutes", "more than 0", self.checkpoint_minutes > 0),
            ("checkpoint_keep", "at least 1", self.checkpoint_keep >= 1),
            ("session_timeout_s", session, SESSION_MIN_S <= self.session_timeout_s <= SESSION_MAX_S),
            ("metrics_port", "0 to 65,535", self.metrics_port is None or 0 <= self.metrics_port <= PORT_MAX),
            ("log_format", " or ".join(LOG_FORMATS), self.log_format in LOG_FORMATS),
        )
        if self.owned() is not None and self.standby:
            raise UsageError(
                "standby: nobody takes over partitions that are assigned by hand (own): leave out one of both"
            )

    def owned(self) -> frozenset[int] | None:
        """The partitions of its own, if it has any. Raises UsageError."""
        if self.own is None:
            return None
        try:
            return parse_ranges(self.own)
        except ValueError as error:
            raise UsageError(f"own: {error}") from error


@dataclass(frozen=True)
class Config:
    """All that a deployment can choose. `state_dir`: the folder that holds the state."""

    state_dir: Path | None = None
    kafka: KafkaOptions = field(default_factory=lambda: KafkaOptions(LOCAL))
    topics: Topics = field(default_factory=Topics)
    engine: Settings = field(default_factory=Settings)
    run: RunSettings = field(default_factory=RunSettings)
    llm: LlmSettings = field(default_factory=LlmSettings)
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    enrichment: EnrichmentSettings = field(default_factory=EnrichmentSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)

    def __post_init__(self) -> None:
        _ = self.skips  # what is wrong with them shows here

    @property
    def skips(self) -> frozenset[Position]:
        return self.topics.skipped(self.run.skip)

    @property
    def models(self) -> ModelSettings:
        return ModelSettings(self.llm, self.embedding)

    def named_state_dir(self) -> Path:
        """Raises UsageError where nobody named one."""
        if self.state_dir is None:
            raise UsageError("give --state-dir: the folder that holds the state")
        return self.state_dir


class Given(NamedTuple):
    """A value before it is parsed. `origin` says to a person where it stands."""

    origin: str
    value: object


SECTIONS: dict[str, type[Any]] = {
    "kafka": KafkaOptions,
    "topics": Topics,
    "engine": Settings,
    "run": RunSettings,
    "llm": LlmSettings,
    "embedding": EmbeddingSettings,
    "enrichment": EnrichmentSettings,
    "auth": AuthSettings,
    "encryption": EncryptionSettings,
    "serve": ServeSettings,
}
LIBRDKAFKA = "kafka.librdkafka."  # and the name of any of librdkafka's options


# Key → type of its value.
KEYS: dict[str, Any] = {
    "state_dir": Path | None,
    **{f"{name}.{key}": kind for name, section in SECTIONS.items() for key, kind in get_type_hints(section).items()},
}


del KEYS[LIBRDKAFKA[:-1]]


# Environment variable → key. Some had their names before there was a scheme.
VARIABLES = {PREFIX + key.upper().replace(".", "_"): key for key in KEYS} | {
    "KAFKA_BOOTSTRAP_SERVERS": "kafka.bootstrap_servers",
    "SIMILARITY_EDGE_THRESHOLD": "engine.similarity_threshold",
    "SIMILARITY_EDGE_MAX_K": "engine.similarity_max_k",
    "SIMILARITY_EDGE_MAX_PER_MEMORY": "engine.similarity_max_per_memory",
    "GRAPH_LLM_EXTRACTION_ENABLED": "enrichment.relationships",
    "GRAPH_LLM_AMBIGUOUS_SIMILARITY_MIN": "enrichment.ambiguous_similarity_min",
    "GRAPH_LLM_AMBIGUOUS_SIMILARITY_MAX": "enrichment.ambiguous_similarity_max",
    "GRAPH_LLM_RELATIONSHIP_CONFIDENCE_THRESHOLD": "enrichment.relationship_confidence",
    "GRAPH_LLM_RELATIONSHIP_MODEL_ID": "llm.model",
    "GRAPH_LLM_SEMANTIC_CONTEXT_LIMIT": "enrichment.semantic_context_limit",
    "GRAPH_LLM_SEMANTIC_CONFIDENCE_THRESHOLD": "enrichment.semantic_confidence",
    "GRAPH_LLM_SEMANTIC_MIN_CHARS": "enrichment.semantic_min_chars",
}


# Those of the official client, which hold where nothing of ours is given.
OPENAI_VARIABLES = {"OPENAI_API_KEY": "llm.key", "OPENAI_BASE_URL": "llm.base_url"}
_NO_SETTINGS = frozenset((FILE_VARIABLE, MEMBER_VARIABLE, SHARED_VARIABLE))
_LIBRDKAFKA_VARIABLE = PREFIX + LIBRDKAFKA.upper().replace(".", "_")
_log = logging.getLogger(__name__)
_SECRET = re.compile(
    r"password|^(reranker_|api_|master_)?key$|^headers$|passphrase|secret|jaas|kinit\.cmd|\.pem$|^ssl_key$|oauthbearer\.config"
)


def read_config(
    flags: Mapping[str, Given], environment: Mapping[str, str], file: Path | None = None
) -> tuple[Config, dict[str, str]]:
    """The effective configuration, and for each key that somebody gave where it stands. `file` defaults to
    `default_file`. Raises UsageError for a key that there is not, and for a value that does not fit.
    """
    path = file or default_file(environment)
    openai = {key: Given(name, environment[name]) for name, key in OPENAI_VARIABLES.items() if environment.get(name)}
    given = openai | (_from_file(path) if path else {}) | _from_environment(environment) | dict(flags)
    sections: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in SECTIONS}}
    sections["kafka"] = {"bootstrap_servers": LOCAL, "librdkafka": {}}
    for key, one in given.items():
        if key.startswith(LIBRDKAFKA):
            sections["kafka"]["librdkafka"][key.removeprefix(LIBRDKAFKA)] = _parsed(key, one)
        else:
            section, _, name = key.rpartition(".")
            sections[section][name] = _parsed(key, one)
    if "base_url" not in sections["embedding"]:  # a key goes where it is meant to, and nowhere else
        shared = {key: sections["llm"][key] for key in ("base_url", "key", "headers") if key in sections["llm"]}
        sections["embedding"] = shared | sections["embedding"]
    built = {name: section(**sections[name]) for name, section in SECTIONS.items()}
    return Config(**sections[""], **built), {key: one.origin for key, one in given.items()}


def default_file(environment: Mapping[str, str]) -> Path | None:
    """The file that holds where none is named: `$RECALLFLOW_CONFIG`, or the user's own, if there is one."""
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    given = environment.get("XDG_CONFIG_HOME", "")
    home = environment.get("HOME", "")
    # the standard wants a relative path to be ignored
    folder = Path(given) if Path(given).is_absolute() else Path(home) / ".config" if home else None
    own = None if folder is None else folder / "recallflow" / "config.toml"
    with suppress(OSError):  # a home that is somebody else's, as in a container, has no file of ours
        return own if own is not None and own.is_file() else None
    return None


def _from_file(path: Path) -> dict[str, Given]:
    try:
        found = dict(_flattened(tomllib.loads(path.read_text("utf-8"))))
    except OSError as error:
        raise UsageError(f"--config: cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path}: {error}") from error
    secrets = [key for key in found if is_secret(_name_of(key))]
    if secrets and path.stat().st_mode & 0o077:
        _log.warning("%s: others can read it, and it holds %s: chmod 600 %s", path, ", ".join(secrets), path)
    _refuse_unknown(path, [key for key in found if key not in KEYS and not key.startswith(LIBRDKAFKA)], KEYS)
    return {key: Given(f"{path}: {key}", value) for key, value in found.items()}


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """A variable that is empty names nothing."""
    found, unknown = {}, []
    for variable in sorted(environment):  # RECALLFLOW_… comes behind KAFKA_…, and overrides it
        if not (text := environment[variable]):
            continue
        if variable.startswith(_LIBRDKAFKA_VARIABLE):
            name = variable.removeprefix(_LIBRDKAFKA_VARIABLE).lower().replace("_", ".")
            found[LIBRDKAFKA + name] = Given(variable, text)
        elif variable in VARIABLES:
            found[VARIABLES[variable]] = Given(variable, text)
        elif variable.startswith(PREFIX) and variable not in _NO_SETTINGS:
            unknown.append(variable)
    _refuse_unknown("the environment", unknown, VARIABLES)
    return found


def _refuse_unknown(where: object, unknown: list[str], known: Iterable[str]) -> None:
    if unknown:
        problems = [f"{name} is no setting; the nearest is {_nearest(name, known)}" for name in unknown]
        raise UsageError(f"{where}: {'; '.join(problems)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    """By the whole key or by its field: often the section is what is wrong."""

    def likeness(other: str) -> float:
        pairs = (name, other), (name.rpartition(".")[2], other.rpartition(".")[2])
        return sum(SequenceMatcher(None, one, another).ratio() for one, another in pairs)

    return max(known, key=likeness)


def _parsed(key: str, given: Given) -> Any:
    if key.startswith(LIBRDKAFKA):
        parse: Callable[[object], Any] = parse_any
    else:
        parse = parse_bytes if key.endswith("_bytes") else PARSERS[KEYS[key]]
    try:
        return parse(given.value)
    except ValueError as error:
        problem = "is not of the right type" if is_secret(_name_of(key)) else error
        raise UsageError(f"{given.origin}: {problem}") from None


def printed(config: Config, origins: Mapping[str, str]) -> str:
    """The configuration as a file of its own, secrets masked, with where each value comes from."""
    return _as_file(config, origins, _masked)


def as_file(config: Config) -> str:
    """The same with its secrets: for a process of ours, never for a screen."""
    return _as_file(config, {}, lambda _, value: value)


def _as_file(config: Config, origins: Mapping[str, str], shown: Callable[[str, object], object]) -> str:
    lines = [_line("state_dir", "state_dir", config.state_dir, origins)]
    for name, section in SECTIONS.items():
        lines += ["", f"[{name}]"]
        values = {one.name: getattr(getattr(config, name), one.name) for one in fields(section)}
        chosen = values.pop("librdkafka", None)
        lines += [_line(key, f"{name}.{key}", shown(key, value), origins) for key, value in values.items()]
        if chosen:
            lines += ["", f"[{LIBRDKAFKA[:-1]}]"]
            lines += [_line(f'"{key}"', LIBRDKAFKA + key, shown(key, value), origins) for key, value in chosen.items()]
    return "\n".join(lines)


def _masked(key: str, value: object) -> object:
    if isinstance(value, tuple) and is_secret(key):
        return ["***" for _ in value]
    return "***" if value is not None and is_secret(key) else value


def _name_of(key: str) -> str:
    """A setting's name within its section, or the name of an option of librdkafka."""
    return key.removeprefix(LIBRDKAFKA) if key.startswith(LIBRDKAFKA) else key.rpartition(".")[2]


def is_secret(key: str) -> bool:
    """Whether a setting, or an option of librdkafka's, holds what nobody else may see."""
    return _SECRET.search(key.lower()) is not None


def _line(name: str, key: str, value: object, origins: Mapping[str, str]) -> str:
    line = f"{name} = {orjson.dumps(value, default=str).decode()}" if value is not None else f"# {name} is not set"
    return f"{line}  # {origins[key]}" if key in origins else line
