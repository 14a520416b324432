"""The RocksDB of a state partition: opening, reading, and the removal of erased data from its files."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import rocksdict

from recallflow import process
from recallflow.errors import StateInUse, StorageError
from recallflow.private_files import make_private_folder
from recallflow.state import keys, lock
from recallflow.state.files import is_temporary, mentions_full_disk, raise_if_full

LOCK_RETRY_S = 0.05
BLOCK_CACHE_BYTES = 32 * 1024 * 1024
WRITE_BUFFERS_BYTES = 64 * 1024 * 1024
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
BLOCK_BYTES = 16 * 1024  # of table files: smaller blocks compress worse, and a read decompresses a whole block


def shared_options(partitions: int = 1) -> rocksdict.Options:
    """Return RocksDB's options. The partitions of a process share their block cache and write buffers."""
    cache = rocksdict.Cache(BLOCK_CACHE_BYTES)
    buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(WRITE_BUFFERS_BYTES, False, cache)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_max_open_files(process.max_database_files(partitions))
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_compression_type(rocksdict.DBCompressionType.zstd())
    options.set_keep_log_file_num(2)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


class StoredRecords:
    """The records of a database in stored form (not decrypted). All reads raise StorageError."""

    def __init__(self, db: Any, number: int) -> None:
        self._db = db
        self._number = number
        # rocksdict's stubs declare one of these methods as an attribute.
        self._uncached: Any = rocksdict.ReadOptions()
        self._uncached.fill_cache(False)  # type: ignore
        self._uncached.set_verify_checksums(False)  # these values have their own checksum

    def read(self, key: bytes | list[bytes], *, cached: bool = True) -> Any:
        """Return the value of a key, or the values of several. `cached`: their blocks go into the block cache."""
        try:
            return self._db.get(key) if cached else self._db.get(key, read_opt=self._uncached)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._unreadable(error) from error

    def between(
        self, first: bytes, end: bytes, *, back: bool = False, values: bool = True
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield records with first ≤ key < end, in key order (`back`: descending), optionally without their values."""
        options = rocksdict.ReadOptions()  # must live as long as the cursor, which points to its upper bound
        options.set_iterate_upper_bound(end)
        try:
            cursor: Any = self._db.iter(options)
            cursor.seek_to_last() if back else cursor.seek(first)
        except Exception as error:
            raise self._unreadable(error) from error
        step = cursor.prev if back else cursor.next
        while cursor.valid() and (key := cursor.key()) >= first:  # rocksdict ignores a lower bound
            yield key, cursor.value() if values else b""
            step()
        try:
            cursor.status()  # raises the error of an unreadable block, which ends the loop like the last record
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StorageError:
        return StorageError(f"state partition {self._number} cannot be read: {error}; restore a checkpoint")


_REMEDY_TEMPORARY = "Nothing is damaged: remove the cause, and try again"
_REMEDY_DAMAGED = (
    "Delete that folder: recallflow run restores it from its Kafka partition. If there is no log in Kafka, restore a "
    "checkpoint (recallflow state restore)"
)


def open_database(path: Path, options: rocksdict.Options) -> rocksdict.Rdict:
    """Open a RocksDB. Wait for its lock, which the previous process may still hold."""
    give_up_s = time.monotonic() + lock.WAIT_S
    while True:
        try:
            make_private_folder(path)
            return rocksdict.Rdict(str(path), options)
        except Exception as error:
            if "/LOCK:" not in str(error) or mentions_full_disk(error):
                raise_if_full(path.parent, error)
                remedy = _REMEDY_TEMPORARY if is_temporary(error) else _REMEDY_DAMAGED
                raise StorageError(f"cannot open {path}: {error}. {remedy}") from error
            if time.monotonic() >= give_up_s:
                raise StateInUse(f"{path} is in use by another process") from error
        time.sleep(LOCK_RETRY_S)


POLL_S = 0.2  # interval of checks whether replaced files still have readers
_SUCCESSOR = b"\x00"  # appended to a key, gives the next possible key


class Cleaning:
    """Removal of erased data from a partition's files: RocksDB keeps deleted records there. Any thread may run it.

    1. Flush the memtable to a table file, so that RocksDB removes its older logs.
    2. Compact the key ranges of erased data to the last level, which rewrites their table files.
    3. Wait until the replaced files have no reader and are gone.

    Until then, records of the table `keys.UNCLEANED` (marks) name the erased owners. They are written with the erasure,
    so that the next process continues after a crash."""

    def __init__(self, db: Any, marks: Iterable[bytes]) -> None:
        self._db = db
        self._folder = Path(db.path())
        self._numbers = count()  # numbers of erasures: an owner that is erased again during a run needs another run
        self._marks = {mark: next(self._numbers) for mark in marks}
        self._writing, self._running = threading.Lock(), threading.Lock()
        self._interrupted = threading.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of erased owners whose data may still be in the files."""
        return len(self._marks)

    def is_pending(self, mark: bytes) -> bool:
        return mark in self._marks

    @contextmanager
    def adding(self, marks: Iterable[bytes]) -> Iterator[None]:
        """Add marks, which the `with` block writes to the database."""
        with self._writing:
            yield
            self._marks |= {mark: next(self._numbers) for mark in marks}

    def run(self) -> bool:
        """Clean until no mark remains. Return False if `interrupt` was called. Raise errors of RocksDB."""
        with self._running:
            while not self._closed and (marks := dict(self._marks)):
                if not self._clean(marks):
                    return False
                with self._writing:
                    for mark in [mark for mark, number in marks.items() if self._marks[mark] == number]:
                        self._db.delete(mark)
                        del self._marks[mark]
            return not self._marks

    def interrupt(self) -> None:
        """Interrupt a run in progress, and later runs."""
        self._interrupted.set()

    def end(self) -> None:
        """Interrupt a run in progress, wait for its end, and prevent further ones. Remaining marks stay stored."""
        self.interrupt()
        with self._running:
            self._closed = True

    def _clean(self, marks: Iterable[bytes]) -> bool:
        logs = {*self._folder.glob("*.log")}
        with self._writing:
            self._db.put(min(marks), b"")  # an empty memtable is not flushed, and its log would stay
        self._db.flush()
        options = rocksdict.CompactOptions()
        options.set_exclusive_manual_compaction(False)
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force_optimized())
        for first, end in _erased_ranges(marks):
            self._db.compact_range(first, end, options)
        stale = logs | ({*self._folder.glob("*.sst")} - self._live())
        while stale := {file for file in stale if file.exists()} - self._live():
            if self._interrupted.wait(POLL_S):
                return False
        return True

    def _live(self) -> set[Path]:
        return {self._folder / file["name"].lstrip("/") for file in self._db.live_files()}


def _erased_ranges(marks: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return the key ranges that may contain data of erased owners."""
    for owner, user in sorted(map(keys.uncleaned_of, marks)):
        yield keys.owner(owner), keys.after(keys.owner(owner))
        for key in (keys.work(owner), keys.owner_key(owner), keys.user_owner(user, owner)):
            yield key, key + _SUCCESSOR
    yield keys.OUTBOX, keys.after(keys.OUTBOX)
