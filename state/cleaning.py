"""Removal of erased data from files: a deletion alone leaves bytes in table files and in RocksDB's write-ahead log.

1. The memtable is flushed to a table file without the deleted records; older logs are removed. 2. The key ranges of
erased data are compacted to the last level, which rewrites their table files. 3. Replaced files are removed once they
have no reader.

A mark (table 09) names erased owners until all of that is done. It is written together with the erasure, so the next
process continues after a crash. The cleaning may take seconds, on a separate thread."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rocksdict import BottommostLevelCompaction, CompactOptions

from recallflow.state import keys

LOOK_AGAIN_S = 0.2  # for files that are still read
_BEHIND = b"\x00"  # makes of a key the one right behind it


class Cleaning:
    """The cleaning of one state partition's files. Any thread may run it."""

    def __init__(self, db: Any, marks: Iterable[bytes]) -> None:
        """Load the marks of earlier runs."""
        self._db = db
        self._folder = Path(db.path())
        self._numbers = count()  # one that is erased again meanwhile is to be cleaned again
        self._marks = {mark: next(self._numbers) for mark in marks}
        self._writing, self._at_work = threading.Lock(), threading.Lock()
        self._closing = threading.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of erased owners whose data the files may still hold."""
        return len(self._marks)

    def is_pending(self, mark: bytes) -> bool:
        return mark in self._marks

    @contextmanager
    def adding(self, marks: Iterable[bytes]) -> Iterator[None]:
        """While these marks are written."""
        with self._writing:
            yield
            self._marks |= {mark: next(self._numbers) for mark in marks}

    def run(self) -> bool:
        """Clean until nothing is left. Return False if the database is closed while replaced files still have readers.
        Raise errors of RocksDB."""
        with self._at_work:
            while not self._closed and (marks := dict(self._marks)):
                if not self._clean(marks):
                    return False
                with self._writing:
                    for mark in [mark for mark, number in marks.items() if self._marks[mark] == number]:
                        self._db.delete(mark)
                        del self._marks[mark]
            return not self._marks

    def close(self) -> None:
        self._closing.set()

    def end(self) -> None:
        """Wait until no cleaning runs or can start, so that the database can be closed. The rest is cleaned after the
        next opening."""
        self.close()
        with self._at_work:
            self._closed = True

    def _clean(self, marks: Iterable[bytes]) -> bool:
        logs = {*self._folder.glob("*.log")}
        with self._writing:
            self._db.put(min(marks), b"")  # with nothing to flush, the log would stay
        self._db.flush()
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        for first, end in _stretches(marks):
            self._db.compact_range(first, end, options)
        stale = logs | (self._tables() - self._live())
        while stale := {file for file in stale if file.exists()} - self._live():
            if self._closing.wait(LOOK_AGAIN_S):
                return False
        return True

    def _tables(self) -> set[Path]:
        return {*self._folder.glob("*.sst")}

    def _live(self) -> set[Path]:
        return {self._folder / file["name"].lstrip("/") for file in self._db.live_files()}


def _stretches(marks: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return the key ranges that may hold data of erased owners."""
    for owner, user in sorted(map(keys.uncleaned_of, marks)):
        yield keys.owner(owner), keys.after(keys.owner(owner))
        for key in (keys.work(owner), keys.owner_key(owner), keys.user_owner(user, owner)):
            yield key, key + _BEHIND
    yield keys.OUTBOX, keys.after(keys.OUTBOX)
