"""Commands in this process, on pipes, files and terminals, and the events that they read and write."""

import contextlib
import os
import pty
import re
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

import orjson

from recallflow.cli import main
from recallflow.cli.commands import commands

Cli = Callable[..., CompletedProcess[str]]
Start = Callable[..., Popen[bytes]]
PARSER = commands()  # it takes 30 ms to build


def event(event_type: str, at_ms: int = 0, /, **fields: Any) -> dict[str, Any]:
    return {"type": event_type, "tenant_id": "acme", "user_id": "ann", "timestamp": at_ms} | fields


def jsonl(*events: dict[str, Any] | bytes) -> bytes:
    """Return events as lines. Bytes are a line already."""
    return b"".join((one if isinstance(one, bytes) else orjson.dumps(one)) + b"\n" for one in events)


def parsed(text: str | bytes) -> list[Any]:
    return [orjson.loads(line) for line in text.splitlines()]


def assert_error(done: CompletedProcess[str], code: int, token: str) -> None:
    """Check the exit code, and that standard error is one line that names the problem, without other output."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert re.fullmatch(r"recallflow: [^\n]+\n", done.stderr), done.stderr
    assert token in done.stderr


@contextlib.contextmanager
def streams(stdin: int, stdout: int, stderr: int, encoding: str = "utf-8", *, buffered: bool = True) -> Iterator[None]:
    """Connect the standard streams of this process to other file descriptors, and flush them at the end."""
    kept, before = [os.dup(number) for number in range(3)], (sys.stdin, sys.stdout, sys.stderr)
    for number, opened in enumerate((stdin, stdout, stderr)):
        os.dup2(opened, number)
    sys.stdin = os.fdopen(0, encoding=encoding, closefd=False)
    output = os.fdopen(1, "w", encoding=encoding, closefd=False)
    output.reconfigure(write_through=not buffered)
    sys.stdout = output
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False)
    try:
        yield
        output.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for number, opened in enumerate(kept):
            os.dup2(opened, number)
            os.close(opened)


def on_files(
    *words: str | Path, stdin: bytes = b"", stdout: int | None = None, encoding: str = "utf-8", buffered: bool = True
) -> CompletedProcess[bytes]:
    """Run a command on real file descriptors. Its output is in the result, unless it goes to `stdout`."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        target = out.fileno() if stdout is None else stdout
        with streams(given.fileno(), target, err.fileno(), encoding, buffered=buffered):
            code = main([str(word) for word in words])
        out.seek(0)
        err.seek(0)
        return CompletedProcess(words, code, out.read(), err.read())


@contextlib.contextmanager
def terminal(columns: int, typed: bytes = b"") -> Iterator[list[str]]:
    """Connect the standard streams to a terminal. Its text is the list's only item afterwards."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    os.write(ours, typed)
    pieces: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # raised when the other side is closed
            while piece := os.read(ours, 65_536):
                pieces.append(piece)

    reader, shown = threading.Thread(target=read), list[str]()
    reader.start()
    try:
        with streams(theirs, theirs, theirs):
            yield shown
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    shown.append(b"".join(pieces).decode().replace("\r\n", "\n"))


def on_terminal(columns: int, *words: str | Path, typed: bytes = b"") -> str:
    with terminal(columns, typed) as shown:
        main([str(word) for word in words])
    return shown[0]


@contextlib.contextmanager
def closed_reader() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
