"""Options of several commands."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallflow.cli.parser import Commands
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.control import ControlHistory
    from recallflow.flows.config import Config
    from recallflow.state.directory import StateDirectory
    from recallflow.state.encryption import AtRest

ENCRYPTION = ("encryption.master_key_file", "encryption.kms_key")
STATE = ("state_dir", *ENCRYPTION)
EMBEDDING = ("embedding.model", "embedding.dimension", "embedding.base_url")
MODEL = ("engine.embedder", "engine.model_path", *EMBEDDING)
RERANK = ("engine.reranker", "engine.reranker_path", "engine.reranker_url", "engine.rerank_timeout_ms")
LLM = ("llm.model", "llm.base_url")
ENRICHMENT = tuple(f"enrichment.{name}" for name in ("relationships", "facts", "categories", "summaries"))
STORED = (*STATE, *MODEL, "engine.episode_gap_minutes")  # settings that a state directory stores
ENGINE = (*STORED, "engine.partitions")
CACHE_AND_SYNC = ("engine.cache_bytes", "engine.sync_ms")
QUERIES = ("engine.graph_enabled", *RERANK, *LLM, "llm.query_timeout_ms")
OUTPUTS = ("topics.responses", "topics.receipts", "topics.dead_letters")
TOPICS = ("topics.memory", "topics.queries", "topics.control", *OUTPUTS, "topics.enrichment")
RUN = (
    *(*STORED, *QUERIES, *ENRICHMENT, *CACHE_AND_SYNC, *TOPICS, "topics.audit", "topics.replies", "run.deployment"),
    *("run.session_timeout_s", "run.own", "run.instance_id", "run.processes", "run.standby", "run.checkpoint_to"),
    *("run.checkpoint_minutes", "run.checkpoint_keep", "run.accept_repeats", "run.give_up_unanswered", "run.skip"),
    *("run.metrics_host", "run.metrics_port", "run.serve_while_catching_up", "run.log_format"),
)
ENRICH = (
    *(*STATE, *LLM, "llm.timeout_ms", *EMBEDDING, "engine.sync_ms"),
    *(f"topics.{name}" for name in ("enrichment", "results", "memory", "control", "receipts", "dead_letters")),
    *("run.deployment", "run.session_timeout_s", "run.accept_repeats", "run.give_up_unanswered"),
    *("run.metrics_host", "run.metrics_port", "run.log_format"),
)
SERVE = ("serve.host", "serve.port", "serve.reply_topic", "serve.reply_partition")
GATEWAY = ("topics.memory", "topics.queries", "topics.control", *OUTPUTS, *ENGINE, *QUERIES, "run.log_format")
REEMBED = (*MODEL, *ENCRYPTION, "topics.memory", "topics.control", "engine.cache_bytes")
_BROKER = "localhost:9092"  # default


class Flag(NamedTuple):
    """Command line flag of a setting. `metavar` names the value, if the flag has one; `default` is for the help."""

    name: str
    metavar: str | None
    help: str
    default: str | None = None
    repeated: bool = False


# Setting → flag, value name, and help.
FLAGS = {
    "state_dir": Flag("--state-dir", "DIR", "state directory"),
    "kafka.bootstrap_servers": Flag("--bootstrap-servers", "HOST:PORT", "brokers ($KAFKA_BOOTSTRAP_SERVERS)", _BROKER),
    "kafka.msk_iam_region": Flag("--msk-iam-region", "REGION", "log in to Amazon MSK with IAM credentials of a region"),
    "engine.embedder": Flag("--embedder", "NAME", "model: meaning, hash, static, minilm, onnx or openai", "meaning"),
    "engine.model_path": Flag("--model-path", "DIR", "folder of a local copy of the model"),
    "embedding.model": Flag("--embedding-model", "NAME", "with openai: the model", "text-embedding-3-small"),
    "embedding.dimension": Flag("--embedding-dimension", "N", "with openai: dimension of the vectors", "1536"),
    "embedding.base_url": Flag("--embedding-url", "URL", "with openai: URL of another service with OpenAI's protocol"),
    "engine.reranker": Flag("--reranker", "NAME", "cross-encoder that reranks the best candidates"),
    "engine.reranker_path": Flag("--reranker-path", "DIR", "local copy (with meaning or hash: --model-path too)"),
    "engine.reranker_url": Flag("--reranker-url", "URL", "reranking service, in place of a local model"),
    "engine.rerank_timeout_ms": Flag("--rerank-timeout-ms", "MS", "time limit; then reranking is skipped", "1500"),
    "llm.model": Flag("--llm", "NAME", "language model behind an API"),
    "llm.base_url": Flag("--llm-url", "URL", "URL of another service with OpenAI's protocol"),
    "llm.timeout_ms": Flag("--llm-timeout-ms", "MS", "time limit of each attempt", "30000"),
    "llm.query_timeout_ms": Flag("--llm-query-timeout-ms", "MS", "time limit in a query; then it is skipped", "1500"),
    "enrichment.relationships": Flag("--enrich-relationships", None, "find relations between memories"),
    "enrichment.facts": Flag("--enrich-facts", None, "extract facts from messages"),
    "enrichment.categories": Flag("--enrich-categories", None, "assign memories to categories"),
    "enrichment.summaries": Flag("--enrich-summaries", None, "summarise categories and episodes"),
    "engine.partitions": Flag("--partitions", "N", "state partitions, fixed when the directory is created", "16"),
    "engine.episode_gap_minutes": Flag(
        "--episode-gap-minutes", "MINUTES", "inactivity that ends an episode, fixed when the directory is created", "30"
    ),
    "engine.graph_enabled": Flag("--graph-enabled", "TRUE_OR_FALSE", "whether queries may use the graph", "true"),
    "engine.cache_bytes": Flag("--cache-bytes", "SIZE", "memory for cached owners, such as 2G", "512MiB"),
    "engine.sync_ms": Flag("--sync-ms", "MS", "interval of syncs to disk, and of barriers", "500"),
    "run.processes": Flag("--processes", "N", "number of member processes; auto: one per CPU", "1"),
    "run.deployment": Flag("--deployment", "NAME", "name of the consumer group (default: recallflow-INPUT_TOPIC)"),
    "run.session_timeout_s": Flag("--session-timeout-s", "S", "silence after which another member takes over", "15"),
    "run.own": Flag("--own", "PARTITIONS", "partitions assigned by hand, such as 0-7, in place of the group's"),
    "run.instance_id": Flag("--instance-id", "NAME", "static member id, which keeps its partitions during a restart"),
    "run.standby": Flag("--standby", "N", "number of standby copies of each partition", "0"),
    "run.checkpoint_to": Flag("--checkpoint-to", "URL", "URL for checkpoints: s3://…, gs://… or file:…"),
    "run.checkpoint_minutes": Flag("--checkpoint-minutes", "M", "checkpoint interval of each partition", "10"),
    "run.checkpoint_keep": Flag("--checkpoint-keep", "N", "number of checkpoints per partition", "3"),
    "run.give_up_unanswered": Flag("--give-up-unanswered", None, "continue although unanswered queries were deleted"),
    "run.accept_repeats": Flag("--accept-repeats", None, "start although the latest outputs may be repeated"),
    "run.serve_while_catching_up": Flag("--serve-while-catching-up", None, "ready before all records are applied"),
    "run.skip": Flag("--skip", "TOPIC:PARTITION:OFFSET", "record to skip; may be repeated", repeated=True),
    "run.metrics_host": Flag("--metrics-host", "HOST", "listening host for metrics", "127.0.0.1"),
    "run.metrics_port": Flag("--metrics-port", "PORT", "port of /metrics, /livez and /readyz"),
    "run.log_format": Flag("--log-format", "FORMAT", "format of log lines on standard error: text or json", "text"),
    "serve.host": Flag("--host", "HOST", "listening host", "127.0.0.1"),
    "serve.port": Flag("--port", "PORT", "listening port; 0 chooses a free port", "8080"),
    "serve.reply_topic": Flag("--reply-topic", "TOPIC", "topic for answers, in place of the response topic"),
    "serve.reply_partition": Flag("--reply-partition", "N", "only this partition of the reply topic (default: all)"),
    "encryption.master_key_file": Flag("--master-key-file", "FILE", "key that encrypts the state: base64, 32 bytes"),
    "encryption.kms_key": Flag("--kms-key", "ID", "AWS KMS key that encrypts the state, by id or ARN"),
    "topics.memory": Flag("--memory-topic", "TOPIC", "memory events", "memory.events"),
    "topics.queries": Flag("--query-topic", "TOPIC", "query events", "query.events"),
    "topics.control": Flag("--control-topic", "TOPIC", "control events", "control.events"),
    "topics.responses": Flag("--response-topic", "TOPIC", "responses", "recall.responses"),
    "topics.receipts": Flag("--receipt-topic", "TOPIC", "receipts", "memory.receipts"),
    "topics.enrichment": Flag("--enrichment-topic", "TOPIC", "requests for enrichment", "enrichment.requests"),
    "topics.results": Flag("--result-topic", "TOPIC", "results of enrichment", "enrichment.results"),
    "topics.dead_letters": Flag("--dead-letter-topic", "TOPIC", "dead letters", "dead.letters"),
    "topics.audit": Flag("--audit-topic", "TOPIC", "access log, one record per query (default: none)"),
    "topics.replies": Flag("--reply-topic", "TOPIC", "topic that reply_to may name; may be repeated", repeated=True),
}
# Section of a setting → heading of its flags.
_HEADINGS = {
    "": "state", "encryption": "state", "kafka": "Kafka", "topics": "topics", "run": "process", "serve": "listening",
    "engine": "engine", "embedding": "models", "llm": "models", "enrichment": "models",
}  # fmt: skip
_MODELS = ("embedder", "model_path", "reranker", "reranker_path", "reranker_url", "rerank_timeout_ms")


def add_actions(commands: Commands, name: str, help_text: str) -> Commands:
    return commands.add_parser(name, help=help_text).add_subparsers(metavar="ACTION", required=True, dest="action")


def add_settings(parser: argparse.ArgumentParser, *keys: str) -> None:
    text = "settings in TOML (default: $RECALLFLOW_CONFIG, or ~/.config/recallflow/config.toml if it exists)"
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for key in keys:
        flag = FLAGS[key]
        section, _, name = key.rpartition(".")
        heading = "models" if name in _MODELS else _HEADINGS[section]
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        text = flag.help if flag.default is None else f"{flag.help} (default: {flag.default})"
        action = "append" if flag.repeated else "store"
        details: Any = {"action": action, "metavar": flag.metavar} if flag.metavar else {"action": "store_true"}
        groups[heading].add_argument(flag.name, dest=key, default=None, help=text, **details)


def add_repeated(
    parser: argparse.ArgumentParser, flag: str, dest: str, metavar: str, text: str, kind: Callable[[str], Any] = str
) -> None:
    """Add a flag that may be repeated. Its values are a list."""
    parser.add_argument(flag, dest=dest, action="append", default=[], metavar=metavar, type=kind, help=text)


def add_create(parser: argparse.ArgumentParser) -> None:
    """Add --create. Without it the state directory must exist, so that a mistyped name creates no empty memory."""
    parser.add_argument("--create", action="store_true", help="create the state directory if it does not exist")


def add_start(parser: argparse.ArgumentParser) -> None:
    add_create(parser)
    parser.add_argument("--print-config", action="store_true", help="print the effective settings and their origins")


def add_kafka(parser: argparse.ArgumentParser, *keys: str) -> None:
    add_settings(parser, *keys, "kafka.bootstrap_servers", "kafka.msk_iam_region")
    parser.add_argument("-X", dest="librdkafka", action="append", default=[], metavar="NAME=VALUE",
                        help="any librdkafka option: security.protocol, ssl.ca.location, …; no secrets, which other "
                        "users of the machine would see: they go into the --config file")  # fmt: skip


def add_owner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", default="default", metavar="ID", help="tenant (default: default)")
    parser.add_argument("--user", default="user", metavar="ID", help="user (default: user)")
    parser.add_argument("--environment", default="prod", metavar="NAME", help="environment (default: prod)")


def add_control(parser: argparse.ArgumentParser) -> None:
    """Add --control, which names a file of control events, in place of the control topic."""
    text = "JSON lines of control events, each in force from its timestamp on"
    parser.add_argument("--control", type=Path, metavar="FILE", help=text)


def check_no_control(options: argparse.Namespace) -> None:
    if getattr(options, "control", None) is not None:
        raise UsageError("--control needs --state-dir: on Kafka, decisions are in the control topic")


def add_tenant(parser: argparse.ArgumentParser, help_text: str | None = None) -> None:
    """Add the tenant of a decision, and the options for its destination: control topic or file."""
    parser.add_argument("tenant", metavar="TENANT", help=help_text)
    add_kafka(parser, "topics.control")
    add_control(parser)


def config(options: argparse.Namespace) -> "Config":
    return config_and_origins(options)[0]


def config_and_origins(options: argparse.Namespace) -> "tuple[Config, dict[str, str]]":
    """Return the configuration, and where each setting that is not a default was set."""
    from recallflow.flows.config import LIBRDKAFKA, RawSetting, is_secret, read_config

    values = vars(options)
    flags = {key: RawSetting(flag.name, values[key]) for key, flag in FLAGS.items() if values.get(key) is not None}
    for text in values.get("librdkafka", ()):
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"-X {name}: give NAME=VALUE")
        if is_secret(name):
            variable = f"RECALLFLOW_KAFKA_LIBRDKAFKA_{name.upper().replace('.', '_')}"
            remedy = f'in the file of --config, as "{name}" under [kafka.librdkafka], or in the variable {variable}'
            raise UsageError(f"-X {name}: other users of the machine can see a command line; set the secret {remedy}")
        flags[LIBRDKAFKA + name] = RawSetting(f"-X {name}", value)
    chosen, origins = read_config(flags, os.environ, options.config)
    _check_state_dir(options)
    return chosen, origins


def _check_state_dir(options: argparse.Namespace) -> None:
    """Raise UsageError if --state-dir is empty, or names a missing directory and the command's --create was not given.
    A directory in the configuration is created without --create."""
    state_dir = getattr(options, "state_dir", None)
    if state_dir == "":
        raise UsageError("--state-dir is empty (an unset variable?): give a folder, such as . for the current one")
    needs_create = getattr(options, "create", None) is False
    only_prints = getattr(options, "print_config", False) or getattr(options, "dry_run", False)
    if state_dir is not None and needs_create and not only_prints and not Path(state_dir).exists():
        from recallflow.state.description import absence_message

        problem = absence_message(Path(state_dir))
        raise UsageError(f"{problem}{'' if problem.endswith('?') else ':'} --create creates it")


def at_rest(chosen: "Config") -> "AtRest":
    from recallflow.flows.settings import open_at_rest

    return open_at_rest(chosen.encryption)


def open_state(chosen: "Config") -> "StateDirectory":
    """Open the existing state directory of the settings for one pass over its data."""
    from recallflow.state.directory import StateDirectory

    return StateDirectory.existing(chosen.named_state_dir(), at_rest(chosen))


def decisions(options: argparse.Namespace) -> "ControlHistory":
    """Return the control events of the --control file, if any. Raise UsageError with line and field."""
    from recallflow.flows.admission import read_control_file

    return read_control_file(options.control)


def whole(text: str) -> int:
    """Parse a number of 1 or more; the type of an argument."""
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")


def add_environments(parser: argparse.ArgumentParser) -> None:
    text = "only this environment; may be repeated (default: all)"
    add_repeated(parser, "--environment", "environments", "NAME", text)
