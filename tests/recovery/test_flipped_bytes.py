"""A byte of any file of a state directory is another one: either verify says so, or the directory starts, and holds
what it held."""

import contextlib
import io
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli import main
from recallflow.state.directory import BEGIN, REWIND
from recallflow.state.files import write_checked

Pipe = Callable[[Path, Sequence[bytes]], list[dict[str, Any]]]

OWNERS = [{"tenant_id": "acme", "user_id": f"user{number}"} for number in range(4)]
EACH = 4  # offsets of each kind of file
# Kind → which files, and whether verify must notice each flip: of the others a start may do without.
KINDS = {
    "description": ("recallflow.json", True),
    "begin": (BEGIN, True),
    "rewind": (REWIND, True),
    "recovery store": ("recovery/*.sqlite3", False),
    "tables": ("p*/*.sst", False),
    "current": ("p*/CURRENT", True),
    "manifest": ("p*/MANIFEST-*", False),
    "options": ("p*/OPTIONS-*", False),
    "identity": ("p*/IDENTITY", False),
    "config": ("p*/rocksdict-config.json", False),
    "words": ("p*/LOG*", False),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, pipe: Pipe, make_log: Callable[..., list[bytes]]) -> Path:
    """A directory with past versions, in tables, and the small files of a run on Kafka."""
    state_dir = tmp_path_factory.mktemp("filled") / "s"
    pipe(state_dir, make_log(5, 400))
    pipe(state_dir, make_log(6, 60))  # what the run before wrote is in tables now
    write_checked(
        state_dir / BEGIN, {"outputs": {"responses:00000": 7}, "queries": {"queries:00000": 3}, "given_up": {}}
    )
    write_checked(state_dir / REWIND, {"memories:0": 17})
    return state_dir


def verified(state_dir: Path) -> bool:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(["state", "verify", "--state-dir", str(state_dir)]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_is_found_or_does_no_harm(
    filled: Path, tmp_path: Path, pipe: Pipe, hash_of: Callable[[Path], str], kind: str
) -> None:
    pattern, always = KINDS[kind]
    draw = random.Random(kind)
    files = [file for file in sorted(filled.glob(pattern)) if file.stat().st_size]
    assert files
    shutil.copytree(filled, tmp_path / "whole")
    assert verified(tmp_path / "whole")
    expected = hash_of(tmp_path / "whole")
    for number in range(EACH):
        file = draw.choice(files)
        offset = draw.randrange(file.stat().st_size)
        copy = tmp_path / str(number)
        shutil.copytree(filled, copy)
        damaged = copy / file.relative_to(filled)
        data = bytearray(damaged.read_bytes())
        data[offset] ^= draw.choice((0x01, 0x10, 0x80, 0xFF))
        damaged.write_bytes(data)
        if verified(copy):
            assert not always, f"{damaged.name}, byte {offset}"
            assert [answer["status"] for answer in pipe(copy, [ASK])] == ["ok"], f"{damaged.name}, byte {offset}"
            assert hash_of(copy) == expected, f"{damaged.name}, byte {offset}"
        shutil.rmtree(copy)


ASK = orjson.dumps({"type": "user.stats"} | OWNERS[0])
