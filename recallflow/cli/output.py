"""Output for people: wrapped to the terminal, coloured where supported, and plain in pipes."""

import codecs
import contextlib
import io
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

UNWRAPPED = 1_000_000  # line length outside of terminals, where lines are not wrapped
# Control characters. A terminal would execute escape sequences in stored text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ESCAPED = "recallflow.escaped"  # name of `_escaped` as a handler of encoding errors


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return the characters that an encoding lacks as JSON escapes, so that a line of JSON keeps its value."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


codecs.register_error(_ESCAPED, _escaped)


def accept_any_character() -> None:
    """Escape characters that standard output's encoding lacks, and replace invalid bytes of standard input."""
    for stream, errors in ((sys.stdout, _ESCAPED), (sys.stdin, "replace")):
        if isinstance(stream, io.TextIOWrapper):  # not an object of a program that runs the command
            stream.reconfigure(errors=errors)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the current BrokenPipeError again: `perform` then ends the command without a message."""
        raise


def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output or standard error, without markup and highlighting. NO_COLOR, CLICOLOR=0
    and TERM=dumb disable colours; FORCE_COLOR and CLICOLOR_FORCE enable them in pipes."""
    environment = os.environ
    has_forced_colours = bool(environment.get("FORCE_COLOR")) or environment.get("CLICOLOR_FORCE", "0") != "0"
    is_plain = bool(environment.get("NO_COLOR")) or (environment.get("CLICOLOR") == "0" and not has_forced_colours)
    columns = width(sys.stderr if stderr else sys.stdout) or UNWRAPPED
    return _Console(
        stderr=stderr, width=columns, force_terminal=has_forced_colours or None,
        color_system=None if is_plain else "auto", markup=False, highlight=False, emoji=False,
    )  # fmt: skip


def width(stream: IO[str] | None = None) -> int | None:
    """Return the width of a stream's terminal (default: standard output); without a terminal, COLUMNS or None."""
    if (columns := os.environ.get("COLUMNS", "")).isdigit() and int(columns):
        return int(columns)
    stream = sys.stdout if stream is None else stream
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream.isatty() else None
    except (OSError, ValueError, AttributeError):  # no file, or a closed one
        return None


def heading(text: str) -> None:
    console().print(Text(clean(text), "bold"), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below the names of their columns, with numbers aligned to the right. Print nothing without rows."""
    if not (rows := [*rows]):
        return
    layout = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        is_numeric = all(isinstance(row[number], int | float) for row in rows)
        layout.add_column(name, justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        cells = ("" if value is None else f"{value:,}" if type(value) is int else str(value) for value in row)
        layout.add_row(*(Text(clean(cell)) for cell in cells))
    target = console()
    with target.capture() as captured:
        target.print(layout)
    for line in captured.get().splitlines():  # without the blanks that fill the last column
        print(line.rstrip())


def progress_bar(*columns: "ProgressColumn") -> "Progress":
    """Return a progress bar on standard error, which is shown on terminals only."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    target, name = console(stderr=True), TextColumn("{task.description}", markup=False)
    every = (name, BarColumn(), TaskProgressColumn(), *columns, TimeRemainingColumn())
    return Progress(*every, console=target, disable=not target.is_terminal, transient=True)


def note(text: str, style: str = "dim") -> None:
    """Print a remark on standard error."""
    console(stderr=True).print(Text.assemble(("recallflow:", style), f" {clean(text)}"), soft_wrap=True)


def error(text: str) -> None:
    note(text, "bold red")


def confirmed(question: str) -> bool:
    """Ask on standard error, and return whether the user agrees."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def json_line(value: Any, *, stderr: bool = False) -> None:
    """Print a value as one line of JSON. Control characters are escaped."""
    import orjson

    line = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", orjson.dumps(value).decode())
    print(line, file=sys.stderr if stderr else sys.stdout, flush=True)


def show(value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        json_line(value)
    else:
        print(clean(text))


def clean(text: str) -> str:
    """Return text without terminal control characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def paragraph(text: str, indent: str = "") -> str:
    """Return text wrapped to the width of the terminal, or one line without a terminal."""
    line = clean(" ".join(text.split()))
    return textwrap.fill(line, width() or UNWRAPPED, initial_indent=indent, subsequent_indent=indent)


@contextlib.contextmanager
def hidden_native_stderr(*, shown: bool) -> Iterator[None]:
    """Hide what native code writes to file descriptor 2, unless `shown`. Bytewax prints a Rust panic whenever a step
    raises, before recallflow prints the error in one line. Python's own output still reaches standard error."""
    if shown:
        yield
        return
    with Path(os.devnull).open("wb") as null_device:
        terminal, python_stderr = os.dup(2), sys.stderr
        sys.stderr = os.fdopen(terminal, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        os.dup2(null_device.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            sys.stderr.close()
            sys.stderr = python_stderr
