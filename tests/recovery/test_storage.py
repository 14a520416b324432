"""A disk that is full, a directory that is behind, a lock that is held: the flow stops with one clear line, and nothing
that was acknowledged is lost."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.lines import IteratorFeed
from recallflow.errors import StateInUse
from recallflow.flows.embedded import Embedded
from recallflow.flows.lines import run_lines
from recallflow.flows.settings import Settings
from recallflow.outputs import Answer
from recallflow.owner import Owner
from recallflow.state.directory import RECOVERY, StateDirectory, describe
from recallflow.state.hot_owner import HotOwner, HotOwners

Pipe = Callable[[Path, Sequence[bytes]], list[dict[str, Any]]]
Start = Callable[..., subprocess.Popen[bytes]]

# Enough to open a state directory, and for some hundred of the events below.
LIMIT_BYTES = 600_000
# Less than Bytewax's recovery store has: its first write fails.
STORE_LIMIT_BYTES = 20_000

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
    """For a process before it starts: files end at so many bytes. To the process it looks like a disk that is full."""
    return (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))"
    )


def one_line(err: bytes) -> str:
    """What a command said of its failure, which has to be one line."""
    assert re.fullmatch(rb"recallflow: [^\n]+\n", err), err.decode()
    return err.decode()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, pipe: Pipe) -> Path:
    state_dir = tmp_path_factory.mktemp("template") / "s"
    pipe(state_dir, [])
    return state_dir


@pytest.fixture
def state_dir(template: Path, tmp_path: Path) -> Path:
    """A state directory that is there already: what is tested is writing to it."""
    return shutil.copytree(template, tmp_path / "s")


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_disk_loses_nothing_that_was_acknowledged(start: Start, state_dir: Path, pipe: Pipe) -> None:
    """Each answer acknowledges the events before it; after it they are found again, and the run goes on."""
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(LIMIT_BYTES))
    acknowledged = 0
    assert engine.stdin is not None
    assert engine.stdout is not None
    for first in range(0, 3_000, 20):
        try:
            engine.stdin.write(b"".join(event(n) + b"\n" for n in range(first, first + 20)) + get(first) + b"\n")
            engine.stdin.flush()
        except BrokenPipeError:
            break
        if not (line := engine.stdout.readline()):
            break
        assert orjson.loads(line)["status"] == "ok"
        acknowledged = first + 20
    assert engine.wait() != 0
    assert 0 < acknowledged < 3_000  # it stopped in the middle
    answers = pipe(state_dir, [get(n) for n in range(acknowledged)])
    assert {answer["status"] for answer in answers} == {"ok"}
    whole = [event(n) for n in range(3_000)]
    pipe(state_dir, whole)
    stats = [orjson.dumps({"type": "user.stats"} | owner) for owner in OWNERS]
    assert [answer["stats"]["memories"] for answer in pipe(state_dir, stats)] == [1_000, 1_000, 1_000]


def test_a_full_disk_is_told_in_one_line(start: Start, state_dir: Path) -> None:
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(LIMIT_BYTES))
    _, err = engine.communicate(b"".join(event(n) + b"\n" for n in range(3_000)))
    assert engine.returncode == 1
    assert re.search(r"state partition \d+ could not be written: .* free disk space", one_line(err))


def test_a_full_disk_is_told_while_somebody_is_still_writing(start: Start, state_dir: Path) -> None:
    """The thread that waits for the next line must not keep the process from ending as it should."""
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(LIMIT_BYTES))
    assert engine.stdin is not None
    assert engine.stderr is not None
    engine.stdin.write(b"".join(event(n) + b"\n" for n in range(1_000)))
    engine.stdin.flush()  # and stays open
    assert engine.wait() == 1
    assert "free disk space" in one_line(engine.stderr.read())


def test_a_recovery_store_that_cannot_be_written_is_told_in_one_line(start: Start, state_dir: Path, pipe: Pipe) -> None:
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(STORE_LIMIT_BYTES))
    _, err = engine.communicate(event(0) + b"\n")
    assert engine.returncode == 1
    assert "disk" in one_line(err)
    assert pipe(state_dir, [event(0), get(0)])[0]["status"] == "ok"


def test_a_state_directory_that_cannot_be_made_is_told_in_one_line(start: Start, tmp_path: Path) -> None:
    engine = start("pipe", "--state-dir", tmp_path / "s", before=file_size_limit(1))
    _, err = engine.communicate(event(0) + b"\n")
    assert engine.returncode == 1
    assert str(tmp_path / "s") in one_line(err)


# ── files that are not what they were ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fails(start: Start) -> Callable[..., str]:
    """Runs a command that has to fail with one line; returns the line."""

    def run(*arguments: str | Path) -> str:
        command = start(*arguments)
        out, err = command.communicate()
        assert (command.returncode, out) == (1, b"")
        return one_line(err)

    return run


def filled_partition(state_dir: Path) -> Path:
    """The folder of a state partition that holds memories."""
    with StateDirectory.open(state_dir, describe(state_dir)[0], 1024 * 1024) as directory:
        number = next(partition.number for partition in directory.partitions() if partition.applied)
    return state_dir / f"p{number:03d}"


def test_a_partition_older_than_the_recovery_store_says_is_refused(
    tmp_path: Path, state_dir: Path, pipe: Pipe, fails: Callable[..., str]
) -> None:
    pipe(state_dir, [event(0)])
    partition = filled_partition(state_dir)
    shutil.copytree(partition, tmp_path / "backup")
    pipe(state_dir, [event(n) for n in range(3, 30, 3)])
    shutil.rmtree(partition)
    shutil.copytree(tmp_path / "backup", partition)
    said = fails("ask", "tea?", "--state-dir", state_dir)
    assert f"{partition.name} is behind: stdin:0 from 1 on" in said
    assert "Restore a checkpoint" in said


def test_a_partition_that_is_gone_is_refused(state_dir: Path, pipe: Pipe, fails: Callable[..., str]) -> None:
    pipe(state_dir, [event(0)])
    shutil.rmtree(gone := filled_partition(state_dir))
    for _ in range(2):
        assert f"{gone.name} is missing: stdin:0 from 0 on" in fails("ask", "tea?", "--state-dir", state_dir)
        assert not gone.exists()


def test_a_lost_recovery_store_beside_intact_state_is_made_again(state_dir: Path, pipe: Pipe) -> None:
    pipe(state_dir, [event(0), event(1)])
    shutil.rmtree(state_dir / RECOVERY)
    answers = pipe(state_dir, [event(2), get(0), get(1), get(2), event(0)])
    assert [answer["versions"][0]["id"] for answer in answers] == ["m0", "m1", "m2"]


def test_a_recovery_store_that_a_kill_left_unfinished_is_made_again(state_dir: Path, pipe: Pipe) -> None:
    """A kill can fall between making its folder and filling it."""
    pipe(state_dir, [event(0)])
    for file in (state_dir / RECOVERY).iterdir():
        file.unlink()
    assert [answer["status"] for answer in pipe(state_dir, [get(0)])] == ["ok"]


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_broken_file_is_told_as_what_it_is(state_dir: Path, pipe: Pipe, fails: Callable[..., str], name: str) -> None:
    pipe(state_dir, [event(n) for n in range(30)])
    pipe(state_dir, [])  # the log of the run before becomes a table when the database is opened
    broken = sorted(filled_partition(state_dir).glob(name))
    assert broken
    for file in broken:
        content = bytearray(file.read_bytes())
        content[: len(content) // 2] = bytes(byte ^ 0x5A for byte in content[: len(content) // 2])
        file.write_bytes(content)
    said = fails("state", "hash", "--state-dir", state_dir)
    assert "in use" not in said
    assert re.search(r"p\d\d\d|state partition \d+", said)
    assert "restore" in said.lower(), "there is a way out"


# ── a lock that is held ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_partition_that_is_open_cannot_be_opened_again(state_dir: Path) -> None:
    fingerprint, _ = describe(state_dir)
    with StateDirectory.open(state_dir, fingerprint, 1024 * 1024) as held:
        held.partition(3)
        with StateDirectory.open(state_dir, fingerprint, 1024 * 1024, lock_wait_s=0) as second:
            second.partition(4)
            with pytest.raises(StateInUse, match=r"p003 is in use by another process: stop that process"):
                second.partition(3)
    with StateDirectory.open(state_dir, fingerprint, 1024 * 1024, lock_wait_s=0) as third:
        assert len(third.partitions()) == 16


def test_a_killed_process_holds_no_lock(start: Start, state_dir: Path, pipe: Pipe) -> None:
    engine = start("pipe", "--state-dir", state_dir)
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(event(0) + b"\n" + get(0) + b"\n")
    engine.stdin.flush()
    assert engine.stdout.readline()
    engine.kill()
    engine.wait()
    assert [answer["status"] for answer in pipe(state_dir, [get(0)])] == ["ok"]


# ── owners in memory ──────────────────────────────────────────────────────────────────────────────────────────────


def people(count: int) -> list[bytes]:
    """Events and questions of many owners in turns, some of them several times, so that they come back from disk."""
    lines: list[dict[str, Any]] = []
    for number in range(count):
        for offset in (0, 7, 31):
            user = f"user{(number + offset) % count}"
            at = {"user_id": user, "tenant_id": "acme", "timestamp": 1_735_689_600_000 + len(lines) * 60_000}
            lines.append({"type": "message", "id": f"m{len(lines)}", "content": f"{user} has {number} apples"} | at)
            lines.append({"type": "recall", "query": f"How many apples has {user}?", "id": f"q{len(lines)}"} | at)
            lines.append({"type": "episodes.list", "id": f"q{len(lines)}"} | at)
    return [orjson.dumps(line) for line in lines]


@pytest.fixture
def answers_with(tmp_path: Path) -> Callable[[list[bytes], int], list[dict[str, Any]]]:
    """Runs lines on a new state directory with a cache of the given size."""

    def run(lines: list[bytes], cache_bytes: int) -> list[dict[str, Any]]:
        settings, embedder = Settings(partitions=2), load_embedder("hash")
        answers: list[dict[str, Any]] = []

        def collect(_: int, outputs: Sequence[object]) -> None:
            answers.extend(orjson.loads(output.body) for output in outputs if isinstance(output, Answer))

        fingerprint = settings.fingerprint(embedder)
        with StateDirectory.open(tmp_path / f"{cache_bytes}", fingerprint, cache_bytes) as directory:
            engine = Embedded(directory, embedder, settings, lasting=True)
            # A line a batch: owners leave memory between batches.
            run_lines(engine, "lines", lambda _: OneByOne(iter(lines)), collect, rewinds=False)
        return answers

    return run


class OneByOne(IteratorFeed):
    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__(lines)
        self._one_by_one = lines

    def take(self) -> list[bytes]:
        return [next(self._one_by_one)]


def test_answers_do_not_depend_on_how_many_owners_fit_in_memory(
    answers_with: Callable[[list[bytes], int], list[dict[str, Any]]],
) -> None:
    lines = people(60)
    plenty, none = (answers_with(lines, cache_bytes) for cache_bytes in (512 * 1024 * 1024, 1))
    assert len(plenty) == 2 * len(lines) // 3
    for first, second in zip(plenty, none, strict=True):
        for field in ("processing_time_ms", "sla_met", "routing_info"):
            first.pop(field, None)
            second.pop(field, None)
        assert first == second


def test_owners_in_memory_stay_within_the_budget(state_dir: Path) -> None:
    fingerprint, _ = describe(state_dir)
    with StateDirectory.open(state_dir, fingerprint, 1024 * 1024) as directory:
        partition = directory.partition(0)
        owners = [Owner("acme", "prod", f"user{number}") for number in range(200)]
        weight = HotOwner(partition, owners[0]).size_bytes()
        hot = HotOwners(10 * weight)
        loaded: list[HotOwner] = []

        def touch(owner: Owner) -> HotOwner:
            found = hot.get(partition, owner)
            if not any(one is found for one in loaded):
                loaded.append(found)
            return found

        for owner in owners:
            assert touch(owner).owner == owner
            assert touch(owners[0]) is touch(owners[0])  # the one that is asked for all the time
            hot.shrink()
            assert hot.total_bytes <= 10 * weight
        assert len(hot) == 10
        assert [one.owner for one in loaded] == owners  # the first was never dropped, and nobody else was loaded twice
        touch(owners[1])
        assert [one.owner for one in loaded] == [*owners, owners[1]]


def test_an_owner_is_not_dropped_while_its_batch_is_applied(state_dir: Path) -> None:
    """Its effects are not committed yet: loaded anew, it would not know of them."""
    fingerprint, _ = describe(state_dir)
    with StateDirectory.open(state_dir, fingerprint, 1024 * 1024) as directory:
        partition = directory.partition(0)
        hot = HotOwners(1)
        owners = [Owner("acme", "prod", f"user{number}") for number in range(50)]
        held = [hot.get(partition, owner) for owner in owners]
        assert [hot.get(partition, owner) for owner in owners] == held
        hot.shrink()
        assert len(hot) == 0
        assert hot.total_bytes == 0
