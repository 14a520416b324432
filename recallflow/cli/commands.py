"""List of the commands, and execution of one. Help and completion load all command modules, so these import no slow
libraries at their top."""

import argparse
import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recallflow.cli import demo, graph, kafka, memories, output, privacy, records, replay, services, state, tenants
from recallflow.cli.output import accept_any_character, hidden_native_stderr
from recallflow.cli.parser import Parser
from recallflow.credentials import MaskingFormatter
from recallflow.distribution import __version__, remedy_for
from recallflow.errors import EmbedderError, RecallflowError, UsageError
from recallflow.private_files import UMASK
from recallflow.process import raise_descriptor_limit

PACKAGE = "recallflow."


def report_failure(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Print or log the error that ends a command, and return the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        logging.getLogger(__name__).error("%s", line(error))
    else:
        output.error(line(error))
    to_install = isinstance(error, ModuleNotFoundError) and remedy_for(error)
    is_wrong_usage = isinstance(error, UsageError | EmbedderError) or getattr(error, "code", None) == "invalid_event"
    return 2 if to_install or is_wrong_usage else 1


def line(error: BaseException) -> str:
    match error:
        case BaseExceptionGroup() if len(error.exceptions) == 1:  # of an async library with one failed task
            return line(error.exceptions[0])
        case RecallflowError():
            text = str(error)
        case ModuleNotFoundError() if (to_install := remedy_for(error)) is not None:
            text = to_install
        case MemoryError():
            text = "out of memory: give the process more memory, or set a smaller --cache-bytes"
        case OSError() if error.filename is not None:
            text = f"cannot use {error.filename}: {error.strerror}"
        case OSError() if error.strerror is not None:
            text = f"system error: {error.strerror}"
        case _:
            problem = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
            text = f"a defect of recallflow: {problem}{_code_line(error)}; run again with --debug for the traceback"
    return " ".join(text.split())


def _code_line(error: BaseException) -> str:
    """Return the innermost line of recallflow in the traceback."""
    innermost_last = traceback.walk_tb(getattr(error, "__traceback__", None))  # None for an error of Kafka's client
    for frame, number in reversed([*innermost_last]):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(PACKAGE):
            return f" in {module.removeprefix(PACKAGE).replace('.', '/')}.py:{number}"
    return ""


@contextlib.contextmanager
def uncaught_errors_in_one_line(debug: bool) -> Iterator[None]:
    """Print one line for uncaught errors of threads and of Python's clean-up."""
    if debug:
        yield
        return
    before = threading.excepthook, sys.unraisablehook

    def report(uncaught: Any) -> None:
        if uncaught.exc_value is not None and not isinstance(uncaught.exc_value, SystemExit):
            print(f"recallflow: {line(uncaught.exc_value)}", file=sys.stderr, flush=True)

    threading.excepthook = sys.unraisablehook = report
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before


PIPE_CLOSED = 141  # exit code for a closed pipe, as shells report it
COMMANDS: tuple[Callable[[Any], None], ...] = (
    demo.add_demo, memories.add_memory, memories.add_memories, records.add_tail, services.add_pipe, replay.add_replay,
    graph.add_graph, tenants.add_categories, tenants.add_quota, tenants.add_keys, tenants.add_owners,
    services.add_completion, kafka.add_run_topics_enrich, services.add_serve, services.add_mcp,
    kafka.add_doctor, kafka.add_reembed, records.add_dlq, state.add_state, state.add_checkpoints, privacy.add_export,
    privacy.add_erase, services.add_schema,
)  # fmt: skip
# Heading of the help → its commands.
GROUPS = {
    "first steps": ("demo", "remember", "ask", "list", "show", "episodes", "forget", "tail"),
    "conversation logs": ("replay", "pipe"),
    "on Kafka": ("topics", "run", "enrich", "doctor", "dlq", "reembed"),
    "for other programs": ("serve", "mcp", "schema", "completion"),
    "tenants": ("keys", "quota", "categories", "owners", "graph"),
    "privacy": ("export", "erase"),
    "upkeep": ("state", "checkpoints"),
}


def commands() -> Parser:
    description = "Memory for chat platforms: stores conversations, and answers questions about them."
    examples = (
        "recallflow demo", 'recallflow remember "I moved to Porto" --state-dir memory --create',
        'recallflow ask "Where do I live?" --state-dir memory',
    )  # fmt: skip
    parser = Parser(prog="recallflow", description=description, groups=GROUPS, examples=examples)
    parser.set_defaults(debug=False)
    parser.add_argument("--version", action="version", version=f"recallflow {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for add in COMMANDS:
        add(subparsers)
    text = "show tracebacks and the output of native code"
    for one in (parser, *parser.subparsers()):  # so that --debug is accepted at any place
        one.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=text)
    return parser


def perform(arguments: Sequence[str] | None) -> int:
    accept_any_character()
    umask = os.umask(UMASK)  # sets the permissions of the files that RocksDB creates
    try:
        parser = commands()
        services.print_shell_completions(parser)
        options = parser.parse_args(arguments)
        with hidden_native_stderr(shown=options.debug), uncaught_errors_in_one_line(options.debug):
            handler = logging.StreamHandler(sys.stderr)
            # The commands print these warnings themselves.
            handler.addFilter(lambda record: record.name != "recallflow.flows.local")
            handler.setFormatter(MaskingFormatter("recallflow: %(message)s"))
            logging.basicConfig(handlers=[handler], level=logging.WARNING)
            code = _run(options)
    except SystemExit as end:  # of argparse, after help or an error in the command line
        code = end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        code = PIPE_CLOSED
    except OSError as error:  # the output of help is not writable
        code = _report_unwritable_output(error)
    finally:
        os.umask(umask)
    return _flush_output(code)


def _run(options: argparse.Namespace) -> int:
    from recallflow.state import lock

    raise_descriptor_limit()
    lock.command.set(f"recallflow {options.command} {getattr(options, 'action', '')}".rstrip())
    state_dir = Path(getattr(options, "state_dir", None) or ".")
    is_new = not state_dir.exists()
    try:
        code: int = options.run(options) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here, so that a full disk is handled like any other failure
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of native code is no Exception
        from recallflow.telemetry import logs_json

        return report_failure(error, debug=options.debug, as_json=logs_json())
    finally:
        if is_new and state_dir.exists():
            lock.remove_unused(state_dir)
    return code


def _flush_output(code: int) -> int:
    """Flush the output, whose pipe may be closed or disk full. Return the exit code. If the command failed before, no
    second error is reported."""
    is_lost = code == PIPE_CLOSED
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        is_lost = True
        code = PIPE_CLOSED if isinstance(error, BrokenPipeError) else code or _report_unwritable_output(error)
    if is_lost:  # the rest goes to the null device, because Python would fail to flush it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _report_unwritable_output(error: OSError) -> int:
    with contextlib.suppress(OSError):  # standard error may not be writable
        report_failure(error, debug=False, as_json=False)
    return 1
