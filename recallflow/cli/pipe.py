"""`recallflow pipe`: events on stdin, responses on stdout."""

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


def add_pipe(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "pipe",
        help="read events from stdin, write responses to stdout",
        description="Applies one event per stdin line, strictly in order. Each query line gives exactly one response "
        "line on stdout, in query order; refused lines go to stderr as JSON {line, error}.",
        examples=(
            "recallflow pipe --state-dir memory < conversations.jsonl",
            "recallflow pipe --state-dir new --create --receipts < conversations.jsonl",
        ),
    )
    parser.add_argument(
        "--receipts", action="store_true", help="also print the receipts of events that request one, in order"
    )
    add_settings(parser, *ENGINE, *GRAPH, *RERANK, *LLM, "llm.query_timeout_ms")
    add_control(parser)
    add_create(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from recallflow.connectors.lines import PumpFeed, batches_of_lines
    from recallflow.flows.embedded import EmbeddedEngine, run_lines
    from recallflow.flows.settings import open_at_rest

    logging.disable(logging.WARNING)  # scripts parse stderr: only refused lines, or the final error
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
    """Return a separate file object: at exit Python waits for sys.stdin, and the reader thread may block on it for
    ever."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # no file: a program that embeds the command has replaced sys.stdin
        return cast(io.BufferedIOBase, sys.stdin.buffer)


def _printer(first: list[int], *, receipts: bool) -> "Delivery":
    """Return a function that prints outputs as they come; line numbers count this run's input from 1."""
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
