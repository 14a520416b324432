"""What a person sees."""

import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

WIDTH = 80


@contextlib.contextmanager
def native_stderr_aside(*, shown: bool) -> Iterator[None]:
    """Keeps what native code writes to file descriptor 2 from the terminal, unless it is to be shown.

    Bytewax prints a Rust panic whenever a step raises, before recallflow prints the error in one line. What Python
    writes to stderr still reaches the terminal.
    """
    if shown:
        yield
        return
    with Path(os.devnull).open("wb") as nowhere:
        terminal = os.dup(2)
        python_stderr, sys.stderr = (
            sys.stderr,
            os.fdopen(terminal, "w", encoding="utf-8", errors="backslashreplace", buffering=1),
        )
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            sys.stderr.close()
            sys.stderr = python_stderr


def paragraph(text: str, indent: str = "", first: str | None = None) -> str:
    """Text wrapped to the terminal's 80 columns."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent
    )
