"""The commands there are, and running one."""

import argparse
import logging
import sys
from collections.abc import Sequence

from recallflow.cli import (
    categories,
    demo,
    dlq,
    doctor,
    enrich,
    erase,
    graph,
    inspect,
    kafka,
    keys,
    mcp,
    memories,
    memory,
    person,
    pipe,
    quota,
    reembed,
    replay,
    schema,
    serve,
    tail,
)
from recallflow.cli.failures import failed, hooked
from recallflow.cli.log import in_json
from recallflow.cli.output import native_stderr_aside
from recallflow.state import lock
from recallflow.version import __version__

DEBUG = "show tracebacks, and what native code writes"


def commands() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="recallflow", description="Event-driven memory for chat platforms.")
    parser.set_defaults(debug=False)
    parser.add_argument("--version", action="version", version=f"recallflow {__version__}")
    added = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    first = demo, pipe, memory, memories, replay, graph, categories, quota, keys
    for module in (*first, kafka, enrich, serve, tail, mcp, doctor, reembed, dlq, inspect, person, erase, schema):
        module.add_to(added)
    _add_debug(parser)
    return parser


def perform(arguments: Sequence[str] | None) -> int:
    """Runs one command and returns its exit code."""
    options = commands().parse_args(arguments)
    lock.command.set(f"recallflow {options.command} {getattr(options, 'action', '')}".rstrip())
    with native_stderr_aside(shown=options.debug), hooked(options.debug):
        logging.basicConfig(stream=sys.stderr, format="recallflow: %(message)s", level=logging.WARNING)
        return _run(options)


def _add_debug(parser: argparse.ArgumentParser) -> None:
    """Adds --debug to a parser and to all below it, so that it may stand anywhere on the command line."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                _add_debug(command)


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stdout = None  # nobody reads any more, and Python would fail to flush at its end
        return 1
    except BaseException as error:  # noqa: BLE001 - a panic of native code is no Exception
        return failed(error, debug=options.debug, as_json=in_json())
    return code
