"""Kills a process at each step of packing the newest memories, as owners leave memory and as it ends, and goes on from
what is left; then the same in the midst of files, at one length after the other.

    python tails.py DIR

Each life is a child of this process. A step is a write of packed memories, or the closing of a state partition; the
child is killed right before it, and right after it. Each line printed but the last is a kill after which something is
missing or different; the last one says how many kills there were between steps, and how many within files.
"""

import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from recallflow.outputs import Answer
from recallflow.state import directory, segments
from recallflow.state.hot_owner import HotOwners
from recallflow.state.partition import Partition
from recallflow.state.verify import verify
from tests.unit.operators.harness import MEMORIES, Harness, answers

AT_MOST = 200
BATCH = 5  # lines
# From within what a RocksDB says of itself to within the table file that it writes as it is closed.
FILES_END_AT_BYTES = (1, 1_000, 20_000, 40_000, 60_000, 80_000, 100_000, 300_000)
OWNERS = ("ann", "bo")
Say = Callable[[bytes], object]
WORDS = ("ferry", "walnut", "lantern", "Porto", "violin")


def event(kind: str, user: str, /, **fields: Any) -> bytes:
    return orjson.dumps({"type": kind, "tenant_id": "acme", "user_id": user, "timestamp": 60_000} | fields)


def log() -> list[bytes]:
    """Both talk, change their minds and ask; so that segments are whole, marked, gone and of the newest memories."""
    lines, draw = [], random.Random(1)
    for n in range(23):
        for user in OWNERS:
            said = {"content": f"{WORDS[n % 5]} {WORDS[n % 3]} {n}", "metadata": {"as": draw.randbytes(1_500).hex()}}
            lines.append(event("message", user, id=f"m{n}", **said))
            if n % 6 == 4:
                lines.append(event("memory.update", user, memory_id=f"m{n - 1}", content=f"now a ferry {n}"))
            if n % 6 == 1:
                lines.append(event("memory.update", user, memory_id=f"m{n // 2}", content=f"no lantern {n}"))
            if n % 9 == 7:
                lines.append(event("memory.forget", user, memory_id=f"m{n - 2}"))
    return lines


LINES = log()
HALF = len(LINES) // 2
QUESTIONS = [event("recall", user, id=f"q-{user}", query="Who took the ferry to Porto?", k=40) for user in OWNERS]


def grow(path: Path, first: int, end: int, say: Say, before_the_end: Callable[[], None] = lambda: None) -> None:
    """Applies lines of the log, each owner leaving memory after each batch; says so of each line; and closes."""
    harness = Harness(path, one_log=True)
    harness.write(MEMORIES, *LINES[:end])
    harness.rewind(MEMORIES, first)
    for _ in range(first, end, BATCH):
        harness.read(MEMORIES, BATCH)
        say(b"." * BATCH)
    before_the_end()
    harness.stop()


def begin(path: Path) -> None:
    """A process that has ended well applied half of the log: what it packed is on the disk."""
    shutil.rmtree(path, ignore_errors=True)
    begun = path.with_name("begun")
    if not begun.exists():
        child(lambda say: grow(begun, 0, HALF, say))
    shutil.copytree(begun, path)


def told(path: Path, applied: int = 0) -> bytes:
    """What the directory says, of which so many lines were applied, once the whole log was sent again and its questions
    are asked."""
    harness = Harness(path, one_log=True)
    if harness.directory.partition(0).applied.get(f"{MEMORIES}:0", -1) + 1 < applied:
        return b"lost"
    harness.write(MEMORIES, *LINES, *QUESTIONS)
    found = answers(one for one in harness.read(MEMORIES) if isinstance(one, Answer))
    shown = [[(one["id"], one["content"], one["score"]) for one in answer["memories"]] for answer in found]
    said = orjson.dumps([shown, harness.hash()])
    harness.stop()
    return said + orjson.dumps(verify(path).problems)


def child(life: Callable[[Say], object]) -> tuple[int, bytes]:
    """How a life ended, 0 or the signal that killed it, negative, and what it said."""
    reading, writing = os.pipe()
    if (number := os.fork()) == 0:
        life(lambda said: os.write(writing, said))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), said


def after(path: Path, said: bytes) -> tuple[int, bytes]:
    """How the next life ends, and what it tells."""
    applied = min(HALF + len(said), len(LINES)) if said else 0
    return child(lambda say: say(told(path, applied)))


def killing_at(moment: int) -> None:
    """Counts the moments right before and right after each step, and ends the process at one."""
    left = moment

    def passes() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def killable(step: Callable[..., None]) -> Callable[..., None]:
        def stepped(*arguments: Any) -> None:
            passes()
            step(*arguments)
            passes()

        return stepped

    for name in ("keep", "close"):
        setattr(Partition, name, killable(getattr(Partition, name)))


def killing_within_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def all_moments(path: Path, expected: bytes) -> int:
    for moment in range(1, AT_MOST):
        begin(path)

        def life(say: Say, moment: int = moment) -> None:
            killing_at(moment)
            grow(path, HALF, len(LINES), say)

        code, said = child(life)
        if code == 0:
            return moment - 1
        if (says := after(path, said)) != (0, expected):
            print(f"killed at moment {moment} ({code}), it says {says}, not {expected!r}")
    raise AssertionError


def all_files(path: Path, expected: bytes) -> int:
    killed = 0
    for size in FILES_END_AT_BYTES:
        begin(path)

        def life(say: Say, size: int = size) -> None:
            grow(path, HALF, len(LINES), say, lambda: killing_within_files(size))

        code, said = child(life)
        killed += code == -signal.SIGXFSZ
        if (says := after(path, said)) != (0, expected):
            print(f"killed within files of {size} bytes ({code}), it says {says}, not {expected!r}")
    return killed


def main(path: Path) -> None:
    setattr(directory, "HotOwners", lambda _: HotOwners(budget_bytes=1))  # noqa: B010 it is another module's
    segments.SMALL, segments.LARGE = 4, 16
    code, expected = after(path, b"")
    assert code == 0
    print(all_moments(path, expected), all_files(path, expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
