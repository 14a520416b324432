"""The command line: `recallflow …`. Exit codes: 0, 1 failure, 2 usage."""

import argparse
import logging
import sys
from collections.abc import Sequence

from recallflow.cli import demo, dlq, inspect, kafka, memory, pipe, replay, schema
from recallflow.cli.output import native_stderr_aside
from recallflow.errors import EmbedderError, RecallflowError, UsageError
from recallflow.state import lock


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="recallflow", description="Event-driven memory for chat platforms.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for module in (demo, pipe, memory, replay, kafka, dlq, inspect, schema):
        module.add_to(commands)
    options = parser.parse_args(arguments)
    lock.command.set(f"recallflow {options.command} {getattr(options, 'action', '')}".rstrip())
    with native_stderr_aside():
        logging.basicConfig(stream=sys.stderr, format="recallflow: %(message)s", level=logging.WARNING)
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
    except RecallflowError as error:
        if getattr(options, "log_format", None) == "json":
            logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 one line: a collector reads each
        else:
            print(f"recallflow: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError | EmbedderError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stdout = None  # whoever read us is gone: nothing is left to flush to
        return 1
    return code
