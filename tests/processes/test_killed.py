"""Killed commands lose nothing that they acknowledged, and go on to the state of a run that was never killed."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from recallflow.control import ControlHistory
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.local import LocalService, open_local
from recallflow.flows.settings import Settings
from recallflow.parsing import parse
from tests.event_log import CHANGES, CREATIONS, QUERIES, comparable, hash_of, kind_of, make_log
from tests.processes.conftest import applied, pipe
from tests.processes.writers import LOG, LOG_LINES, READER, SETTINGS, write_lines

Replay = Callable[..., None]
Start = Callable[..., subprocess.Popen[bytes]]

ANSWER_S = 60.0
TWO = Settings(partitions=2)
PARTITIONS = ("--partitions", "2")


def test_killed_pipe_continues_after_the_last_applied_line(tmp_path: Path, start: Start) -> None:
    """Killed while it waits for a line, after the answer to a query."""
    lines = make_log(seed=1, count=500, nameless=[*CHANGES, *QUERIES])
    whole = process(lines, TWO, tmp_path / "whole").responses
    queries = [number for number, line in enumerate(lines) if kind_of(line) in QUERIES]
    asked = queries[len(queries) // 2]
    engine = start("pipe", *PARTITIONS, "--state-dir", tmp_path / "s")
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(b"".join(line + b"\n" for line in lines[: asked + 1]))
    engine.stdin.flush()
    answers = [orjson.loads(engine.stdout.readline()) for number in queries if number <= asked]
    kill(engine)
    assert comparable(answers) == comparable(whole[: len(answers)])

    first = applied(tmp_path / "s") + 1
    assert first <= asked + 1
    assert all(kind_of(line) in QUERIES for line in lines[first : asked + 1])  # queries need not be applied
    rest = pipe(tmp_path / "s", lines[first:])[asked + 1 - first :]
    assert comparable(rest) == comparable(whole[-len(rest) :])
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "whole")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, replay: Replay) -> tuple[Path, str, list[bytes]]:
    """Replay a log without kills. Many lines have no id, so that a line that is applied twice changes the hash."""
    folder = tmp_path_factory.mktemp("replayed")
    log, noted = folder / "log.jsonl", folder / "rejects.jsonl"
    log.write_bytes(b"\n".join(make_log(seed=5, count=1_500, nameless=[*CREATIONS, *CHANGES, *QUERIES])))
    replay(folder / "s", log, *PARTITIONS, "--rejects", str(noted))
    rejects = noted.read_bytes().splitlines()
    codes = {orjson.loads(line)["error"]["code"] for line in rejects}
    assert codes >= {"invalid_json", "invalid_event", "unknown_type", "wrong_dimension", "id_conflict", "not_found"}
    return log, hash_of(folder / "s"), rejects


def test_killed_replay_continues_to_the_same_state(
    replayed: tuple[Path, str, list[bytes]], tmp_path: Path, start: Start, replay: Replay
) -> None:
    log, state_hash, rejects = replayed
    noted = tmp_path / "rejects.jsonl"
    options = [*PARTITIONS, "--rejects", str(noted)]
    for share in (0.3, 0.7):
        engine = start("replay", log, "--embedded", "--create", "--state-dir", tmp_path / "s", *options)
        while not noted.exists() or noted.read_bytes().count(b"\n") < share * len(rejects):
            assert engine.poll() is None
            time.sleep(0.01)
        kill(engine)
    assert hash_of(tmp_path / "s") != state_hash  # it was killed in the middle
    replay(tmp_path / "s", log, *options)
    assert hash_of(tmp_path / "s") == state_hash
    assert sorted(noted.read_bytes().splitlines()) == sorted(rejects)


def test_engines_killed_in_turns_lose_and_repeat_nothing(tmp_path: Path, start: Start) -> None:
    """A program's own engine, a pipe and a replay take turns on one directory. No position is given twice."""
    state_dir = tmp_path / "s"
    told: list[tuple[str, str, str]] = []
    read_again = 0
    for turn in range(2):
        told += acknowledged_by(start, "write_calls", state_dir, f"called{turn}", 40 + 30 * turn)
        told += acknowledged_by(start, "write_lines", state_dir, f"piped{turn}", 60)
        read_again += len(acknowledged_by(start, "write_lines", state_dir, LOG, 150))
    assert read_again >= 300
    positions = [position for _, _, position in told]
    assert len(set(positions)) == len(positions)

    async def missing(service: LocalService) -> list[tuple[str, str, str]]:
        lost = []
        for user_id, memory_id, position in told:
            asked = {"type": "memory.get", "tenant_id": "acme", "user_id": user_id, "memory_id": memory_id}
            found = await service.ask(parse(orjson.dumps(asked)), (), ANSWER_S)  # type: ignore[arg-type]
            if found.status != "ok" or len(found.versions or ()) != 1:
                lost.append((user_id, memory_id, position))
        return lost

    async def count(service: LocalService) -> int:
        asked = parse(orjson.dumps({"type": "user.stats", "tenant_id": "acme", "user_id": READER}))
        stats = (await service.ask(asked, (), ANSWER_S)).stats  # type: ignore[arg-type]
        assert stats is not None
        return int(stats["memories"])

    with open_local(Config(state_dir=state_dir, engine=SETTINGS), ControlHistory()) as opened:
        assert asyncio.run(missing(opened)) == []
        assert asyncio.run(count(opened)) < LOG_LINES
    write_lines(state_dir, LOG)  # to its end
    with open_local(Config(state_dir=state_dir, engine=SETTINGS), ControlHistory()) as opened:
        assert asyncio.run(count(opened)) == LOG_LINES


def kill(engine: subprocess.Popen[bytes]) -> None:
    engine.kill()
    assert engine.wait() == -signal.SIGKILL


def acknowledged_by(start: Start, writer: str, state_dir: Path, run: str, count: int) -> list[tuple[str, str, str]]:
    """Kill a writer after so many acknowledgements. Return the user, id and position of each memory."""
    script = f"import sys; from tests.processes.writers import *; {writer}(Path(sys.argv[1]), sys.argv[2])"
    engine = start(state_dir, run, script=script)
    assert engine.stdout is not None
    first = [engine.stdout.readline() for _ in range(count)]
    kill(engine)
    whole = (line.decode().split() for line in (*first, *engine.stdout.readlines()) if line.endswith(b"\n"))
    return [(user, id_, position) for user, id_, position in whole]
