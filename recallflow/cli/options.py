"""Options that several commands share.

What reads the settings is imported once a command runs: help and completion need none of it."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.decisions import History
    from recallflow.flows.config import Config

ENCRYPTION = ("encryption.master_key_file", "encryption.kms_key")
STATE = ("state_dir", *ENCRYPTION)
GRAPH = ("engine.graph_enabled",)
EMBEDDING = ("embedding.model", "embedding.dimension", "embedding.base_url")
MODEL = ("engine.embedder", "engine.model_path", *EMBEDDING)
RERANK = ("engine.reranker", "engine.reranker_path", "engine.reranker_url", "engine.rerank_timeout_ms")
LLM = ("llm.model", "llm.base_url")
ENRICHMENT = tuple(f"enrichment.{name}" for name in ("relationships", "facts", "categories", "summaries"))
KEPT = (*STATE, *MODEL, "engine.episode_gap_minutes")  # what a state directory keeps, beside its partitions
ENGINE = (*KEPT, "engine.partitions")
PACE = ("engine.cache_bytes", "engine.epoch_ms")


class Flag(NamedTuple):
    """How a setting is given on the command line. `metavar`: what stands for its value; None takes none. `default`: as
    help says it."""

    name: str
    metavar: str | None
    help: str
    default: str | None = None
    repeated: bool = False


# Key of a setting → its flag, what stands for its value, and its help.
FLAGS = {
    "state_dir": Flag("--state-dir", "DIR", "keep the state here between runs"),
    "kafka.bootstrap_servers": Flag(
        "--bootstrap-servers", "HOST:PORT", "Kafka, also $KAFKA_BOOTSTRAP_SERVERS", "localhost:9092"
    ),
    "engine.embedder": Flag(
        "--embedder", "NAME", "embedding model: meaning, hash, static, minilm, onnx or openai", "meaning"
    ),
    "engine.model_path": Flag("--model-path", "DIR", "folder of a local copy of the model"),
    "embedding.model": Flag("--embedding-model", "NAME", "with openai: the model", "text-embedding-3-small"),
    "embedding.dimension": Flag("--embedding-dimension", "N", "with openai: floats of its vectors", "1536"),
    "embedding.base_url": Flag(
        "--embedding-url", "URL", "with openai: any service of its protocol, if not OpenAI's own"
    ),
    "engine.reranker": Flag("--reranker", "NAME", "a cross-encoder that reads the best candidates once more"),
    "engine.reranker_path": Flag(
        "--reranker-path", "DIR", "folder of a local copy of it (with meaning or hash: --model-path too)"
    ),
    "engine.reranker_url": Flag("--reranker-url", "URL", "the service that has it, in place of a local model"),
    "engine.rerank_timeout_ms": Flag("--rerank-timeout-ms", "MS", "after so long an answer goes without it", "1500"),
    "llm.model": Flag("--llm", "NAME", "a language model behind an API"),
    "llm.base_url": Flag("--llm-url", "URL", "any service of OpenAI's protocol, if not OpenAI's own"),
    "llm.timeout_ms": Flag("--llm-timeout-ms", "MS", "for each attempt", "30000"),
    "llm.query_timeout_ms": Flag("--llm-query-timeout-ms", "MS", "after so long an answer goes without it", "1500"),
    "enrichment.relationships": Flag("--enrich-relationships", None, "have found what memories say to each other"),
    "enrichment.facts": Flag("--enrich-facts", None, "have found what of a message is worth remembering by itself"),
    "enrichment.categories": Flag("--enrich-categories", None, "have found which category a memory is of"),
    "enrichment.summaries": Flag("--enrich-summaries", None, "have categories and episodes summed up"),
    "engine.partitions": Flag("--partitions", "N", "state partitions; the directory keeps its number", "16"),
    "engine.episode_gap_minutes": Flag("--episode-gap-minutes", "MINUTES", "what ends an episode; kept too", "30"),
    "engine.graph_enabled": Flag(
        "--graph-enabled", "TRUE_OR_FALSE", "whether queries may follow the graph at all", "true"
    ),
    "engine.cache_bytes": Flag("--cache-bytes", "SIZE", "owners held in memory, such as 2G", "512MiB"),
    "engine.epoch_ms": Flag("--epoch-ms", "MS", "time between two snapshots", "500"),
    "run.processes": Flag("--processes", "N", "members that share the work; auto: one a CPU", "1"),
    "run.deployment": Flag(
        "--deployment", "NAME", "whose members share its partitions (default: recallflow-MEMORY_TOPIC)"
    ),
    "run.session_timeout_s": Flag("--session-timeout-s", "S", "silence after which another may take over", "15"),
    "run.own": Flag("--own", "PARTITIONS", "partitions to work on, as 0-7, where the group is not to assign them"),
    "run.instance_id": Flag("--instance-id", "NAME", "partitions are kept for this name while it restarts"),
    "run.standby": Flag("--standby", "N", "members that keep each partition of another warm", "0"),
    "run.checkpoint_to": Flag("--checkpoint-to", "URL", "keep checkpoints there: s3://…, gs://… or file:…"),
    "run.checkpoint_minutes": Flag("--checkpoint-minutes", "M", "so often, of each partition", "10"),
    "run.checkpoint_keep": Flag("--checkpoint-keep", "N", "so many of each partition stay", "3"),
    "run.give_up_unanswered": Flag(
        "--give-up-unanswered", None, "go on where queries are gone from their topic unanswered"
    ),
    "run.accept_repeats": Flag(
        "--accept-repeats", None, "start although outputs since the last snapshot may be sent again"
    ),
    "run.serve_while_catching_up": Flag("--serve-while-catching-up", None, "/readyz is 200 before all is applied"),
    "run.skip": Flag(
        "--skip", "TOPIC:PARTITION:OFFSET", "a record to pass over, unread; may be given often", repeated=True
    ),
    "run.metrics_host": Flag("--metrics-host", "HOST", "where", "127.0.0.1"),
    "run.metrics_port": Flag("--metrics-port", "PORT", "serve /metrics, /livez and /readyz here"),
    "run.log_format": Flag("--log-format", "FORMAT", "of the lines on standard error: text or json", "text"),
    "serve.host": Flag("--host", "HOST", "the address that is listened at", "127.0.0.1"),
    "serve.port": Flag("--port", "PORT", "where; 0 takes a free one", "8080"),
    "serve.reply_topic": Flag("--reply-topic", "TOPIC", "where answers go, in place of the response topic"),
    "serve.reply_partition": Flag("--reply-partition", "N", "of it, which alone is read (default: any)"),
    "encryption.master_key_file": Flag(
        "--master-key-file", "FILE", "what the state is encrypted with: 32 bytes in base64"
    ),
    "encryption.kms_key": Flag("--kms-key", "ID", "the same, with a key of AWS KMS, by id or ARN"),
    "topics.memory": Flag("--memory-topic", "TOPIC", "memory events", "memory.events"),
    "topics.queries": Flag("--query-topic", "TOPIC", "query events", "query.events"),
    "topics.control": Flag("--control-topic", "TOPIC", "control events", "control.events"),
    "topics.responses": Flag("--response-topic", "TOPIC", "responses", "recall.responses"),
    "topics.receipts": Flag("--receipt-topic", "TOPIC", "receipts", "memory.receipts"),
    "topics.enrichment": Flag("--enrichment-topic", "TOPIC", "requests for enrichment", "enrichment.requests"),
    "topics.results": Flag("--result-topic", "TOPIC", "results of enrichment", "enrichment.results"),
    "topics.dead_letters": Flag("--dead-letter-topic", "TOPIC", "dead letters", "dead.letters"),
    "topics.audit": Flag("--audit-topic", "TOPIC", "the access record, one record a query; none without it"),
    "topics.replies": Flag("--reply-topic", "TOPIC", "may be named in reply_to; may be given often", repeated=True),
}


# Section of a setting → the heading that its flags stand under.
_HEADINGS = {
    "": "state",
    "encryption": "state",
    "kafka": "Kafka",
    "topics": "topics",
    "run": "process",
    "serve": "listening",
    "engine": "engine",
    "embedding": "models",
    "llm": "models",
    "enrichment": "models",
}
_MODELS = ("embedder", "model_path", "reranker", "reranker_path", "reranker_url", "rerank_timeout_ms")


def add_settings(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Flags for the settings that a command uses, and the file that they may stand in."""
    text = "settings in TOML (default: $RECALLFLOW_CONFIG, or ~/.config/recallflow/config.toml where that is)"
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for key in keys:
        flag = FLAGS[key]
        section, _, name = key.rpartition(".")
        heading = "models" if name in _MODELS else _HEADINGS[section]
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        text = flag.help if flag.default is None else f"{flag.help} (default: {flag.default})"
        if flag.metavar is None:
            groups[heading].add_argument(flag.name, dest=key, action="store_const", const=True, help=text)
        else:
            action = "append" if flag.repeated else "store"
            groups[heading].add_argument(flag.name, dest=key, action=action, metavar=flag.metavar, help=text)


def add_create(parser: argparse.ArgumentParser) -> None:
    """For a command that fills a state directory: without the option it wants one that is there, so that a mistyped
    name is not another memory, and empty."""
    parser.add_argument("--create", action="store_true", help="make the state directory, where it is not there yet")


def add_kafka(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Flags for a command that connects to Kafka."""
    add_settings(parser, *keys, "kafka.bootstrap_servers")
    parser.add_argument("-X", dest="librdkafka", action="append", default=[], metavar="NAME=VALUE",
                        help="any librdkafka option: security.protocol, ssl.ca.location, …; no secrets, which other "
                        "users of the machine would see: they go into the --config file")  # fmt: skip


def add_owner(parser: argparse.ArgumentParser) -> None:
    """Whose memory it is."""
    parser.add_argument("--tenant", default="default", metavar="ID", help="tenant (default: default)")
    parser.add_argument("--user", default="user", metavar="ID", help="user (default: user)")
    parser.add_argument("--environment", default="prod", metavar="NAME", help="environment (default: prod)")


def add_control(parser: argparse.ArgumentParser) -> None:
    """A file of control events, in place of the control topic."""
    text = "JSON lines of control events, each in force from its timestamp on"
    parser.add_argument("--control", type=Path, metavar="FILE", help=text)


def config(options: argparse.Namespace) -> "Config":
    """The configuration out of file, environment and flags. Raises UsageError."""
    return config_and_origins(options)[0]


def config_and_origins(options: argparse.Namespace) -> "tuple[Config, dict[str, str]]":
    """The same, and for each key that somebody gave where it stands."""
    from recallflow.flows.config import LIBRDKAFKA, RawSetting, is_secret, read_config

    given = vars(options)
    flags = {key: RawSetting(flag.name, given[key]) for key, flag in FLAGS.items() if given.get(key) is not None}
    for text in given.get("librdkafka", ()):
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"-X {name}: give NAME=VALUE")
        if is_secret(name):
            raise UsageError(
                f"-X {name}: other users of the machine see what stands on a command line; give it in the file of "
                f'--config, as "{name}" under [kafka.librdkafka], or as the variable '
                f"RECALLFLOW_KAFKA_LIBRDKAFKA_{name.upper().replace('.', '_')}"
            )
        flags[LIBRDKAFKA + name] = RawSetting(f"-X {name}", value)
    chosen, origins = read_config(flags, os.environ, options.config)
    _check_state_dir(options)
    return chosen, origins


def _check_state_dir(options: argparse.Namespace) -> None:
    """Raises UsageError where --state-dir names what is not there, the command would fill it, and --create does not say
    that it is meant. What a file or the environment names was written once, with care, and is made."""
    given = getattr(options, "state_dir", None)
    if given == "":
        raise UsageError("--state-dir is empty, as a variable may be that is not set: give a folder (. is this one)")
    path = None if given is None else Path(given)
    fills = getattr(options, "create", None) is False
    only_shows = getattr(options, "print_config", False) or getattr(options, "dry_run", False)
    if path is None or not fills or only_shows or path.exists():
        return
    from recallflow.state.directory import absent

    said = absent(path)
    raise UsageError(f"{said}{'' if said.endswith('?') else ':'} --create makes it")


def decisions(options: argparse.Namespace) -> "History":
    """The control events of the file that is named, if any. Raises UsageError with line and field."""
    from recallflow.flows.admission import read_control_file

    return read_control_file(options.control)
