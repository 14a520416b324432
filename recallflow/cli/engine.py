"""Engine of a command: in this process on a state directory, or on Kafka."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from recallflow.cli.flags import ENGINE, add_kafka, add_owner, check_no_control, config_and_origins, decisions
from recallflow.errors import QueryTimeout, RecallflowError, SourceError, StateInUse, UsageError

if TYPE_CHECKING:  # the clients import slowly, and help does not need them
    import asyncio

    from recallflow.events import MemoryEvent
    from recallflow.flows.config import Config
    from recallflow.queries import QueryEvent
    from recallflow.responses import Receipt
    from recallflow.service import Service
    from recallflow.verbs.arguments import AnyEvent

TOPICS = ("topics.memory", "topics.queries", "topics.responses", "topics.receipts", "topics.dead_letters")
NO_ENGINE = "no engine given; give --state-dir DIR of a stopped one, or --bootstrap-servers HOST:PORT of a running one"


def add_engine(parser: argparse.ArgumentParser, *keys: str) -> None:
    """Add the flags of a command that uses an engine for one user. `keys` are additional settings."""
    parser.add_argument("--json", action="store_true", help="print the engine's responses as JSON, one object per line")
    add_owner(parser)
    text = "time limit on Kafka in seconds (default: 10)"
    parser.add_argument("--timeout-s", type=float, default=10.0, metavar="S", help=text)
    add_kafka(parser, *ENGINE, *keys, *TOPICS)


def event_of(options: argparse.Namespace, event_type: str, fields: Mapping[str, Any]) -> "AnyEvent":
    """Return an event or query of the user in the options. Raise InvalidRecord with the wrong fields."""
    from recallflow.verbs.arguments import ClientScope

    return ClientScope(options.tenant, options.environment).event(event_type, options.user, fields)


class CommandEngine:
    """Access of a command to an engine, for one user. Every call waits for its outcome."""

    def __init__(
        self, runner: "asyncio.Runner", service: "Service", options: argparse.Namespace, config: "Config", remote: bool
    ) -> None:
        """`remote` means that the engine is another process on Kafka, which may be stopped."""
        self._runner, self._service, self._options, self._config = runner, service, options, config
        self._is_remote = remote
        # In this process no message can be lost, so a slow call is waited for.
        self._timeout_s: float = options.timeout_s if remote else 3_600.0
        self._headers = config.auth.credentials

    def send(self, event_type: str, fields: Mapping[str, Any]) -> "Receipt":
        """Send an event; return its receipt. Raise InvalidRecord if it is refused, RecallflowError if no receipt comes
        in time."""
        event = cast("MemoryEvent", event_of(self._options, event_type, fields))
        stored = self._runner.run(self._service.apply(event, self._headers, self._timeout_s))
        if stored.receipt is None:
            raise self._no_answer(self._config.topics.receipts, f"{stored.position} is stored, and ")
        return stored.receipt

    def ask(self, query_type: str, fields: Mapping[str, Any], *, takes_errors: bool = False) -> dict[str, Any]:
        """Return the response to a query as JSON. Raise InvalidRecord if the query is refused, RecallflowError if no
        response comes in time, and for an error response unless `takes_errors`."""
        query = cast("QueryEvent", event_of(self._options, query_type, fields))
        try:
            response = self._runner.run(self._service.ask(query, self._headers, self._timeout_s))
        except QueryTimeout as error:
            raise (self._no_answer(self._config.topics.responses) if self._is_remote else error) from None
        if response.error is not None and not takes_errors:
            raise RecallflowError(response.error.message)
        return response.model_dump(mode="json", exclude_unset=True)

    def _no_answer(self, topic: str, before: str = "") -> RecallflowError:
        command = f"recallflow run --bootstrap-servers {self._config.kafka.bootstrap_servers} --state-dir DIR"
        problem = f"{before}no answer on {topic} within {self._timeout_s:g} s"
        return SourceError(f"{problem}: is the engine running? {command}")


@contextmanager
def open_engine(options: argparse.Namespace) -> Iterator[CommandEngine]:
    """Open the engine of the options. Raise UsageError if they name no engine, or two."""
    import asyncio

    chosen, origins = config_and_origins(options)
    if is_remote := _is_behind_kafka(options, origins):
        check_no_control(options)
    opening = _behind_kafka(chosen, options.timeout_s) if is_remote else _over_directory(chosen, options)
    with asyncio.Runner() as runner, opening as service:
        yield CommandEngine(runner, service, options, chosen, is_remote)


def _is_behind_kafka(options: argparse.Namespace, origins: Mapping[str, str]) -> bool:
    """Return whether the engine is on Kafka. Flags decide; without one, configured brokers come before a directory."""
    has_directory, has_brokers = (vars(options)[key] is not None for key in ("state_dir", "kafka.bootstrap_servers"))
    if has_directory and has_brokers:
        raise UsageError("--state-dir and --bootstrap-servers name two engines; give one of them")
    if has_directory or has_brokers:
        return has_brokers
    if "kafka.bootstrap_servers" not in origins and "state_dir" not in origins:
        raise UsageError(NO_ENGINE)
    return "kafka.bootstrap_servers" in origins


@contextmanager
def _over_directory(config: "Config", options: argparse.Namespace) -> "Iterator[Service]":
    from recallflow.control import ControlHistory
    from recallflow.flows.local import open_local
    from recallflow.flows.settings import AuthSettings
    from recallflow.state.description import describe

    if options.command != "remember":
        describe(config.named_state_dir())  # only `remember` may create the directory
    history = decisions(options) if "control" in options else ControlHistory()
    # The user of this process can read the files anyway, so no key is checked.
    try:
        with open_local(replace(config, auth=AuthSettings(mode="off")), history) as service:
            yield service
    except StateInUse as error:
        remedy = "stop that process, give another --state-dir, or ask an engine on Kafka with --bootstrap-servers"
        raise StateInUse(error.holder, remedy) from None


@contextmanager
def _behind_kafka(config: "Config", timeout_s: float) -> "Iterator[Service]":
    """Open a service on Kafka. Raise SourceError at once if Kafka is unreachable or lacks a topic."""
    from recallflow.connectors.kafka.service import KafkaService
    from recallflow.connectors.kafka.topic_reader import TopicReader
    from recallflow.flows.gateway import service_topics
    from recallflow.verbs.arguments import checked_wait

    checked_wait("--timeout-s", timeout_s)
    topics = service_topics(config)
    with TopicReader(config.kafka, give_up_s=timeout_s) as reader:
        reader.partitions([topic for topic in topics if isinstance(topic, str)])
    with closing(KafkaService(config.kafka, topics, timeout_s)) as service:
        yield service
