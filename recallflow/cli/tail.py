"""`recallflow tail`: what goes into the topics and comes out of them, as it happens."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from recallflow.cli.options import add_kafka, config
from recallflow.cli.output import console, json_line
from recallflow.cli.tail_text import line_of, record_of
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.connectors.kafka.topic_reader import TopicReader
    from recallflow.flows.settings import TopicNames

# What may be followed → whether it goes in, to an engine.
FOLLOWED = {"memory": True, "queries": True, "responses": False, "receipts": False, "dead_letters": False}
WAIT_S = 0.5


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "tail",
        help="follow what goes into the topics and comes out of them",
        description="Prints a line for each record of the topics, as it comes: memory events and queries in, "
        "responses, receipts and dead letters out. Ctrl-C ends it.",
        examples=("recallflow tail --from beginning --count 2 --bootstrap-servers localhost:9092",),
    )
    parser.add_argument("--tenant", metavar="ID", help="only this tenant's (default: all)")
    parser.add_argument("--user", metavar="ID", help="only this user's; with --tenant")
    names = [name.replace("_", "-") for name in FOLLOWED]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="WHAT", help=f"{', '.join(names)}; may be given often"
    )
    parser.add_argument(
        "--from", dest="begin", choices=("beginning", "now"), default="now", help="where to begin (default: now)"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after so many")
    parser.add_argument("--json", action="store_true", help="print JSON, one record a line")
    add_kafka(parser, *(f"topics.{name}" for name in FOLLOWED))
    parser.set_defaults(run=run_tail)


def run_tail(options: argparse.Namespace) -> int:
    if options.user is not None and options.tenant is None:
        raise UsageError("--user: give --tenant too, as users of two tenants may have one name")
    if options.count is not None and options.count < 1:
        raise UsageError("--count: give 1 or more")
    from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader

    chosen = config(options)
    with suppress(KeyboardInterrupt), TopicReader(chosen.kafka, UNCOMMITTED) as reader:
        for message in _followed(reader, _topics(chosen.topics, options.only), options):
            _print(message, chosen.topics, options)
    return 0


def _topics(topics: "TopicNames", only: Sequence[str] | None) -> list[str]:
    return [getattr(topics, name) for name in FOLLOWED if only is None or name.replace("_", "-") in only]


def _followed(reader: "TopicReader", topics: Sequence[str], options: argparse.Namespace) -> Iterator[Any]:
    """Records about whom the options name, as they come; from the beginning, each partition in its order."""
    for (topic, number), (begin, end) in reader.spans(topics).items():
        reader.add(topic, number, begin if options.begin == "beginning" else end)
    left = options.count
    while left is None or left > 0:
        message = reader.read(WAIT_S)
        if message is not None and _is_wanted(message.key() or b"", options):
            left = None if left is None else left - 1
            yield message


def _is_wanted(key: bytes, options: argparse.Namespace) -> bool:
    if options.tenant is None:
        return True
    if options.user is None:
        return key.startswith(f"{options.tenant}/".encode())
    return key == f"{options.tenant}/{options.user}".encode()


def _print(message: Any, topics: "TopicNames", options: argparse.Namespace) -> None:
    if options.json:
        json_line(record_of(message))
        return
    name = next(name for name in FOLLOWED if getattr(topics, name) == message.topic())
    console().print(line_of(message, name, goes_in=FOLLOWED[name]), no_wrap=True, overflow="ellipsis")
