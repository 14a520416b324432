"""Kills a first start at each of its moments, one after the other, and starts again what is left; then the same with
disks that are full sooner or later.

    python first_start.py DIR run --bootstrap-servers … --deployment EACH      (any command, without --state-dir)

EACH is another word for each directory. Each start is a child of this process, so that everything is imported once. A
moment is a file or folder below DIR that Python makes, opens, renames or removes; the child is killed right before it.
The last line printed says how many there were and how many full disks. Anything else that is printed is a directory
that did not start again.
"""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from recallflow.cli import main
from recallflow.flows import kafka

MOMENTS = frozenset(("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "sqlite3.connect"))
AT_MOST = 200
# Files end at so many bytes: within the lock's note, the description, RocksDB's own files, the recovery store.
FULL_AT_BYTES = (1, 60, 200, 1_000, 3_000, 5_000, 10_000, 20_000, 30_000)


def kill_before(moment: int, folder: Path) -> Callable[[str, tuple[object, ...]], None]:
    left = moment

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if name in MOMENTS and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def start(folder: Path, words: list[str], *, moment: int = 0, full_at_bytes: int = 0) -> int:
    """How a child ended: 0, its exit code, or the signal that killed it, negative."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if moment:
        sys.addaudithook(kill_before(moment, folder))
    if full_at_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full_at_bytes, full_at_bytes))
    # A flow on Kafka has started once its dataflow would run; it would not end by itself.
    setattr(kafka, "run_dataflow", lambda *_: os._exit(0))  # noqa: B010 it is another module's
    os._exit(main([*words, "--create", "--state-dir", str(folder)]))


def each(words: list[str], name: object) -> list[str]:
    return [f"first-start-{os.getpid()}-{name}" if word == "EACH" else word for word in words]


def all_moments(folder: Path, words: list[str]) -> int:
    for moment in range(1, AT_MOST):
        shutil.rmtree(folder, ignore_errors=True)
        own = each(words, moment)
        if (code := start(folder, own, moment=moment)) == 0:
            return moment - 1
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        if code != -signal.SIGKILL or start(folder, own) != 0:
            print(f"killed before moment {moment} ({code}), it does not start again: {left}")
    raise AssertionError


def all_disks(folder: Path, words: list[str]) -> int:
    failed = 0
    for size in FULL_AT_BYTES:
        shutil.rmtree(folder, ignore_errors=True)
        own = each(words, f"disk{size}")
        code = start(folder, own, full_at_bytes=size)
        failed += code != 0
        if code not in (0, 1) or start(folder, own) != 0:
            print(f"with files of at most {size} bytes ({code}), it does not start again")
    return failed


if __name__ == "__main__":
    print(all_moments(Path(sys.argv[1]), sys.argv[2:]), all_disks(Path(sys.argv[1]), sys.argv[2:]))
