"""Configuration of a deployment: the frozen object `Config`, its sections, and how it is read.

A value comes from the first of these sources that has it: a flag, the environment, the file (`--config`), the default.
A key is a section and a field, such as `engine.cache_bytes`; its environment variable is
`RECALLFLOW_ENGINE_CACHE_BYTES`."""

import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import orjson
from pydantic import ByteSize, TypeAdapter

from recallflow.cloud_events import JSON, RESPONSE_FORMATS, check_sdk
from recallflow.errors import UsageError
from recallflow.flows.model_settings import EmbeddingSettings, EnrichmentSettings, LlmSettings, ModelSettings
from recallflow.flows.settings import AuthSettings, EncryptionSettings, Settings, TopicNames, refuse_unless
from recallflow.kafka_options import SESSION_MAX_S, SESSION_MIN_S, SESSION_S, KafkaOptions
from recallflow.owner import parse_ranges
from recallflow.process import MEMBER_VARIABLE
from recallflow.records import Position
from recallflow.responses import REGISTERED_FORMATS

T = TypeVar("T")

AUTO: Literal["auto"] = "auto"
_ORIGIN = re.compile(r"https?://[^/*\s]+")

_BOOLEANS = {"true": True, "false": False}


def _parser(convert: Callable[[Any], T], problem: str, *types: type[object]) -> Callable[[object], T]:
    """Return a parser of texts, and of values of some TOML types, without their subclasses: True is not a number."""

    def parse(value: object) -> T:
        with suppress(ValueError, LookupError):
            if isinstance(value, str) or type(value) in types:
                return convert(value)
        raise ValueError(f"{value!r} {problem}")

    return parse


parse_int = _parser(int, "is not a whole number", int)
parse_float = _parser(float, "is not a number", int, float)
parse_bool = _parser(lambda value: _BOOLEANS[str(value).lower()], "is neither true nor false", bool)
parse_text = _parser(str, "is not text")
# A number of bytes, with or without a unit: 536870912, 512MiB, 1.5GB.
_SIZE_PROBLEM = "is not a size; give bytes, or add KiB, MiB, GiB, KB, MB or GB"
parse_bytes = _parser(TypeAdapter(ByteSize).validate_python, _SIZE_PROBLEM, int)


def parse_texts(value: object) -> tuple[str, ...]:
    """Parse a list of texts, or one text with commas between the elements."""
    if isinstance(value, list):
        return tuple(map(parse_text, value))
    return tuple(text for text in map(str.strip, parse_text(value).split(",")) if text)


def parse_count(value: object) -> int | Literal["auto"]:
    """Parse a number, or `auto`: the number of CPUs of this machine."""
    try:
        return AUTO if value == AUTO else parse_int(value)
    except ValueError as error:
        raise ValueError(f"{error} and not {AUTO}") from None


def parse_option(value: object) -> str:
    """Return an option of librdkafka as text, without a check: librdkafka checks it."""
    return str(value).lower() if isinstance(value, bool | int | float) else parse_text(value)


# Type of a setting → its parser.
PARSERS: dict[Any, Callable[[object], Any]] = {
    int: parse_int,
    int | None: parse_int,
    int | Literal["auto"]: parse_count,
    float: parse_float,
    bool: parse_bool,
    str: parse_text,
    str | None: parse_text,
    Path | None: lambda value: Path(parse_text(value)),
    tuple[str, ...]: parse_texts,
}


PREFIX = "RECALLFLOW_"
FILE_VARIABLE = "RECALLFLOW_CONFIG"
SHARED_VARIABLE = "RECALLFLOW_SHARED"  # tests and benchmarks read it
LOCAL_BROKER = "localhost:9092"
FORMATS = (*RESPONSE_FORMATS, *REGISTERED_FORMATS)
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class ServeSettings:
    host: str = "127.0.0.1"
    port: int = 8080
    timeout_s: float = 10.0  # the limit for a query to be answered, or an event to be applied
    body_timeout_s: float = 10.0  # the limit for headers and body to arrive
    concurrency: int = 512  # the number of requests in progress at once
    stop_timeout_s: float = 15.0  # the time for requests in progress to finish at shutdown
    reply_topic: str | None = None  # the topic for answers, in place of the response topic; only this topic is read
    reply_partition: int | None = None  # the partition of the reply topic; None for any
    cors_origins: tuple[str, ...] = ()  # the web pages that may call the gateway, such as https://chat.example.com

    def __post_init__(self) -> None:
        refuse_unless(
            self,
            ("host", "an address or a name", self.host != ""),
            ("port", "0 to 65,535", 0 <= self.port <= 65_535),
            ("concurrency", "at least 1", self.concurrency >= 1),
            ("reply_partition", "0 or more", self.reply_partition is None or self.reply_partition >= 0),
            ("cors_origins", "such as https://chat.example.com", all(map(_ORIGIN.fullmatch, self.cors_origins))),
            ("reply_partition", "of a reply_topic", self.reply_partition is None or self.reply_topic is not None),
            *((name, "above 0, to 3,600", 0 < getattr(self, name) <= 3_600)
              for name in ("timeout_s", "body_timeout_s", "stop_timeout_s")),
        )  # fmt: skip


@dataclass(frozen=True)
class RunSettings:
    """Settings of `recallflow run`: its share of a deployment, and its monitoring."""

    processes: int | Literal["auto"] = 1  # the number of members on this machine, or "auto": one per CPU
    deployment: str | None = None  # the group whose members share the partitions; None derives it from the memory topic
    session_timeout_s: float = SESSION_S
    own: str | None = None  # manually assigned partitions, such as `0-7`; the group does not assign them
    instance_id: str | None = None  # the static group member id; its partitions stay assigned while the member restarts
    accept_repeats: bool = False  # start although outputs may be sent twice, because retention deleted earlier ones
    give_up_unanswered: bool = False  # skip queries that retention has deleted
    standby: int = 0  # the number of members that keep a warm copy of each partition
    checkpoint_to: str | None = None  # the URL of the store of checkpoints
    checkpoint_minutes: float = 10.0
    checkpoint_keep: int = 3
    serve_while_catching_up: bool = False
    skip: tuple[str, ...] = ()  # positions of records to skip unread
    response_format: str = JSON  # json, json-schema, avro, protobuf, cloudevents-binary or -structured
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # the port of the metrics server; None for no server
    log_format: str = LOG_FORMATS[0]

    def __post_init__(self) -> None:
        session_times = f"{SESSION_MIN_S:g} to {SESSION_MAX_S:,g}"
        refuse_unless(
            self,
            ("processes", "1 to 1,000", self.processes == AUTO or 1 <= self.processes <= 1_000),
            ("standby", "0 to 10", 0 <= self.standby <= 10),
            ("checkpoint_minutes", "more than 0", self.checkpoint_minutes > 0),
            ("checkpoint_keep", "at least 1", self.checkpoint_keep >= 1),
            ("session_timeout_s", session_times, SESSION_MIN_S <= self.session_timeout_s <= SESSION_MAX_S),
            ("metrics_port", "0 to 65,535", self.metrics_port is None or 0 <= self.metrics_port <= 65_535),
            ("log_format", " or ".join(LOG_FORMATS), self.log_format in LOG_FORMATS),
            ("response_format", ", ".join(FORMATS), self.response_format in FORMATS),
        )
        if self.response_format not in (JSON, *REGISTERED_FORMATS):
            check_sdk(f"response_format = {self.response_format}")
        if self.owned() is not None and self.standby:
            raise UsageError("standby has no effect on manually assigned partitions (own): leave out one setting")

    def owned(self) -> frozenset[int] | None:
        """Return the manually assigned partitions; None if the group assigns them. Raise UsageError."""
        if self.own is None:
            return None
        try:
            return parse_ranges(self.own)
        except ValueError as error:
            raise UsageError(f"own: {error}") from error


@dataclass(frozen=True)
class Config:
    state_dir: Path | None = None
    kafka: KafkaOptions = field(default_factory=lambda: KafkaOptions(LOCAL_BROKER))
    topics: TopicNames = field(default_factory=TopicNames)
    engine: Settings = field(default_factory=Settings)
    run: RunSettings = field(default_factory=RunSettings)
    llm: LlmSettings = field(default_factory=LlmSettings)
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    enrichment: EnrichmentSettings = field(default_factory=EnrichmentSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)

    def __post_init__(self) -> None:
        skips = self.skips  # raises UsageError
        if self.kafka.registry is not None:
            self.kafka.registry.skips = skips
        if self.run.response_format in REGISTERED_FORMATS and self.kafka.registry is None:
            raise UsageError(f"response_format {self.run.response_format} needs a registry: give schema.registry.url")

    def response_schema_id(self) -> int:
        """Return the id of the schema of responses; 0 for a format without one. Raise UsageError and SourceError."""
        from recallflow.schema import registered_schema  # loads all models

        if self.kafka.registry is None or self.run.response_format not in REGISTERED_FORMATS:
            return 0
        schema = registered_schema("response", self.run.response_format)
        return self.kafka.registry.schema_id(f"{self.topics.responses}-value", *schema)

    @property
    def skips(self) -> frozenset[Position]:
        return self.topics.parse_skips(self.run.skip)

    @property
    def models(self) -> ModelSettings:
        return ModelSettings(self.llm, self.embedding)

    def named_state_dir(self) -> Path:
        if self.state_dir is None:
            raise UsageError("give --state-dir: the folder that holds the state")
        return self.state_dir


class RawSetting(NamedTuple):
    """An unparsed value. `origin` names its source for messages: a flag, a variable, or a file and key."""

    origin: str
    value: object


SECTIONS: dict[str, type[Any]] = {name: kind for name, kind in get_type_hints(Config).items() if name != "state_dir"}
LIBRDKAFKA = "kafka.librdkafka."  # prefix of a key, before the name of librdkafka's option
# Key → type of its value.
KEYS: dict[str, Any] = {
    "state_dir": Path | None,
    **{f"{name}.{key}": kind for name, section in SECTIONS.items() for key, kind in get_type_hints(section).items()},
}
del KEYS[LIBRDKAFKA[:-1]]
# Environment variable → key. Some variables do not follow the naming scheme.
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
# Variables of the official OpenAI client. They apply if recallflow's own settings are absent.
OPENAI_VARIABLES = {"OPENAI_API_KEY": "llm.key", "OPENAI_BASE_URL": "llm.base_url"}
_OTHER_VARIABLES = frozenset((FILE_VARIABLE, MEMBER_VARIABLE, SHARED_VARIABLE))
_LIBRDKAFKA_VARIABLE = PREFIX + LIBRDKAFKA.upper().replace(".", "_")
_log = logging.getLogger(__name__)
_SECRET = re.compile(
    r"password|user\.info$|auth\.token$|^(reranker_|api_|master_)?key$|^headers$|passphrase|secret|jaas|kinit\.cmd|\.pem$|^ssl_key$|oauthbearer\.config"
)


def read_config(
    flags: Mapping[str, RawSetting], environment: Mapping[str, str], file: Path | None = None
) -> tuple[Config, dict[str, str]]:
    """Return the configuration, and the origin of each configured key. Raise UsageError. `file`: see `default_file`."""
    path = file or default_file(environment)
    openai = {
        key: RawSetting(name, environment[name]) for name, key in OPENAI_VARIABLES.items() if environment.get(name)
    }
    raw = openai | (_from_file(path) if path else {}) | _from_environment(environment) | dict(flags)
    sections: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in SECTIONS}}
    sections["kafka"] = {"bootstrap_servers": LOCAL_BROKER, "librdkafka": {}}
    for key, setting in raw.items():
        if key.startswith(LIBRDKAFKA):
            sections["kafka"]["librdkafka"][key.removeprefix(LIBRDKAFKA)] = _parse(key, setting)
        else:
            section, _, name = key.rpartition(".")
            sections[section][name] = _parse(key, setting)
    if "base_url" not in sections["embedding"]:  # an address of its own must not get the language model's key
        shared = {key: sections["llm"][key] for key in ("base_url", "key", "headers") if key in sections["llm"]}
        sections["embedding"] = shared | sections["embedding"]
    built = {name: section(**sections[name]) for name, section in SECTIONS.items()}
    return Config(**sections[""], **built), {key: setting.origin for key, setting in raw.items()}


def default_file(environment: Mapping[str, str]) -> Path | None:
    """Return the default configuration file: `$RECALLFLOW_CONFIG`, or the user's own if it exists."""
    if configured := environment.get(FILE_VARIABLE):
        return Path(configured)
    folder, home = Path(environment.get("XDG_CONFIG_HOME", "")), environment.get("HOME", "")
    if not folder.is_absolute():  # the XDG standard ignores a relative path
        if not home:
            return None
        folder = Path(home, ".config")
    file = folder / "recallflow" / "config.toml"
    with suppress(OSError):  # an unreadable home directory, as in a container, has no configuration
        return file if file.is_file() else None
    return None


def _from_file(path: Path) -> dict[str, RawSetting]:
    try:
        found = dict(_flattened(tomllib.loads(path.read_text("utf-8"))))
    except OSError as error:
        raise UsageError(f"--config: cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path}: {error}") from error
    secrets = [key for key in found if is_secret(_name_of(key))]
    if secrets and path.stat().st_mode & 0o077:
        _log.warning("%s holds %s and is readable by other users: chmod 600 %s", path, ", ".join(secrets), path)
    _refuse_unknown(path, [key for key in found if key not in KEYS and not key.startswith(LIBRDKAFKA)], KEYS)
    return {key: RawSetting(f"{path}: {key}", value) for key, value in found.items()}


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environment(environment: Mapping[str, str]) -> dict[str, RawSetting]:
    """Return the settings of environment variables. An empty variable counts as unset."""
    found, unknown = {}, []
    for variable in sorted(environment, key=lambda name: (name.startswith(PREFIX), name)):  # the last one counts
        if not (text := environment[variable]):
            continue
        if variable.startswith(_LIBRDKAFKA_VARIABLE):
            name = variable.removeprefix(_LIBRDKAFKA_VARIABLE).lower().replace("_", ".")
            found[LIBRDKAFKA + name] = RawSetting(variable, text)
        elif variable in VARIABLES:
            found[VARIABLES[variable]] = RawSetting(variable, text)
        elif variable.startswith(PREFIX) and variable not in _OTHER_VARIABLES:
            unknown.append(variable)
    _refuse_unknown("the environment", unknown, VARIABLES)
    return found


def _refuse_unknown(where: object, unknown: list[str], known: Iterable[str]) -> None:
    if unknown:
        problems = [f"unknown setting {name} (did you mean {_nearest(name, known)}?)" for name in unknown]
        raise UsageError(f"{where}: {'; '.join(problems)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the most similar known name, by the whole key and by its field: often only the section is wrong."""

    def similarity(other: str) -> float:
        pairs = (name, other), (name.rpartition(".")[2], other.rpartition(".")[2])
        return sum(SequenceMatcher(None, one, another).ratio() for one, another in pairs)

    return max(known, key=similarity)


def _parse(key: str, setting: RawSetting) -> Any:
    if key.startswith(LIBRDKAFKA):
        parse: Callable[[object], Any] = parse_option
    else:
        parse = parse_bytes if key.endswith("_bytes") else PARSERS[KEYS[key]]
    try:
        return parse(setting.value)
    except ValueError as error:
        problem = "is not of the right type" if is_secret(_name_of(key)) else error
        raise UsageError(f"{setting.origin}: {problem}") from None


def as_file(config: Config, origins: Mapping[str, str] = MappingProxyType({}), *, masks: bool = False) -> str:
    """Return the text of a configuration file, with the origin of each value. `masks`: replace secrets by `***`."""
    lines = [_line("state_dir", "state_dir", config.state_dir, origins)]
    for name, section in SECTIONS.items():
        lines += ["", f"[{name}]"]
        values = {one.name: getattr(getattr(config, name), one.name) for one in fields(section)}
        options = values.pop("librdkafka", None) or {}
        if masks:
            values, options = ({key: _mask(key, value) for key, value in some.items()} for some in (values, options))
        lines += [_line(key, f"{name}.{key}", value, origins) for key, value in values.items()]
        if options:
            lines += ["", f"[{LIBRDKAFKA[:-1]}]"]
            lines += [_line(f'"{key}"', LIBRDKAFKA + key, value, origins) for key, value in options.items()]
    return "\n".join(lines)


def _mask(key: str, value: object) -> object:
    if value is None or not is_secret(key):
        return value
    return ["***" for _ in value] if isinstance(value, tuple) else "***"


def _name_of(key: str) -> str:
    return key.removeprefix(LIBRDKAFKA) if key.startswith(LIBRDKAFKA) else key.rpartition(".")[2]


def is_secret(key: str) -> bool:
    return _SECRET.search(key.lower()) is not None


def _line(name: str, key: str, value: object, origins: Mapping[str, str]) -> str:
    line = f"{name} = {orjson.dumps(value, default=str).decode()}" if value is not None else f"# {name} is not set"
    return f"{line}  # {origins[key]}" if key in origins else line
