"""A flipped byte in any file of a state directory is found by `state verify`, or the directory starts unharmed."""

import contextlib
import io
import random
import shutil
from pathlib import Path

import orjson
import pytest

from recallflow.cli import main
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state.description import TOPICS
from recallflow.state.files import write_checked
from tests.event_log import hash_of, make_log

SETTINGS = Settings(partitions=2)
OWNERS = [{"tenant_id": "acme", "user_id": f"user{number}"} for number in range(4)]
EACH = 2  # offsets of each kind of file
# Kind → which files, and whether verify must notice each flip: of the others a start may do without.
KINDS = {
    "description": ("recallflow.json", True), "topics": (TOPICS, True), "tables": ("p*/*.sst", False),
    "current": ("p*/CURRENT", True), "manifest": ("p*/MANIFEST-*", False), "options": ("p*/OPTIONS-*", False),
    "identity": ("p*/IDENTITY", False), "config": ("p*/rocksdict-config.json", False), "words": ("p*/LOG*", False),
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with past versions, in tables, and a small file of a run on Kafka."""
    state_dir = tmp_path_factory.mktemp("filled") / "s"
    process(make_log(5, 400), SETTINGS, state_dir)
    process(make_log(6, 60), SETTINGS, state_dir)  # moves the writes of the run before into tables
    write_checked(state_dir / TOPICS, {"read": {"--memory-topic": "memories"}, "parts": 1})
    return state_dir


def verified(state_dir: Path) -> bool:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(["state", "verify", "--state-dir", str(state_dir)]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_byte_is_found_or_harmless(filled: Path, tmp_path: Path, kind: str) -> None:
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
            answers = process([ASK], SETTINGS, copy).responses
            assert [answer["status"] for answer in answers] == ["ok"], f"{damaged.name}, byte {offset}"
            assert hash_of(copy) == expected, f"{damaged.name}, byte {offset}"
        shutil.rmtree(copy)


ASK = orjson.dumps({"type": "user.stats"} | OWNERS[0])
