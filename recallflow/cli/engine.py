"""The engine that a command speaks to: one in this process over a state directory, or one that runs behind Kafka."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from recallflow.cli.options import ENGINE, add_kafka, add_owner, config_and_origins, decisions
from recallflow.errors import QueryTimeout, RecallflowError, SourceError, StateInUse, UsageError

if TYPE_CHECKING:  # what speaks to an engine takes long to import, and help needs none
    import asyncio

    from recallflow.events import MemoryEvent
    from recallflow.flows.config import Config
    from recallflow.queries import QueryEvent
    from recallflow.responses import Receipt, Response
    from recallflow.service import Service
    from recallflow.verbs.scope import AnyEvent

TOPICS = ("topics.memory", "topics.queries", "topics.responses", "topics.receipts", "topics.dead_letters")
TIMEOUT_S = 10.0
UNHURRIED_S = 3_600.0  # in this process nothing is lost on the way: what takes long is at work
NEITHER = (
    "say whose memory it is: give --state-dir DIR, where no engine runs, or --bootstrap-servers HOST:PORT, to ask the "
    "one that does"
)


def add_engine(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Flags for a command that speaks to an engine about one user. `keys`: settings beyond those that all share."""
    parser.add_argument("--json", action="store_true", help="print what the engine says as JSON, one object a line")
    add_owner(parser)
    parser.add_argument(
        "--timeout-s", type=float, default=TIMEOUT_S, metavar="S", help="on Kafka, wait so long (default: 10)"
    )
    add_kafka(parser, *ENGINE, *keys, *TOPICS)


def event_of(options: argparse.Namespace, event_type: str, fields: Mapping[str, Any]) -> "AnyEvent":
    """An event or query about the user that the options name. Raises InvalidRecord with what is wrong in it."""
    from recallflow.verbs.scope import Scope

    return Scope(options.tenant, options.environment).event(event_type, options.user, fields)


class Engine:
    """What a command sends and asks, about one user. Every call waits for its outcome."""

    def __init__(
        self, runner: "asyncio.Runner", service: "Service", options: argparse.Namespace, config: "Config", *, far: bool
    ) -> None:
        """`far`: whether the engine is another process, behind Kafka, that may not be there."""
        self._runner, self._service, self._config, self._far = runner, service, config, far
        self._options = options
        self._timeout_s: float = options.timeout_s if far else UNHURRIED_S
        self._headers = config.auth.credentials

    def send(self, event_type: str, fields: Mapping[str, Any]) -> "Receipt":
        """What became of an event, once it is applied. Raises InvalidRecord where it is refused, and RecallflowError
        where nobody says in time what became of it."""
        event = cast("MemoryEvent", event_of(self._options, event_type, fields))
        stored = self._runner.run(self._service.apply(event, self._headers, self._timeout_s))
        if stored.receipt is None:
            raise self._silence(self._config.topics.receipts, f"{stored.position} is stored, and ")
        return stored.receipt

    def ask(self, query_type: str, fields: Mapping[str, Any]) -> "Response":
        """The response to a query. Raises InvalidRecord where it is refused, and RecallflowError where none comes."""
        query = cast("QueryEvent", event_of(self._options, query_type, fields))
        try:
            return self._runner.run(self._service.ask(query, self._headers, self._timeout_s))
        except QueryTimeout:
            if not self._far:
                raise
            raise self._silence(self._config.topics.responses) from None

    def _silence(self, topic: str, before: str = "") -> RecallflowError:
        servers = self._config.kafka.bootstrap_servers
        return SourceError(
            f"{before}nothing answered on {topic} within {self._timeout_s:g} s: is the engine running? "
            f"recallflow run --bootstrap-servers {servers} --state-dir DIR"
        )


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Engine]:
    """The engine that the options name. Raises UsageError where they name none, or two."""
    import asyncio

    chosen, origins = config_and_origins(options)
    if _is_behind_kafka(options, origins):
        if getattr(options, "control", None) is not None:
            raise UsageError("--control goes with --state-dir: before Kafka, decisions stand in the control topic")
        with asyncio.Runner() as runner, _behind_kafka(chosen, options.timeout_s) as service:
            yield Engine(runner, service, options, chosen, far=True)
    else:
        with asyncio.Runner() as runner, _over_directory(chosen, options) as service:
            yield Engine(runner, service, options, chosen, far=False)


def _is_behind_kafka(options: argparse.Namespace, origins: Mapping[str, str]) -> bool:
    """A flag says it; else Kafka is meant wherever its brokers are named, as an engine's settings name both."""
    given = vars(options)
    directory, brokers = given["state_dir"] is not None, given["kafka.bootstrap_servers"] is not None
    if directory and brokers:
        raise UsageError("--state-dir and --bootstrap-servers: give one, as they are two engines")
    if directory or brokers:
        return brokers
    if "kafka.bootstrap_servers" not in origins and "state_dir" not in origins:
        raise UsageError(NEITHER)
    return "kafka.bootstrap_servers" in origins


@contextmanager
def _over_directory(config: "Config", options: argparse.Namespace) -> "Iterator[Service]":
    from recallflow.decisions import History
    from recallflow.flows.local import open_local
    from recallflow.flows.settings import AuthSettings
    from recallflow.state.directory import describe

    if options.command != "remember":
        describe(config.named_state_dir())  # looking makes no directory
    decided = decisions(options) if "control" in options else History()
    # Who runs this process may read the files: there is nobody to keep out.
    try:
        with open_local(replace(config, auth=AuthSettings(mode="off")), decided) as service:
            yield service
    except StateInUse as error:
        remedy = "stop that process, give another --state-dir, or ask an engine on Kafka with --bootstrap-servers"
        raise StateInUse(error.holder, remedy) from None


@contextmanager
def _behind_kafka(config: "Config", timeout_s: float) -> "Iterator[Service]":
    """Raises SourceError at once where Kafka cannot be reached, or has no such topics."""
    from recallflow.connectors.kafka.service import KafkaService
    from recallflow.connectors.kafka.topic_reader import TopicReader
    from recallflow.flows.gateway import service_topics
    from recallflow.verbs.sendable import checked_wait

    checked_wait("--timeout-s", timeout_s)
    named = service_topics(config)
    with TopicReader(config.kafka, give_up_s=timeout_s) as reader:
        reader.partitions([topic for topic in named if isinstance(topic, str)])
    with closing(KafkaService(config.kafka, named, timeout_s)) as service:
        yield service
