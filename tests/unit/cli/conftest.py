"""The command line as tests call it within this process. As one of its own, which can be talked to: `start`."""

import io
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli import main


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
