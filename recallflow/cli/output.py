"""What a person sees."""

import contextlib
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterator

WIDTH = 80


@contextlib.contextmanager
def native_stderr_aside() -> Iterator[None]:
    """Keeps what native code writes to file descriptor 2 for an unexpected end.

    Bytewax prints a Rust panic whenever a step raises, even where the error is one of ours that is about to be told in
    one line. Python's own stderr goes on to the terminal.
    """
    with tempfile.TemporaryFile() as aside, contextlib.ExitStack() as stack:
        shown = os.dup(2)
        python_stderr, sys.stderr = (
            sys.stderr,
            os.fdopen(shown, "w", encoding="utf-8", errors="backslashreplace", buffering=1),
        )
        os.dup2(aside.fileno(), 2)

        def restore() -> None:
            sys.stderr.flush()
            os.dup2(shown, 2)
            sys.stderr.close()
            sys.stderr = python_stderr

        stack.callback(restore)
        try:
            yield
        except BaseException:
            aside.seek(0)
            sys.stderr.write(aside.read().decode(errors="replace"))
            raise


def paragraph(text: str, indent: str = "", first: str | None = None) -> str:
    """Text wrapped to the terminal's 80 columns."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent
    )


# What each column of the semantic signal says, for people.
REASONS = {
    "dense": "similar meaning",
    "word": "similar words",
    "word_before": "similar words just before",
    "window": "shared words close by",
    "answers": "answers a question like it",
    "speaker": "said by the one named",
    "subject": "said by the one named first",
    "date": "date asked about",
    "when": "tells a time",
    "opens": "opens the conversation",
    "recency": "recent",
}


def reasons(signals: list[str]) -> str:
    """Signals of `why_included` in words."""
    return ", ".join(dict.fromkeys(REASONS.get(signal, signal) for signal in signals))
