"""The command line as tests call it: within this process, or as one of its own that can be talked to."""

import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli import main

GIVE_UP_S = 60  # a process that says nothing for so long hangs: it is killed, and the test that waits for it fails
SCRIPT = "import sys; from recallflow.cli import main; sys.exit(main())"


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end. In this process, as starting one costs more than most commands take."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = end.code if isinstance(end.code, int) else 1
        finally:
            logging.disable(logging.NOTSET)  # pipe keeps warnings off its stderr
        said = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command in a process of its own; all its streams are pipes."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str | Path, **environment: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"RUST_BACKTRACE": "0"} | environment,
            )
            watchdog = threading.Timer(GIVE_UP_S, process.kill)
            watchdog.start()
            stack.callback(_end, process, watchdog)
            return process

        yield begin


def _end(process: subprocess.Popen[bytes], watchdog: threading.Timer) -> None:
    watchdog.cancel()
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture(scope="session")
def jsonl() -> Callable[..., bytes]:
    """Events as the lines that go into a pipe or a log; bytes stay as they are."""

    def lines(*events: dict[str, Any] | bytes) -> bytes:
        return b"".join((e if isinstance(e, bytes) else orjson.dumps(e)) + b"\n" for e in events)

    return lines


@pytest.fixture(scope="session")
def parsed() -> Callable[[str | bytes], list[Any]]:
    """JSON lines → their values."""

    def values(text: str | bytes) -> list[Any]:
        return [orjson.loads(line) for line in text.splitlines()]

    return values
