"""What a person reads of a failure: one line, with the way out; with --debug the traceback as well."""

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from recallflow.cli import output
from recallflow.errors import EmbedderError, RecallflowError, UsageError
from recallflow.extras import way_out

PACKAGE = "recallflow."


def failed(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Prints or logs the error that ends a command, and returns the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        logging.getLogger(__name__).error("%s", line(error))
    else:
        output.error(line(error))
    to_install = isinstance(error, ModuleNotFoundError) and way_out(error)
    return 2 if to_install or isinstance(error, UsageError | EmbedderError) else 1


def line(error: BaseException) -> str:
    """An error in one line."""
    match error:
        case BaseExceptionGroup() if len(error.exceptions) == 1:  # of a library's tasks, of which one failed
            return line(error.exceptions[0])
        case RecallflowError():
            text = str(error)
        case ModuleNotFoundError() if (to_install := way_out(error)) is not None:
            text = to_install
        case MemoryError():
            text = "out of memory: give the process more, or a smaller --cache-bytes"
        case OSError() if error.filename is not None:
            text = f"cannot use {error.filename}: {error.strerror}"
        case OSError() if error.strerror is not None:
            text = f"the system refuses: {error.strerror}"
        case _:
            what = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
            text = f"a defect of recallflow: {what}{_where(error)}; run again with --debug for the traceback"
    return " ".join(text.split())


def _where(error: BaseException) -> str:
    """The innermost line of recallflow that the error came through."""
    thrown = getattr(error, "__traceback__", None)  # Kafka's client throws an error of its own that is no exception
    for frame, number in reversed([*traceback.walk_tb(thrown)]):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(PACKAGE):
            return f" in {module.removeprefix(PACKAGE).replace('.', '/')}.py:{number}"
    return ""


@contextlib.contextmanager
def hooked(debug: bool) -> Iterator[None]:
    """Prints one line as well for an error that nobody can catch: on a thread, and while Python cleans up."""
    if debug:
        yield
        return
    before = threading.excepthook, sys.unraisablehook

    def report(thrown: Any) -> None:
        if thrown.exc_value is not None and not isinstance(thrown.exc_value, SystemExit):
            print(f"recallflow: {line(thrown.exc_value)}", file=sys.stderr, flush=True)

    threading.excepthook = sys.unraisablehook = report
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before
