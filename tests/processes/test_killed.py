"""Kills at any step, full disks and flipped bytes lose nothing that was acknowledged; the next process goes on."""

import asyncio
import contextlib
import io
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from recallflow.cli import main
from recallflow.control import ControlHistory
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.local import LocalService, open_local
from recallflow.flows.settings import Settings
from recallflow.parsing import parse
from recallflow.state.description import TOPICS
from recallflow.state.files import write_checked
from tests.event_log import hash_of, make_log
from tests.processes.conftest import pipe
from tests.processes.crash import MOVED
from tests.processes.writers import LOG, LOG_LINES, READER, SETTINGS, write_lines
from tests.unit.state.member import PARTITIONS, Member, told

Start = Callable[..., subprocess.Popen[bytes]]

ANSWER_S = 60.0


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


LIMIT_BYTES = 600_000  # enough to open a state directory, and for some hundred of the events below
OWNERS = [{"tenant_id": "acme", "user_id": f"user{number}"} for number in range(3)]


def event(number: int) -> bytes:
    words = " ".join(f"word{number}-{n}" for n in range(30))
    return orjson.dumps(
        {"type": "message", "id": f"m{number}", "content": words, "session_id": "s"} | OWNERS[number % 3]
    )


def get(number: int) -> bytes:
    query = {"type": "memory.get", "id": f"q{number}", "memory_id": f"m{number}"}
    return orjson.dumps(query | OWNERS[number % 3])


def file_size_limit(limit_bytes: int) -> str:
    """Return a preparation of a process that limits file sizes like a full disk."""
    return (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))"
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state_dir = tmp_path_factory.mktemp("template") / "s"
    pipe(state_dir, [])
    return state_dir


@pytest.fixture
def state_dir(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "s")


def test_full_disk_loses_nothing_that_was_acknowledged(start: Start, state_dir: Path) -> None:
    """Each answer acknowledges the events before it."""
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(LIMIT_BYTES))
    acknowledged, count = 0, 1_500
    assert engine.stdin is not None
    assert engine.stdout is not None
    for first in range(0, count, 20):
        try:
            engine.stdin.write(b"".join(event(n) + b"\n" for n in range(first, first + 20)) + get(first) + b"\n")
            engine.stdin.flush()
        except BrokenPipeError:
            break
        if not (line := engine.stdout.readline()):
            break
        assert orjson.loads(line)["status"] == "ok"
        acknowledged = first + 20
    assert engine.wait() == 1
    assert 0 < acknowledged < count  # it stopped in the middle
    answers = process([get(n) for n in range(acknowledged)], Settings(), state_dir).responses
    assert {answer["status"] for answer in answers} == {"ok"}
    stats = [orjson.dumps({"type": "user.stats"} | owner) for owner in OWNERS]
    answers = process([*(event(n) for n in range(count)), *stats], Settings(), state_dir).responses
    assert [answer["stats"]["memories"] for answer in answers] == [500, 500, 500]


def test_full_disk_ends_pipe_while_its_input_stays_open(start: Start, state_dir: Path) -> None:
    """The thread that waits for the next line does not keep the process from ending."""
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(LIMIT_BYTES))
    assert engine.stdin is not None
    assert engine.stderr is not None
    engine.stdin.write(b"".join(event(n) + b"\n" for n in range(1_000)))
    engine.stdin.flush()
    assert engine.wait() == 1
    problem = rb"recallflow: [^\n]*state partition \d+ could not be written: [^\n]* free disk space[^\n]*\n"
    assert re.fullmatch(problem, err := engine.stderr.read()), err.decode()


TWO_PARTITIONS = Settings(partitions=2)

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
    process(make_log(5, 400), TWO_PARTITIONS, state_dir)
    process(make_log(6, 60), TWO_PARTITIONS, state_dir)  # moves the writes of the run before into tables
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
            answers = process([ASK], TWO_PARTITIONS, copy).responses
            assert [answer["status"] for answer in answers] == ["ok"], f"{damaged.name}, byte {offset}"
            assert hash_of(copy) == expected, f"{damaged.name}, byte {offset}"
        shutil.rmtree(copy)


ASK = orjson.dumps({"type": "user.stats"} | OWNERS[0])


DRIVER = "import sys; from tests.processes.crash import main; main(*sys.argv[1:])"


def outcomes(start: Start, scenario: str, path: Path, *words: str) -> tuple[list[str], list[int], list[str]]:
    """Run a scenario of kills. Return its lines of output, the counts behind them, and its lines of errors."""
    process = start(scenario, path, *words, script=DRIVER)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()
    *lines, last = [line for line in out.decode().splitlines() if not line.startswith("created: ")]
    return lines, [*map(int, last.split())], err.decode().splitlines()


def test_kill_at_any_step_of_an_erasure_is_finished_later(start: Start, tmp_path: Path) -> None:
    broken, (kills, uncleaned), _ = outcomes(start, "erasing", tmp_path / "s")
    assert broken == []
    assert kills > uncleaned > 5


def test_interrupted_first_start_leaves_a_directory_that_starts(start: Start, tmp_path: Path) -> None:
    broken, (moments, full_disks), errors = outcomes(
        start, "first_start", tmp_path / "s", "remember", "tea", "--partitions", "1"
    )
    assert broken == []
    assert moments > 5
    assert full_disks >= 4
    assert len(errors) == full_disks  # one line for each
    assert all(re.fullmatch(r"recallflow: .+", line) for line in errors)


def test_interrupted_move_of_partitions_is_completed_by_repeating_it(start: Start, tmp_path: Path) -> None:
    every = [*range(PARTITIONS)]
    with Member.on(tmp_path / "from") as member:
        member.take(*every)
        member.run(told(0, 3))
        before = member.hash()
    with Member.on(tmp_path / "to"):
        pass
    lines, (kills,), _ = outcomes(start, "moving", tmp_path)
    found = [orjson.loads(line) for line in lines]
    assert len(found) == kills > 20
    blocked = 0
    for one in found:
        source, target = one["killed"]["held"]
        assert {*source, *target} == {*every}, one
        assert len({*source} & {*target}) <= 1
        of_source, of_target = one["killed"]["problems"]
        assert of_target == [], one  # a whole partition or none
        assert all("was interrupted" in problem for problem in of_source)  # of a partition that may be in both
        blocked += bool(of_source)
        stays = [number for number in every if number not in MOVED]
        assert one["done"] == {"held": [stays, [*MOVED]], "problems": [[], []], "left": []}, one
        assert one["hash"] == before
    assert 0 < blocked < kills
    assert {one["again"] for one in found} >= {1, 2}
