"""A state directory: N state partitions, the settings that shape them, and the secret from which their keys derive."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from itertools import chain
from pathlib import Path
from typing import Self

from recallflow import process
from recallflow.errors import PartitionMissing, StateError, StorageError
from recallflow.process import backoffs_s
from recallflow.state import description, folders, keys
from recallflow.state.database import SharedMemory
from recallflow.state.description import Fingerprint
from recallflow.state.encryption import UNENCRYPTED, AtRest, Keyring
from recallflow.state.hot_owner import MAX_PACKED, MAX_PACKED_AT_CLOSE, HotOwners
from recallflow.state.lock import WAIT_S
from recallflow.state.partition import Counts, Partition

PURGE_AGAIN_S, PURGE_AGAIN_MOST_S = 0.5, 30.0

_log = logging.getLogger(__name__)


class StateDirectory:
    """Opens state partitions on first use and keeps them until `close`. Safe to share between the workers of a process:
    each partition belongs to one worker, and each worker has its own cache of hot owners."""

    def __init__(
        self,
        path: Path,
        described: description.DirectoryDescription,
        at_rest: AtRest,
        cache_bytes: int,
        lock_wait_s: float,
        disk: Executor | None = None,
    ) -> None:
        """Open the keyring of the directory. Raise MasterKeyError if the master key does not match."""
        self.path = path
        self.creates_missing = True  # a partition without a folder starts empty; otherwise another directory holds it
        self.fingerprint = fingerprint = described.fingerprint
        self._keyring, self._at_rest = Keyring.opened(described.secret, path, at_rest), at_rest
        self._memory = SharedMemory(fingerprint.partitions)
        if not process.descriptors_suffice(fingerprint.partitions):
            _log.warning(
                "%d open files are too few for %d state partitions: raise the limit (ulimit -n, LimitNOFILE)",
                process.descriptor_limit(), fingerprint.partitions,
            )  # fmt: skip
        self._cache_bytes = cache_bytes
        self._lock_wait_s = lock_wait_s
        self._partitions: dict[int, Partition] = {}
        self._opening, self._syncing = threading.Lock(), threading.Lock()
        self._hot: dict[int, HotOwners] = {}
        self._disk = disk or ThreadPoolExecutor(fingerprint.partitions, "recallflow-sync")
        self._syncs: dict[int, Future[None]] = {}  # the last started sync, by partition
        self._cleaner = ThreadPoolExecutor(1, "recallflow-clean")
        self._to_clean = set[Partition]()  # partitions in the cleaner's queue
        self._closing = threading.Event()
        self._purge_retries_s: dict[int, Iterator[float]] = {}  # by partition
        self._unopened_purges: dict[int, int] = {}  # number of erased owners, by partition that waits to be reopened
        # the error for which partitions must be reopened; see `discard_partitions`
        self.storage_failure: StorageError | None = None
        self.on_storage_failure: Callable[[], None] = lambda: None
        self._unfit_before = Counter[tuple[str, str]]()  # of closed partitions
        self._lock = contextlib.ExitStack()

    @classmethod
    def open(
        cls,
        path: Path,
        fingerprint: Fingerprint,
        cache_bytes: int,
        lock_wait_s: float | None = None,
        at_rest: AtRest = UNENCRYPTED,
        disk: Executor | None = None,
    ) -> Self:
        """Open or create a state directory, and lock it. `disk` runs syncs; threads by default.

        Raises:
            StateInUse: another process holds it.
            StateError: another version or other settings created it.
            MasterKeyError: the master key does not match."""
        with contextlib.ExitStack() as lock:
            lock.enter_context(description.hold(path, lock_wait_s, create=True))
            if not (path / description.DESCRIPTION).exists():
                description.create_description(path, fingerprint, at_rest)
            stored = description.describe(path)
            description.check_settings(path, stored.fingerprint, fingerprint)
            partition_wait_s = WAIT_S if lock_wait_s is None else lock_wait_s
            directory = cls(path, stored, at_rest, cache_bytes, partition_wait_s, disk)
            folders.remove_leftovers(path)
            directory._lock = lock.pop_all()
        return directory

    @classmethod
    def existing(cls, path: Path, cache_bytes: int, at_rest: AtRest = UNENCRYPTED) -> Self:
        """Open a state directory with the settings of its creation, and lock it."""
        with description.hold(path):
            directory = cls.open(path, description.describe(path).fingerprint, cache_bytes, at_rest=at_rest)
        directory.creates_missing = False
        return directory

    def partition(self, number: int) -> Partition:
        """Return the open partition. Raise StateInUse, or StateError if the directory does not hold it."""
        with self._opening:
            if number not in self._partitions:
                folder = folders.partition_folder(self.path, number)
                if not self.creates_missing and folders.released_since_ms(folder) is not None:
                    raise StateError(
                        f"another member continues {folder.name} of {self.path}, and this copy may be outdated: name "
                        "its directory, or ask through Kafka"
                    )
                if not self.creates_missing and not folder.is_dir():
                    raise StateError(
                        f"{self.path} does not hold {folder.name}: name the directory that does (recallflow state "
                        "info), or bring them together (recallflow state merge)"
                    )
                folders.check_openable(folder)
                opened = Partition(folder, number, self._keyring_of(folder), self._memory, self._lock_wait_s)
                self._partitions[number] = opened
                self._unopened_purges.pop(number, None)
                self.clean(opened)  # leftovers of an earlier run
            return self._partitions[number]

    def _keyring_of(self, folder: Path) -> Keyring:
        """Return the keyring of the secret in a partition's folder, or else the directory's."""
        secret = folders.read_secret(folder) or self._keyring.stored
        return self._keyring if secret == self._keyring.stored else Keyring.opened(secret, folder, self._at_rest)

    def partitions(self) -> list[Partition]:
        """Open and return all partitions. Missing folders start empty."""
        return [self.partition(number) for number in range(self.fingerprint.partitions)]

    def existing_numbers(self) -> list[int]:
        """Return the partitions with a folder. Other directories may hold the rest. Partitions that another member
        continues are included only for a member itself."""
        found = folders.numbers_in(self.path) if self.creates_missing else folders.unreleased_numbers(self.path)
        return [number for number in found if number < self.fingerprint.partitions]

    def existing_partitions(self) -> list[Partition]:
        """Open and return the partitions with a folder. An empty one for a lost folder would hide the loss."""
        return [self.partition(number) for number in self.existing_numbers()]

    def close_partition(self, number: int) -> None:
        """Close a partition between two batches: commit and sync staged data, pack the newest memories of its owners,
        and release its folder. It may be opened again. Raise StorageError."""
        with self._opening:
            partition = self._partitions.get(number)
        if partition is None:
            return
        partition.commit()
        for owners in [*self._hot.values()]:
            with contextlib.suppress(StorageError):  # without packed segments the next query takes a little longer
                owners.pack_tails(MAX_PACKED, partition)
            owners.drop_partition(partition)
        partition.cleaning.end()
        with self._opening, self._syncing:
            del self._partitions[number]
            self._unfit_before += partition.unfit
            self._end_sync(number)
            partition.sync()
            partition.close()

    def discard_partitions(self) -> None:
        """Close all open partitions without committing staged data. After an I/O error, in-memory data is unreliable
        and RocksDB refuses writes. Partitions are reopened from the disk on demand."""
        self._hot.clear()
        with self._opening, self._syncing:
            for number, partition in [*self._partitions.items()]:
                self._unopened_purges[number] = len(partition.cleaning)
                partition.cleaning.end()
                self._unfit_before += partition.unfit
                del self._partitions[number]
                self._end_sync(number)
                with contextlib.suppress(StorageError):  # the original error says more
                    partition.close()
            self.storage_failure = None

    def replace_folder(self, number: int, source: Path) -> None:
        """Replace the folder of a partition by `source`, on the same disk (`arriving_folder`). Raise StorageError;
        raise MasterKeyError if its key cannot be opened, and then change nothing."""
        self._keyring_of(source)
        self.close_partition(number)
        with self._opening, description.using(self.path):
            folders.put_folder(self.path, number, source)

    def forget_folder(self, number: int) -> None:
        """Remove the folder of a partition that was moved or starts again. Raise StorageError."""
        self.close_partition(number)
        with description.using(self.path):
            folders.remove_folder(self.path, number)

    def forget_closed(self, number: int) -> bool:
        """Remove the folder of a partition unless it is open. Return whether it was removed. Raise StorageError."""
        with self._opening, description.using(self.path):
            if number in self._partitions:
                return False
            folders.remove_folder(self.path, number)
            return True

    def open_all(self) -> None:
        """Open all state partitions, or the existing ones of a shared directory. Raise PartitionMissing."""
        self.check_complete()
        self.creates_missing = not self.is_shared()
        for partition in self.partitions() if self.creates_missing else self.existing_partitions():
            if self.creates_missing and partition.get(keys.COMPLETE) is None:
                partition.stage({keys.COMPLETE: b""})
                partition.commit()

    def check_complete(self) -> None:
        """Raise PartitionMissing if a folder is lost. A shared directory may hold a part of the folders."""
        lost = {*range(self.fingerprint.partitions)} - {*folders.numbers_in(self.path)}
        if not lost or self.is_shared():
            return
        if any(one.get(keys.COMPLETE) is not None for one in self.existing_partitions()):
            names = folders.format_partitions(lost)
            raise PartitionMissing(f"{self.path} has lost {names}: put the folders back, or restore a checkpoint")

    def is_shared(self) -> bool:
        """Return whether missing partitions may be in other directories: after moves, or with several members."""
        known = (self.path / description.MOVED).exists() or description.reads_topics(self.path)
        return known or any(one.progress is not None for one in self.existing_partitions())

    def has_vectors(self) -> bool:
        """Return whether a committed memory has a vector, which confirms the dimension. Any thread may call it."""
        stored = (keys.OWNERS, keys.after(keys.OWNERS))
        records = (one.scan_stored(*stored, committed=True) for one in self.existing_partitions())
        return any(keys.split(key)[1] == keys.VECTORS for key, _ in chain.from_iterable(records))

    @property
    def unfit(self) -> Counter[tuple[str, str]]:
        """Events of this run without effect, because their sources are gone or changed, by type and reason."""
        return sum((partition.unfit for partition in [*self._partitions.values()]), self._unfit_before.copy())

    @property
    def counts(self) -> Counts:
        found = [partition.counts for partition in [*self._partitions.values()]]
        return Counts(sum(one.owners for one in found), sum(one.memories for one in found))

    def sync(self) -> None:
        """Sync all commits of all partitions in parallel, and wait. Raise StorageError."""
        with self._syncing:  # prevents a concurrent close
            unsynced = [partition for partition in [*self._partitions.values()] if partition.unsynced]
            for _ in self._disk.map(Partition.sync, unsynced):
                pass  # raises a partition's error

    def begin_sync(self, partition: Partition) -> Callable[[], bool]:
        """Start to sync the commits of a partition. No other sync of it may be running.

        Returns:
            A function that returns whether all of them survive a power failure. A failed sync sets `storage_failure`,
            and the function never returns true."""
        is_synced = partition.sync_check()
        if not partition.unsynced:
            return is_synced
        begun = self._syncs[partition.number] = self._disk.submit(self._sync, partition)
        return lambda: begun.done() and is_synced()

    def begin_syncs(self) -> bool:
        """Start to sync all partitions. Return whether that covers all commits. A sync in progress does not."""
        unsynced = [partition for partition in self._partitions.values() if partition.unsynced]
        free = [one for one in unsynced if one.number not in self._syncs or self._syncs[one.number].done()]
        for partition in free:
            self.begin_sync(partition)
        return len(free) == len(unsynced)

    def _sync(self, partition: Partition) -> None:
        try:
            partition.sync()
        except StorageError as error:
            self.storage_failure = error
            self.on_storage_failure()

    def _end_sync(self, number: int) -> None:
        """Wait until no disk thread uses the partition."""
        if (begun := self._syncs.pop(number, None)) is not None and not begun.cancel():
            wait([begun])

    @property
    def uncleaned_owners(self) -> int:
        """The number of erased owners whose data may still be in files."""
        opened = sum(len(partition.cleaning) for partition in [*self._partitions.values()])
        return opened + sum([*self._unopened_purges.values()])

    def clean(self, partition: Partition) -> None:
        """Start to clean erased data from a partition's files in the background, if there is any."""
        if partition.cleaning and partition not in self._to_clean:
            self._to_clean.add(partition)
            self._cleaner.submit(self._clean, partition)

    def finish_cleaning(self) -> None:
        """Wait until no file of any partition holds erased data. Raise StorageError."""
        for partition in self.existing_partitions():
            partition.clean()

    def _clean(self, partition: Partition) -> None:
        self._to_clean.discard(partition)
        try:
            partition.clean()
        except StorageError as error:
            retry_s = self._purge_retries_s.setdefault(partition.number, backoffs_s(PURGE_AGAIN_S, PURGE_AGAIN_MOST_S))
            wait_s = next(retry_s)
            _log.error("files may still hold erased data; cleaning is repeated in %g s: %s", wait_s, error)
            if partition.is_broken:
                self.storage_failure = error
                self.on_storage_failure()
            if not self._closing.wait(wait_s):
                self.clean(partition)
        else:
            self._purge_retries_s.pop(partition.number, None)

    def hot_owners(self) -> HotOwners:
        """Return the calling worker's cache of owners."""
        return self._hot.setdefault(threading.get_ident(), HotOwners(self._cache_bytes))

    @property
    def hot_bytes(self) -> int:
        return sum(owners.total_bytes for owners in [*self._hot.values()])

    @property
    def hot_limit_bytes(self) -> int:
        """Return the byte limit of cached owners, over all workers. Each worker has the same limit."""
        return self._cache_bytes * max(1, len(self._hot))

    def close(self) -> None:
        """Close everything, and then raise the first StorageError of a close."""
        self._closing.set()
        self._disk.shutdown()
        for partition in self._partitions.values():
            partition.cleaning.close()
        self._cleaner.shutdown()
        with contextlib.suppress(StorageError):  # without packed segments the next query takes a little longer
            for owners in self._hot.values():
                owners.pack_tails(MAX_PACKED_AT_CLOSE // len(self._hot))
        self._hot.clear()
        with contextlib.ExitStack() as closing:
            closing.callback(self._lock.close)
            closing.callback(self._partitions.clear)
            for partition in self._partitions.values():
                closing.callback(partition.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
