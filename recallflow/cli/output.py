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

UNBROKEN = 1_000_000  # line length outside of terminals, where lines are not wrapped
# A terminal would execute escape sequences in stored text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ESCAPED = "recallflow.escaped"  # name of our encoding error handler


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return characters that an encoding lacks as JSON escapes, so that a line of JSON keeps its value."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


codecs.register_error(_ESCAPED, _escaped)


def accept_any_character() -> None:
    """Escape characters that standard output's encoding lacks, and replace invalid bytes of standard input."""
    for stream, errors in ((sys.stdout, _ESCAPED), (sys.stdin, "replace")):
        if isinstance(stream, io.TextIOWrapper):  # a program that runs a command may have put something else there
            stream.reconfigure(errors=errors)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the current BrokenPipeError again, for which `perform` ends the command quietly."""
        raise


def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output or standard error, without markup and highlighting. NO_COLOR, CLICOLOR=0
    and TERM=dumb disable colours; FORCE_COLOR and CLICOLOR_FORCE enable them in pipes."""
    environment = os.environ
    forced = bool(environment.get("FORCE_COLOR")) or environment.get("CLICOLOR_FORCE", "0") != "0"
    plain = bool(environment.get("NO_COLOR")) or (environment.get("CLICOLOR") == "0" and not forced)
    columns = width(sys.stderr if stderr else sys.stdout) or UNBROKEN
    return _Console(
        stderr=stderr, width=columns, force_terminal=forced or None, color_system=None if plain else "auto",
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip


def width(stream: IO[str] | None = None) -> int | None:
    """Return the width of a stream's terminal (default: standard output); without a terminal, COLUMNS or None."""
    if (given := os.environ.get("COLUMNS", "")).isdigit() and int(given):
        return int(given)
    stream = sys.stdout if stream is None else stream
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream.isatty() else None
    except (OSError, ValueError, AttributeError):  # no file, or a closed one
        return None


def heading(text: str) -> None:
    console().print(Text(clean(text), "bold"), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below the names of their columns, with numbers aligned to the right. Print nothing without rows."""
    if not (kept := [*rows]):
        return
    shown = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True, padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        numbers = all(isinstance(row[place], int | float) for row in kept)
        shown.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in kept:
        shown.add_row(*(Text(_cell(value)) for value in row))
    target = console()
    with target.capture() as captured:
        target.print(shown)
    for line in captured.get().splitlines():  # without the blanks that fill the last column
        print(line.rstrip())


def progress_bar(*columns: "ProgressColumn") -> "Progress":
    """Return a progress bar on standard error, which is shown on terminals only."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    target, name = console(stderr=True), TextColumn("{task.description}", markup=False)
    shown = (name, BarColumn(), TaskProgressColumn(), *columns, TimeRemainingColumn())
    return Progress(*shown, console=target, disable=not target.is_terminal, transient=True)


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
    """Print a value as one JSON line. Terminal control characters are escaped."""
    import orjson

    line = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", orjson.dumps(value).decode())
    print(line, file=sys.stderr if stderr else sys.stdout, flush=True)


def show(value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print a result as one JSON line, or as text."""
    if as_json:
        json_line(value)
    else:
        print(clean(text))


def clean(text: str) -> str:
    """Return text without terminal control characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def paragraph(text: str, indent: str = "") -> str:
    """Return text wrapped to the width of the terminal, or one line without a terminal."""
    shown = clean(" ".join(text.split()))
    return textwrap.fill(shown, width() or UNBROKEN, initial_indent=indent, subsequent_indent=indent)


def _cell(value: object) -> str:
    return "" if value is None else clean(f"{value:,}" if type(value) is int else str(value))


@contextlib.contextmanager
def hidden_native_stderr(*, shown: bool) -> Iterator[None]:
    """Hide the output of native code on file descriptor 2, unless it is to be shown. Bytewax prints a Rust panic
    whenever a step raises, before recallflow prints the error in one line. Python's own output on stderr still reaches
    the terminal."""
    if shown:
        yield
        return
    with Path(os.devnull).open("wb") as nowhere:
        terminal, python_stderr = os.dup(2), sys.stderr
        sys.stderr = os.fdopen(terminal, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            sys.stderr.close()
            sys.stderr = python_stderr
