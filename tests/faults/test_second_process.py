"""A second process on a state directory that is in use."""

import hashlib
from pathlib import Path

import orjson

from benchmarks.fleet.checker import check, settled
from benchmarks.fleet.engine import Topics, command
from benchmarks.fleet.records import Log, Reader
from tests.faults.conftest import MakeEngine


def test_a_directory_in_use_refuses_other_commands(
    make_engine: MakeEngine, topics: Topics, log: Log, reader: Reader
) -> None:
    """Every line of the log, also those that say what was found at the start, is JSON."""
    engine = make_engine(topics, "--log-format", "json")
    reader.alive = engine.running
    engine.up()
    log.talk(10)
    assert reader.until(lambda: settled(log, reader))
    engine.pause()  # only the second process can change files now
    before = content(engine.state_dir)
    other = make_engine(topics, "--deployment", f"other-{topics.suffix}")
    for words in (other.words(), ["pipe", "--state-dir", str(engine.state_dir)]):
        ended = command(*words)
        assert ended.code in (1, 2), ended
        assert ended.plain, ended
        assert content(engine.state_dir) == before
    engine.go_on()
    log.talk(10)
    assert reader.until(lambda: settled(log, reader))
    assert engine.stop().code == 0
    found = check(log)
    assert found.clean(), found
    lines = [orjson.loads(line) for line in engine.said().splitlines()]
    assert all(line["time"] and line["level"] for line in lines)
    assert "flows.ownership" in {line["logger"] for line in lines}


def content(folder: Path) -> dict[Path, bytes]:
    """Return the hash of each file of a folder."""
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}
