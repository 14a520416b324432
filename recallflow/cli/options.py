"""Options that several commands share."""

import argparse
import os
from operator import attrgetter
from pathlib import Path

from recallflow.connectors.embedders import NAMES
from recallflow.decisions import History
from recallflow.errors import InvalidRecord, UsageError
from recallflow.flows.config import KEYS, LIBRDKAFKA, LOG_FORMATS, Config, Given, read_config
from recallflow.flows.repeats import ACCEPT
from recallflow.parsing import parse_control

ENCRYPTION = ("encryption.master_key_file", "encryption.kms_key")
STATE = ("state_dir", *ENCRYPTION)
GRAPH = ("engine.graph_enabled",)
EMBEDDING = ("embedding.model", "embedding.dimension", "embedding.base_url")
MODEL = ("engine.embedder", "engine.model_path", *EMBEDDING)
RERANK = ("engine.reranker", "engine.reranker_path", "engine.reranker_url", "engine.rerank_timeout_ms")
LLM = ("llm.model", "llm.base_url")
ENRICHMENT = tuple(f"enrichment.{name}" for name in ("relationships", "facts", "categories", "summaries"))
ENGINE = (*STATE, *MODEL, "engine.partitions", "engine.episode_gap_minutes")
PACE = ("engine.cache_bytes", "engine.epoch_ms")
# Key of a setting → its flag, what stands for its value, and its help.
_FLAGS = {
    "state_dir": ("--state-dir", "DIR", "keep the state here between runs"),
    "kafka.bootstrap_servers": ("--bootstrap-servers", "HOST:PORT", "Kafka, also $KAFKA_BOOTSTRAP_SERVERS"),
    "engine.embedder": ("--embedder", "NAME", f"embedding model: {', '.join(NAMES)}"),
    "engine.model_path": ("--model-path", "DIR", "folder of a local copy of the model"),
    "embedding.model": ("--embedding-model", "NAME", "with openai: the model"),
    "embedding.dimension": ("--embedding-dimension", "N", "with openai: floats of its vectors"),
    "embedding.base_url": ("--embedding-url", "URL", "with openai: any service of its protocol, if not OpenAI's own"),
    "engine.reranker": ("--reranker", "NAME", "a cross-encoder that reads the best candidates once more"),
    "engine.reranker_path": ("--reranker-path", "DIR", "folder of a local copy of it (with hash: --model-path too)"),
    "engine.reranker_url": ("--reranker-url", "URL", "the service that has it, in place of a local model"),
    "engine.rerank_timeout_ms": ("--rerank-timeout-ms", "MS", "after so long an answer goes without it"),
    "llm.model": ("--llm", "NAME", "a language model behind an API"),
    "llm.base_url": ("--llm-url", "URL", "any service of OpenAI's protocol, if not OpenAI's own"),
    "llm.timeout_ms": ("--llm-timeout-ms", "MS", "for each attempt"),
    "llm.query_timeout_ms": ("--llm-query-timeout-ms", "MS", "after so long an answer goes without it"),
    "enrichment.relationships": ("--enrich-relationships", None, "have found what memories say to each other"),
    "enrichment.facts": ("--enrich-facts", None, "have found what of a message is worth remembering by itself"),
    "enrichment.categories": ("--enrich-categories", None, "have found which category a memory is of"),
    "enrichment.summaries": ("--enrich-summaries", None, "have categories and episodes summed up"),
    "engine.partitions": ("--partitions", "N", "state partitions; the directory keeps its number"),
    "engine.episode_gap_minutes": ("--episode-gap-minutes", "MINUTES", "what ends an episode; kept too"),
    "engine.graph_enabled": ("--graph-enabled", "TRUE_OR_FALSE", "whether queries may follow the graph at all"),
    "engine.cache_bytes": ("--cache-bytes", "SIZE", "owners held in memory, such as 2GiB"),
    "engine.epoch_ms": ("--epoch-ms", "MS", "time between two snapshots"),
    "run.workers": ("--workers", "N", "threads of the dataflow"),
    "run.deployment": ("--deployment", "NAME", "one engine works for it (default: recallflow-MEMORY_TOPIC)"),
    "run.session_timeout_s": ("--session-timeout-s", "S", "silence after which another may take over"),
    "run.wait": ("--wait", None, "stand by while another engine works for the deployment"),
    "run.accept_repeats": (ACCEPT, None, "start although outputs since the last snapshot may be sent again"),
    "run.serve_while_catching_up": ("--serve-while-catching-up", None, "/readyz is 200 before all is applied"),
    "run.skip": ("--skip", "TOPIC:PARTITION:OFFSET", "a record to pass over, unread; may be given often"),
    "run.metrics_host": ("--metrics-host", "HOST", "where"),
    "run.metrics_port": ("--metrics-port", "PORT", "serve /metrics, /livez and /readyz here"),
    "run.log_format": ("--log-format", "FORMAT", f"of the lines on standard error: {', '.join(LOG_FORMATS)}"),
    "serve.host": ("--host", "HOST", "the address that is listened at"),
    "serve.port": ("--port", "PORT", "where; 0 takes a free one"),
    "serve.reply_topic": ("--reply-topic", "TOPIC", "where answers go, in place of the response topic"),
    "serve.reply_partition": ("--reply-partition", "N", "of it, which alone is read (default: any)"),
    "encryption.master_key_file": ("--master-key-file", "FILE", "what the state is encrypted with: 32 bytes in base64"),
    "encryption.kms_key": ("--kms-key", "ID", "the same, with a key of AWS KMS, by id or ARN"),
    "topics.memory": ("--memory-topic", "TOPIC", "memory events"),
    "topics.queries": ("--query-topic", "TOPIC", "query events"),
    "topics.control": ("--control-topic", "TOPIC", "control events"),
    "topics.responses": ("--response-topic", "TOPIC", "responses"),
    "topics.receipts": ("--receipt-topic", "TOPIC", "receipts"),
    "topics.enrichment": ("--enrichment-topic", "TOPIC", "requests for enrichment"),
    "topics.results": ("--result-topic", "TOPIC", "results of enrichment"),
    "topics.dead_letters": ("--dead-letter-topic", "TOPIC", "dead letters"),
    "topics.audit": ("--audit-topic", "TOPIC", "the access record, one record a query; none without it"),
    "topics.replies": ("--reply-topic", "TOPIC", "may be named in reply_to; may be given often"),
}


def add_settings(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Flags for the settings that a command uses, and the file that they may stand in."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML (default: $RECALLFLOW_CONFIG)")
    for key in keys:
        flag, metavar, text = _FLAGS[key]
        if (default := attrgetter(key)(Config())) not in (None, False, ()):
            text += f" (default: {default})"
        if metavar is None:
            parser.add_argument(flag, dest=key, action="store_const", const=True, help=text)
        else:
            action = "append" if KEYS[key] == tuple[str, ...] else "store"
            parser.add_argument(flag, dest=key, action=action, metavar=metavar, help=text)


def add_kafka(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Flags for a command that connects to Kafka."""
    add_settings(parser, *keys, "kafka.bootstrap_servers")
    parser.add_argument("-X", dest="librdkafka", action="append", default=[], metavar="NAME=VALUE",
                        help="any librdkafka option: security.protocol, sasl.*, ssl.*, …")  # fmt: skip


def add_owner(parser: argparse.ArgumentParser) -> None:
    """Whose memory it is."""
    parser.add_argument("--tenant", default="default", metavar="ID", help="tenant (default: default)")
    parser.add_argument("--user", default="user", metavar="ID", help="user (default: user)")
    parser.add_argument("--environment", default="prod", metavar="NAME", help="environment (default: prod)")


def add_control(parser: argparse.ArgumentParser) -> None:
    """A file of control events, in place of the control topic."""
    text = "JSON lines of control events, each in force from its timestamp on"
    parser.add_argument("--control", type=Path, metavar="FILE", help=text)


def config(options: argparse.Namespace) -> Config:
    """The configuration out of file, environment and flags. Raises UsageError."""
    return config_and_origins(options)[0]


def config_and_origins(options: argparse.Namespace) -> tuple[Config, dict[str, str]]:
    """The same, and for each key that somebody gave where it stands."""
    given = vars(options)
    flags = {key: Given(flag, given[key]) for key, (flag, _, _) in _FLAGS.items() if given.get(key) is not None}
    for text in given.get("librdkafka", ()):
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"-X {name}: give NAME=VALUE")
        flags[LIBRDKAFKA + name] = Given(f"-X {name}", value)
    return read_config(flags, os.environ, options.config)


def decisions(options: argparse.Namespace) -> History:
    """The control events of the file that is named, if any. Raises UsageError with line and field."""
    history, path = History(), options.control
    if path is None:
        return history
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--control: cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = parse_control(line)
        except InvalidRecord as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        history.add(event.timestamp or 0, event)
    return history
