"""Kills a process at each step of a change, and looks at the state that the next process finds.

A step is a call that changes files, or a file operation. Each life is a child of this process, so that everything is
imported once; a child is killed right before a step.

    python -m tests.processes.crash SCENARIO FOLDER [WORD…]

Each printed line but the last describes a kill after which the state differs; the last line has the counts.
"""

import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from recallflow.cli import main as run_command
from recallflow.state import database, directory, segments
from recallflow.state.database import Cleaning
from recallflow.state.encryption import UNENCRYPTED
from recallflow.state.folders import numbers_in
from recallflow.state.hot_owner import HotOwners
from recallflow.state.moving import move
from recallflow.state.partition import Partition
from recallflow.state.state_hash import combined_hash
from recallflow.state.verify import verify
from tests.unit.operators.harness import MEMORIES, Harness, answers, receipts

AT_MOST = 200
BATCH = 5  # lines
Say = Callable[[bytes], object]
FILE_OPERATIONS = frozenset(("os.rename", "os.remove", "os.rmdir", "shutil.rmtree"))
CREATIONS = frozenset(("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"))


def child(life: Callable[[Say], object]) -> tuple[int, bytes]:
    """Run a life in a child. Return 0, its exit code or its negated signal, and its output."""
    reading, writing = os.pipe()
    if (number := os.fork()) == 0:
        code = life(lambda said: os.write(writing, said))
        os._exit(code if isinstance(code, int) else 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), said


class Killing:
    """Counts steps in any thread, and kills the process before the one of a number."""

    def __init__(self, moment: int) -> None:
        self.moment = self._left = moment
        self._counting = threading.Lock()

    def passes(self) -> None:
        with self._counting:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: object, *names: str) -> None:
        """Make calls of these functions steps."""
        for name in names:
            setattr(owner, name, self._counted(getattr(owner, name)))

    def before_operations(self, folder: Path, names: frozenset[str]) -> None:
        """Make file operations below a folder steps."""

        def look(name: str, arguments: tuple[object, ...]) -> None:
            if name in names and str(arguments[0]).startswith(str(folder)):
                self.passes()

        sys.addaudithook(look)

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any) -> Any:
            self.passes()
            return step(*arguments)

        return stepped


def kill_each(
    life: Callable[[Killing, Say], object], begin: Callable[[], None], check: Callable[[int, bytes], None]
) -> int:
    """Kill a life before each of its steps, and pass number and output to `check`. Return the count."""
    for moment in range(1, AT_MOST):
        begin()
        code, said = child(partial(_lived, life, moment))
        if code != -signal.SIGKILL:
            assert code == 0, code
            return moment - 1
        check(moment, said)
    raise AssertionError


def _lived(life: Callable[[Killing, Say], object], moment: int, say: Say) -> object:
    return life(Killing(moment), say)


def limit_files(size: int, action: Any) -> None:
    """End files at so many bytes: writes fail with `SIG_IGN`, and kill the process with `SIG_DFL`."""
    signal.signal(signal.SIGXFSZ, action)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def event(kind: str, user: str, /, **fields: Any) -> bytes:
    return orjson.dumps({"type": kind, "tenant_id": "acme", "user_id": user, "timestamp": 60_000} | fields)


def grow(path: Path, lines: list[bytes], first: int) -> None:
    """Apply lines from `first` on, and close. Owners leave memory after each batch."""
    harness = Harness(path, one_log=True)
    harness.write(MEMORIES, *lines)
    harness.rewind(MEMORIES, first)
    for _ in range(first, len(lines), BATCH):
        harness.read(MEMORIES, BATCH)
    harness.stop()


def copy_of(begun: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(begun, path)


SECRET = b"walnut"


def erasing_log() -> list[bytes]:
    """Return a log in which a user with two environments is erased, followed by late and new events."""
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


def with_secret(path: Path) -> list[str]:
    return sorted(file.name for file in path.rglob("*") if file.is_file() and SECRET in file.read_bytes())


def erasing(path: Path) -> tuple[int, int]:
    """Kill at the erasing write, at each step of the cleaning of files, and as the partition is closed."""
    lines, begun = erasing_log(), path.with_name("begun")
    first = next(n for n, line in enumerate(lines) if b"user.erase" in line) - 12
    questions = [event("recall", user, id=f"q-{user}", query="Who has which walnut?", k=50) for user in ("ann", "bo")]
    uncleaned = 0

    def state(say: Say) -> None:
        """Return the answers after the whole log was sent again, and the files with erased text."""
        harness = Harness(path, one_log=True)
        harness.write(MEMORIES, *lines, *questions)
        outputs = harness.read(MEMORIES)
        shown = [[(one["id"], one["content"], one["score"]) for one in found["memories"]] for found in answers(outputs)]
        erased = [one["outcome"] for one in receipts(outputs) if one["id"] == "erasure"]
        said = orjson.dumps([sorted(shown), erased, [*harness.directory.counts], harness.hash()])
        harness.stop()
        say(said + orjson.dumps([verify(path).problems, with_secret(path)]))

    child(lambda _: grow(begun, lines[:first], 0))
    begin = partial(copy_of, begun, path)
    begin()
    code, expected = child(state)
    assert code == 0

    def check(moment: int, _: bytes) -> None:
        nonlocal uncleaned
        uncleaned += bool(with_secret(path))
        if (found := child(state)) != (0, expected):
            print(f"killed at {moment}, it says {found}, not {expected!r}")

    def life(killing: Killing, _: Say) -> None:
        killing.before(Partition, "erase", "_write", "close")
        killing.before(Cleaning, "_clean", "run", "_live")
        stretches = database._erased_ranges

        def each(marks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
            for one in stretches(marks):
                killing.passes()
                yield one

        setattr(database, "_erased_ranges", each)  # noqa: B010 it is another module's
        grow(path, lines, first)
        killing.passes()

    return kill_each(life, begin, check), uncleaned


MOVED = (1, 2)


def moving(folder: Path) -> tuple[int, ...]:
    """Move partitions from `from` to `to`, killed at each file operation. Print a line of JSON for each kill."""
    trying = folder / "trying"
    paths = source, target = trying / "from", trying / "to"

    def held() -> dict[str, Any]:
        return {
            "held": [numbers_in(path) for path in paths], "problems": [verify(path).problems for path in paths],
            "left": sorted(found.name for path in paths for found in path.glob("*.*") if found.is_dir()),
        }  # fmt: skip

    def begin() -> None:
        for path in paths:
            copy_of(folder / path.name, path)

    def again(say: Say) -> None:
        killed, moved = held(), len(move(source, target, MOVED, UNENCRYPTED))
        said = {"killed": killed, "again": moved, "done": held(), "hash": combined_hash(paths, UNENCRYPTED).hash}
        say(orjson.dumps(said))

    def life(killing: Killing, _: Say) -> None:
        killing.before_operations(trying, FILE_OPERATIONS)
        move(source, target, MOVED, UNENCRYPTED)

    def check(moment: int, _: bytes) -> None:
        code, said = child(again)
        print(said.decode() if code == 0 else f"killed at {moment}, the next move ends with {code}", flush=True)

    return (kill_each(life, begin, check),)


# Within the lock's note, the description, RocksDB's own files.
FULL_AT_BYTES = (1, 60, 200, 3_000, 10_000, 30_000)


def first_start(folder: Path, *words: str) -> tuple[int, int]:
    """Kill a first start at each creation of a file; then let files end at several sizes. Each time start again.

    The words of a command have no --state-dir.
    """

    def command() -> int:
        return run_command([*words, "--create", "--state-dir", str(folder)])

    def begin() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def again(name: int, _: bytes = b"") -> None:
        if (code := child(lambda _: command())[0]) != 0:
            print(f"after {name}, it does not start again: {code}", flush=True)

    def life(killing: Killing, _: Say) -> object:
        killing.before_operations(folder, CREATIONS)
        return command()

    def full(size: int, _: Say) -> object:
        limit_files(size, signal.SIG_IGN)
        return command()

    moments, failed = kill_each(life, begin, again), 0
    for size in FULL_AT_BYTES:
        begin()
        code, _ = child(partial(full, size))
        if code not in (0, 1):
            print(f"with files of at most {size} bytes: {code}", flush=True)
        failed += code
        again(AT_MOST + size)
    return moments, failed


def main(scenario: str, path: str, *words: str) -> None:
    setattr(directory, "HotOwners", lambda _: HotOwners(budget_bytes=1))  # noqa: B010 it is another module's
    segments.SMALL, segments.LARGE = 4, 16
    scenarios: dict[str, Callable[..., tuple[int, ...]]] = {"erasing": erasing, "moving": moving}
    scenarios["first_start"] = first_start
    print(*scenarios[scenario](Path(path), *words), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
