"""`recallflow pipe`: events in on stdin, responses out on stdout."""

import argparse
import io
import logging
import sys
from typing import TYPE_CHECKING, cast

from recallflow.cli.options import ENGINE, GRAPH, LLM, RERANK, add_control, add_create, add_settings, config, decisions
from recallflow.cli.output import note
from recallflow.limits import RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from recallflow.connectors.lines import Delivery
    from recallflow.outputs import Answer, DeadLetter, Receipted

TOPIC = "stdin"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "pipe",
        help="JSON lines of events on stdin, one response line on stdout per query",
        description="Applies one event per stdin line, strictly in order. Each query line gives exactly one response "
        "line on stdout, in query order; refused lines go to stderr as JSON {line, error}.",
        examples=(
            "recallflow pipe --state-dir memory < conversations.jsonl",
            "recallflow pipe --state-dir new --create --receipts < conversations.jsonl",
        ),
    )
    parser.add_argument(
        "--receipts", action="store_true", help="on stdout too, in their places: what became of events with a receipt"
    )
    add_settings(parser, *ENGINE, *GRAPH, *RERANK, *LLM, "llm.query_timeout_ms")
    add_control(parser)
    add_create(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from recallflow.connectors.lines import PumpFeed, batches_of_lines
    from recallflow.flows.embedded import EmbeddedEngine, run_lines
    from recallflow.flows.settings import open_at_rest

    logging.disable(logging.WARNING)  # scripts parse stderr: it holds refused lines, or the one error that ends it all
    chosen = config(options)
    if (warning := chosen.enrichment.unavailable()) is not None:
        note(warning)
    with EmbeddedEngine.open(
        chosen.engine, chosen.state_dir, decisions(options), chosen.models, open_at_rest(chosen.encryption)
    ) as embedded:
        batches = batches_of_lines(_stdin(), RECORD_BYTES + 1)
        first: list[int] = []

        def open_feed(offset: int, _: "Callable[[bytes], object]") -> PumpFeed:
            first.append(offset)
            return PumpFeed(batches)

        run_lines(embedded, TOPIC, open_feed, _printer(first, receipts=options.receipts), rewinds=False)
    return 0


def _stdin() -> io.BufferedIOBase:
    """A file object of its own: at exit Python waits for sys.stdin, and the thread that reads may hold it for ever."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # no file: whoever runs us in a program of theirs has put something else there
        return cast(io.BufferedIOBase, sys.stdin.buffer)


def _printer(first: list[int], *, receipts: bool) -> "Delivery":
    """Prints outputs as they come; line numbers count from 1 in this run's input."""
    import orjson

    from recallflow.flows.embedded import rejection
    from recallflow.outputs import Answer, DeadLetter

    def deliver(offset: int, outputs: "list[Answer | Receipted | DeadLetter]") -> None:
        for output in outputs:
            if isinstance(output, DeadLetter):
                line = orjson.dumps(rejection(offset - first[0] + 1, output)).decode()
                print(line, file=sys.stderr, flush=True)
            elif receipts or isinstance(output, Answer):
                sys.stdout.buffer.write(output.body + b"\n")
                sys.stdout.buffer.flush()

    return deliver
