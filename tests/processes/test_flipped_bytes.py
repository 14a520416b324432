"""A flipped byte in any file of a state directory is found by `state verify`, or the directory starts unharmed."""

import contextlib
import io
import pickle
import random
import shutil
import sqlite3
from pathlib import Path

import orjson
import pytest

from recallflow.checked import Checked
from recallflow.cli import main
from recallflow.errors import StorageError
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state.files import write_checked
from recallflow.state.sources import TOPICS
from tests.dataflow import through_dataflow
from tests.event_log import hash_of, make_log

SETTINGS = Settings(partitions=2)
OWNERS = [{"tenant_id": "acme", "user_id": f"user{number}"} for number in range(4)]
EACH = 2  # offsets of each kind of file
# Kind → which files, and whether verify must notice each flip: of the others a start may do without.
KINDS = {
    "description": ("recallflow.json", True),
    "topics": (TOPICS, True),
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
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with past versions, in tables, and a small file of a run on Kafka."""
    state_dir = tmp_path_factory.mktemp("filled") / "s"
    through_dataflow(make_log(5, 400), SETTINGS, state_dir)
    through_dataflow(make_log(6, 60), SETTINGS, state_dir)  # moves the writes of the run before into tables
    write_checked(state_dir / TOPICS, {"read": {"--memory-topic": "memories"}, "parts": 1})
    return state_dir


def snapshots(state_dir: Path) -> list[tuple[int, bytes]]:
    """Return the row and the value of each snapshot in the recovery store."""
    with contextlib.closing(sqlite3.connect(store_of(state_dir))) as store:
        return store.execute("SELECT rowid, ser_change FROM snaps WHERE ser_change IS NOT NULL").fetchall()


def store_of(state_dir: Path) -> Path:
    (store,) = state_dir.glob("recovery/*.sqlite3")
    return store


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
            answers = through_dataflow([ASK], SETTINGS, copy).responses
            assert [answer["status"] for answer in answers] == ["ok"], f"{damaged.name}, byte {offset}"
            assert hash_of(copy) == expected, f"{damaged.name}, byte {offset}"
        shutil.rmtree(copy)


def test_flipped_byte_of_a_snapshot_prevents_a_start(filled: Path, tmp_path: Path) -> None:
    """SQLite keeps no checksums, and an offset with a flipped byte unpickles."""
    draw = random.Random("snapshots")
    found = [(row, value) for row, value in snapshots(filled) if isinstance(pickle.loads(value), Checked)]
    assert {type(pickle.loads(value)).__name__ for _, value in found} == {"Offsets", "Snapshot"}
    for kind in ("Offsets", "Snapshot"):
        row, value = draw.choice([one for one in found if type(pickle.loads(one[1])).__name__ == kind])
        damaged = bytearray(value)
        damaged[draw.randrange(len(value) // 2, len(value) - 8)] ^= draw.choice((0x01, 0x10, 0x80, 0xFF))
        copy = tmp_path / kind
        shutil.copytree(filled, copy)
        with contextlib.closing(sqlite3.connect(store_of(copy))) as store, store:
            store.execute("UPDATE snaps SET ser_change = ? WHERE rowid = ?", (bytes(damaged), row))
        assert not verified(copy)
        with pytest.raises(StorageError, match="recovery store"):
            process([ASK], SETTINGS, copy)


ASK = orjson.dumps({"type": "user.stats"} | OWNERS[0])
