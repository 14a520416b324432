"""Commands that can be killed, and the state that they leave."""

import contextlib
import io
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli import main

REFUSED = 1  # the exit status of a replay that refused lines


def pipe(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Pipe lines into a state directory, in this process. Return the responses."""
    given = io.TextIOWrapper(io.BytesIO(b"".join(line + b"\n" for line in lines)))
    said = io.TextIOWrapper(io.BytesIO())
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(sys, "stdin", given)
        code = main(["pipe", "--create", "--state-dir", str(state_dir)])
    logging.disable(logging.NOTSET)  # pipe keeps warnings off its stderr
    assert code == 0
    said.seek(0)
    return [orjson.loads(line) for line in said.buffer]


@pytest.fixture(scope="module")
def replay(start: Callable[..., subprocess.Popen[bytes]]) -> Callable[..., None]:
    """Replay a log with refused lines in a process of its own, because Bytewax would print later tracebacks again."""

    def run(state_dir: Path, log: Path, *options: str) -> None:
        engine = start("replay", log, "--embedded", "--create", "--state-dir", state_dir, *options)
        _, err = engine.communicate()
        assert engine.returncode == REFUSED, err

    return run
