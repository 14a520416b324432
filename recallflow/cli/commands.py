"""The commands there are, and running one.

No module of a command imports at its top what takes long to: help and completion load them all."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence

from recallflow.cli import (
    categories,
    checkpoints,
    completion,
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
    owners,
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
from recallflow.cli.output import native_stderr_aside, take_any_character
from recallflow.cli.parser import Parser
from recallflow.descriptors import raise_limit
from recallflow.masking import MaskingFormatter
from recallflow.private_files import UMASK
from recallflow.version import __version__

DEBUG = "show tracebacks, and what native code writes"
PIPE_CLOSED = 141  # what shells report of a program that nobody reads any more
# Heading of help → the commands below it.
GROUPS = {
    "the first ten minutes": ("demo", "remember", "ask", "list", "show", "episodes", "forget", "tail"),
    "conversation logs": ("replay", "pipe"),
    "on Kafka": ("topics", "run", "enrich", "doctor", "dlq", "reembed"),
    "for other programs": ("serve", "mcp", "schema", "completion"),
    "what tenants may": ("keys", "quota", "categories", "owners", "graph"),
    "privacy": ("export", "erase"),
    "upkeep": ("state", "checkpoints"),
}


def commands() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="recallflow",
        description="Memory for chat platforms: it remembers conversations, and answers questions.",
        groups=GROUPS,
        examples=(
            "recallflow demo",
            'recallflow remember "I moved to Porto" --state-dir memory --create',
            'recallflow ask "Where do I live?" --state-dir memory',
        ),
    )
    parser.set_defaults(debug=False)
    parser.add_argument("--version", action="version", version=f"recallflow {__version__}")
    added = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    first = demo, memory, memories, tail, pipe, replay, graph, categories, quota, keys, owners, completion
    then = kafka, enrich, serve, mcp, doctor, reembed, dlq, inspect, checkpoints, person, erase, schema
    for module in (*first, *then):
        module.add_to(added)
    _add_debug(parser)
    return parser


def perform(arguments: Sequence[str] | None) -> int:
    """Runs one command and returns its exit code."""
    take_any_character()
    umask = os.umask(UMASK)  # RocksDB creates its files by it
    try:
        parser = commands()  # which has the console write, though nothing yet
        completion.complete(parser)
        options = parser.parse_args(arguments)
        with native_stderr_aside(shown=options.debug), hooked(options.debug):
            handler = logging.StreamHandler(sys.stderr)
            handler.addFilter(lambda record: record.name != "recallflow.flows.local")  # the command itself says it
            handler.setFormatter(MaskingFormatter("recallflow: %(message)s"))
            logging.basicConfig(handlers=[handler], level=logging.WARNING)
            code = _run(options)
    except SystemExit as end:  # argparse, after help or a mistake
        code = end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        code = PIPE_CLOSED
    except OSError as error:  # nothing can be written where help is to go
        code = _unwritten(error)
    finally:
        os.umask(umask)
    return _flushed(code)


def _add_debug(parser: argparse.ArgumentParser) -> None:
    """Adds --debug to a parser and to all below it, so that it may stand anywhere on the command line."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                _add_debug(command)


def _run(options: argparse.Namespace) -> int:
    from recallflow.state import lock

    raise_limit()
    lock.command.set(f"recallflow {options.command} {getattr(options, 'action', '')}".rstrip())
    try:
        code: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a disk that is full ends the command like any other failure
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of native code is no Exception
        from recallflow.cli.log import in_json

        return failed(error, debug=options.debug, as_json=in_json())
    return code


def _flushed(code: int) -> int:
    """The exit code, once what was printed is out, or can go nowhere: whoever read it may have had enough, and a disk
    may be full, which has been said of a command that failed."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
        _drop()
    except OSError as error:
        code = code or _unwritten(error)
        _drop()
    else:
        if code == PIPE_CLOSED:
            _drop()
    return code


def _unwritten(error: OSError) -> int:
    with contextlib.suppress(OSError):  # standard error may be where nothing can be written
        failed(error, debug=False, as_json=False)
    return 1


def _drop() -> None:
    """Has what is still to be printed go nowhere, or Python would fail to flush it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
