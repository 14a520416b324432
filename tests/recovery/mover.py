"""Moves two state partitions again and again, each time killed one file operation later, and looks what is left.

Run with a folder that holds `from` and `to`; prints a line of JSON for each time: what there was after the kill, and
after the same was done again."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from recallflow.state.at_rest import UNENCRYPTED
from recallflow.state.combined import combined_hash
from recallflow.state.folders import numbers_in
from recallflow.state.moving import move
from recallflow.state.verify import verify

MOVED = (1, 2)
COUNTED = ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def in_child(work: Callable[[], Any]) -> Any:
    """What a process of its own gives; None where it was killed."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        os.write(writing, orjson.dumps(work()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        given = said.read()
    os.waitpid(child, 0)
    return orjson.loads(given) if given else None


def killed_at(folder: Path, operation: int) -> bool:
    """Moves, and is killed as the operation of this number begins; True where there are not so many."""
    seen = 0

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in COUNTED and str(arguments[0]).startswith(str(folder)):
            if seen == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.addaudithook(look)
    move(folder / "from", folder / "to", MOVED, UNENCRYPTED)
    return True


def held(folder: Path) -> dict[str, Any]:
    names = ("from", "to")
    return {
        "held": [numbers_in(folder / name) for name in names],
        "problems": [verify(folder / name).problems for name in names],
        "left": sorted(path.name for name in names for path in (folder / name).glob("*.*") if path.is_dir()),
    }


def main(folder: Path) -> None:
    trying, operation, through = folder / "trying", 0, False
    while not through:
        shutil.rmtree(trying, ignore_errors=True)
        for name in ("from", "to"):
            shutil.copytree(folder / name, trying / name)
        through = in_child(partial(killed_at, trying, operation)) is not None
        killed = in_child(lambda: held(trying))
        again = in_child(lambda: len(move(trying / "from", trying / "to", MOVED, UNENCRYPTED)))
        done = in_child(lambda: held(trying))
        hashed = in_child(lambda: combined_hash([trying / "from", trying / "to"], UNENCRYPTED).hash)
        said = {"through": through, "killed": killed, "again": again, "done": done, "hash": hashed}
        print(orjson.dumps(said).decode(), flush=True)
        operation += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
