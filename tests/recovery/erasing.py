"""Kills a process at each step of erasing a user, and goes on from what is left.

    python erasing.py DIR

Each life is a child of this process. The steps are the write that erases, what the cleaning of files does one after the
other, the end of its mark, and the closing of the state partition; the child is killed right before each and right
after it. Each line printed but the last is a kill after which something is there that should not be, is missing or is
different; the last one says how many kills there were, and how many of them left files to clean to the next life.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from recallflow.state import cleaning, directory, segments
from recallflow.state.cleaning import Cleaning
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import HotOwners
from recallflow.state.partition import Partition
from recallflow.state.verify import verify
from tests.recovery.tails import child, event
from tests.unit.operators.harness import MEMORIES, Harness, answers, receipts

AT_MOST = 200
BATCH = 5  # lines
SECRET = b"walnut"
Say = Callable[[bytes], object]


def log() -> list[bytes]:
    """Ann tells her secret, in two environments, and Bo his. She is erased; late events of hers come, and new ones."""
    lines: list[bytes] = []
    for n in range(30):
        said = {"content": f"walnut number {n} in Porto", "session_id": f"walnut{n // 10}", "receipt": True}
        lines.append(event("message", "ann", id=f"walnut{n}", **said))
        lines.append(event("message", "bo", id=f"m{n}", content=f"violin number {n} in Leeds"))
        if n % 5 == 4:
            lines.append(event("memory.update", "ann", memory_id=f"walnut{n - 1}", content=f"no walnut {n}"))
            lines.append(event("memory", "ann", environment="test", id=f"t{n}", content=f"walnut test {n}"))
    lines.append(event("user.erase", "ann", timestamp=70_000, id="erasure", receipt=True))
    for n in range(8):
        lines.append(event("message", "ann", timestamp=65_000 + n, id=f"late{n}", content=f"late walnut {n}"))
        lines.append(event("message", "bo", timestamp=65_000 + n, id=f"late{n}", content=f"ferry {n}"))
        lines.append(event("message", "ann", timestamp=75_000 + n, id=f"new{n}", content=f"lantern {n}"))
    return lines


LINES = log()
ERASURE = next(n for n, line in enumerate(LINES) if b"user.erase" in line)
BEGUN = ERASURE - 12
QUESTIONS = [event("recall", user, id=f"q-{user}", query="Who has which walnut?", k=50) for user in ("ann", "bo")]


def grow(path: Path, first: int, end: int, say: Say) -> None:
    """Applies lines of the log, each owner leaving memory after each batch; says so of each line; and closes."""
    harness = Harness(path, one_log=True)
    harness.write(MEMORIES, *LINES[:end])
    harness.rewind(MEMORIES, first)
    for _ in range(first, end, BATCH):
        harness.read(MEMORIES, BATCH)
        say(b"." * BATCH)
    harness.stop()


def begin(path: Path) -> None:
    """A process that has ended well applied what comes before: it is in table files; another one was killed."""
    shutil.rmtree(path, ignore_errors=True)
    begun = path.with_name("begun")
    if not begun.exists():
        child(lambda say: grow(begun, 0, BEGUN, say))
    shutil.copytree(begun, path)


def left_to_clean(path: Path) -> int:
    """How many erased owners are still to be cleaned of, looked up in a copy."""
    copy = path.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)

    def life(say: Say) -> None:
        setattr(StateDirectory, "clean", lambda *_: None)  # noqa: B010 it only looks
        harness = Harness(copy, one_log=True)
        say(b"%d" % len(harness.directory.partition(0).cleaning))
        harness.stop()

    return int(child(life)[1])


def told(path: Path) -> bytes:
    """What the directory says once the whole log was sent again and its questions are asked; and in which files
    something is left of what was erased."""
    harness = Harness(path, one_log=True)
    harness.write(MEMORIES, *LINES, *QUESTIONS)
    outputs = harness.read(MEMORIES)
    shown = [[(one["id"], one["content"], one["score"]) for one in found["memories"]] for found in answers(outputs)]
    erased = [one["outcome"] for one in receipts(outputs) if one["id"] == "erasure"]
    said = orjson.dumps([sorted(shown), erased, [*harness.directory.counts], harness.hash()])
    harness.stop()
    found = [file.name for file in path.rglob("*") if file.is_file() and SECRET in file.read_bytes()]
    return said + orjson.dumps([verify(path).problems, sorted(found)])


def killing_at(moment: int) -> None:
    """Counts the moments right before and right after each step, in whatever thread, and ends the process at one."""
    left, counting = moment, threading.Lock()

    def passes() -> None:
        nonlocal left
        with counting:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def killable(step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*given: Any) -> Any:
            passes()
            done = step(*given)
            passes()
            return done

        return stepped

    def killable_between(steps: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
        def stepped(*given: Any) -> Iterable[Any]:
            for one in steps(*given):
                passes()
                yield one
                passes()

        return stepped

    for kind, names in ((Partition, ("erase", "_commit", "close")), (Cleaning, ("_clean", "run", "_tables"))):
        for name in names:
            setattr(kind, name, killable(getattr(kind, name)))
    setattr(cleaning, "_stretches", killable_between(cleaning._stretches))  # noqa: B010 it is another module's


def all_moments(path: Path, expected: bytes) -> tuple[int, int]:
    uncleaned = 0
    for moment in range(1, AT_MOST):
        begin(path)

        def life(_: Say, moment: int = moment) -> None:
            killing_at(moment)
            grow(path, BEGUN, len(LINES), lambda _: None)

        code, _ = child(life)
        if code == 0:
            return moment - 1, uncleaned
        assert code == -signal.SIGKILL
        uncleaned += left_to_clean(path) > 0
        if (says := child(lambda say: say(told(path)))) != (0, expected):
            print(f"killed at moment {moment}, it says {says}, not {expected!r}")
    raise AssertionError


def main(path: Path) -> None:
    setattr(directory, "HotOwners", lambda _: HotOwners(budget_bytes=1))  # noqa: B010 it is another module's
    segments.SMALL, segments.LARGE = 4, 16
    begin(path)
    code, expected = child(lambda say: say(told(path)))
    assert code == 0
    print(expected.decode(), file=sys.stderr)
    print(*all_moments(path, expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
