"""Commands that can be killed, and the state that they leave."""

import contextlib
import io
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli import main


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
