"""What a person is told of a failure: one line, with the way out; a traceback only for who asks for it."""

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from recallflow.errors import EmbedderError, RecallflowError, UsageError

PACKAGE = "recallflow."


def failed(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Tells of an error that ends the command, and returns the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        logging.getLogger(__name__).error("%s", line(error))
    else:
        print(f"recallflow: {line(error)}", file=sys.stderr, flush=True)
    return 2 if isinstance(error, UsageError | EmbedderError) else 1


def line(error: BaseException) -> str:
    """What to say of an error, in one line."""
    match error:
        case RecallflowError():
            said = str(error)
        case MemoryError():
            said = "out of memory: give the process more, or a smaller --cache-bytes"
        case OSError() if error.filename is not None:
            said = f"cannot use {error.filename}: {error.strerror}"
        case OSError() if error.strerror is not None:
            said = f"the system refuses: {error.strerror}"
        case _:
            what = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
            said = f"a defect of recallflow: {what}{_where(error)}; run again with --debug for the traceback"
    return " ".join(said.split())


def _where(error: BaseException) -> str:
    """The innermost line of ours that the error came through."""
    thrown = getattr(error, "__traceback__", None)  # Kafka's client throws an error of its own that is no exception
    for frame, number in reversed([*traceback.walk_tb(thrown)]):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(PACKAGE):
            return f" in {module.removeprefix(PACKAGE).replace('.', '/')}.py:{number}"
    return ""


@contextlib.contextmanager
def hooked(debug: bool) -> Iterator[None]:
    """One line, too, for what goes wrong where nobody can catch it: on a thread, and where Python cleans up."""
    if debug:
        yield
        return
    before = threading.excepthook, sys.unraisablehook

    def tell(thrown: Any) -> None:
        if thrown.exc_value is not None and not isinstance(thrown.exc_value, SystemExit):
            print(f"recallflow: {line(thrown.exc_value)}", file=sys.stderr, flush=True)

    threading.excepthook = sys.unraisablehook = tell
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before
