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
from recallflow.state import description, folders, keys
from recallflow.state.database import shared_options
from recallflow.state.description import Fingerprint
from recallflow.state.encryption import UNENCRYPTED, AtRest, Keyring
from recallflow.state.files import storage_errors
from recallflow.state.hot_owner import MAX_PACKED, MAX_PACKED_AT_CLOSE, HotOwners
from recallflow.state.partition import Counts, Partition

CACHE_BYTES = 1024 * 1024  # of hot owners, for commands that read each owner once
CLEANING_RETRY_S, CLEANING_RETRY_MAX_S = 0.5, 30.0

_log = logging.getLogger(__name__)


class StateDirectory(contextlib.AbstractContextManager["StateDirectory"]):
    """A locked state directory. Partitions are opened on first use, and stay open until `close`. The process's workers
    share it: each partition belongs to one worker, and each worker has its own cache of hot owners."""

    def __init__(
        self, path: Path, described: description.DirectoryDescription, at_rest: AtRest, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """Raise MasterKeyError if the master key does not match."""
        self.path = path
        self.creates_missing = True  # create a missing partition as an empty one; otherwise another directory has it
        self.fingerprint = fingerprint = described.fingerprint
        self._keyring, self._at_rest = Keyring.opened(described.secret, path, at_rest), at_rest
        self._options = shared_options(fingerprint.partitions)
        if not process.descriptors_suffice(fingerprint.partitions):
            _log.warning(
                "%d open files are too few for %d state partitions: raise the limit (ulimit -n, LimitNOFILE)",
                process.descriptor_limit(), fingerprint.partitions,
            )  # fmt: skip
        self._cache_bytes = cache_bytes
        self._partitions: dict[int, Partition] = {}
        self._opening, self._syncing = threading.Lock(), threading.Lock()
        self._hot: dict[int, HotOwners] = {}  # by thread
        self._disk: Executor = ThreadPoolExecutor(fingerprint.partitions, "recallflow-sync")
        self._latest_syncs: dict[int, Future[None]] = {}  # by partition
        self._cleaner = ThreadPoolExecutor(1, "recallflow-clean")
        self._queued_cleanings = set[Partition]()
        self._closing = threading.Event()
        self._cleaning_retries_s: dict[int, Iterator[float]] = {}  # by partition
        # By discarded partition, until it is reopened: the number of erased owners whose data may still be in files.
        self._discarded_uncleaned: dict[int, int] = {}
        # The error after which `discard_partitions` must be called.
        self.storage_failure: StorageError | None = None
        self.on_storage_failure: Callable[[], None] = lambda: None
        self._unfit_of_closed = Counter[tuple[str, str]]()
        self._lock = contextlib.ExitStack()

    @classmethod
    def open(
        cls, path: Path, fingerprint: Fingerprint, cache_bytes: int = CACHE_BYTES, at_rest: AtRest = UNENCRYPTED
    ) -> Self:
        """Open or create a state directory, and lock it.

        Raises:
            StateInUse: another process holds it.
            StateError: another version or other settings created it.
            MasterKeyError: the master key does not match."""
        with contextlib.ExitStack() as lock:
            lock.enter_context(description.hold(path, create=True))
            if not (path / description.DESCRIPTION).exists():
                description.create_description(path, fingerprint, at_rest)
            stored = description.describe(path)
            description.check_settings(path, stored.fingerprint, fingerprint)
            directory = cls(path, stored, at_rest, cache_bytes)
            folders.remove_leftovers(path)
            directory._lock = lock.pop_all()
        return directory

    @classmethod
    def existing(cls, path: Path, at_rest: AtRest = UNENCRYPTED) -> Self:
        """Open a state directory with the settings of its creation, and lock it."""
        with description.hold(path):
            directory = cls.open(path, description.describe(path).fingerprint, at_rest=at_rest)
        directory.creates_missing = False
        return directory

    def partition(self, number: int) -> Partition:
        """Return a partition, opened on first use. Raise StateInUse, or StateError if another directory has it."""
        with self._opening:
            if number not in self._partitions:
                folder = folders.partition_folder(self.path, number)
                if not self.creates_missing and folders.released_since_ms(folder) is not None:
                    raise StateError(
                        f"another member has taken over {folder.name} of {self.path}, and this copy may be outdated: "
                        "name the directory of that member, or query through Kafka"
                    )
                if not self.creates_missing and not folder.is_dir():
                    raise StateError(
                        f"{self.path} has no {folder.name}: name the directory that has it (recallflow state info), or "
                        "merge the directories (recallflow state merge)"
                    )
                folders.check_openable(folder)
                opened = Partition(folder, number, self._keyring_of(folder), self._options)
                self._partitions[number] = opened
                self._discarded_uncleaned.pop(number, None)
                self.clean(opened)  # of data that was erased in an earlier run
            return self._partitions[number]

    def _keyring_of(self, folder: Path) -> Keyring:
        """Return the keyring of the secret in a partition's folder, or else the directory's."""
        secret = folders.read_secret(folder) or self._keyring.stored
        return self._keyring if secret == self._keyring.stored else Keyring.opened(secret, folder, self._at_rest)

    def partitions(self) -> list[Partition]:
        """Open and return all partitions. Missing folders start empty."""
        return [self.partition(number) for number in range(self.fingerprint.partitions)]

    def existing_numbers(self) -> list[int]:
        """Return the partitions with a folder; other directories may have the rest. With `creates_missing`, partitions
        that another member has taken over are included."""
        found = folders.numbers_in(self.path) if self.creates_missing else folders.unreleased_numbers(self.path)
        return [number for number in found if number < self.fingerprint.partitions]

    def existing_partitions(self) -> list[Partition]:
        """Open and return the partitions with a folder. Creating the others would hide that a folder is lost."""
        return [self.partition(number) for number in self.existing_numbers()]

    def close_partition(self, number: int) -> None:
        """Close a partition between two batches: commit and sync staged data, pack the newest memories of its owners.
        It may be opened again. Raise StorageError."""
        with self._opening:
            partition = self._partitions.get(number)
        if partition is None:
            return
        partition.commit()
        for owners in [*self._hot.values()]:
            with contextlib.suppress(StorageError):  # without packed segments the next query takes longer
                owners.pack_tails(MAX_PACKED, partition)
            owners.drop_all(lambda hot: hot.partition is partition)
        partition.cleaning.end()
        with self._opening, self._syncing:
            del self._partitions[number]
            self._unfit_of_closed += partition.unfit
            self._end_sync(number)
            partition.sync()
            partition.close()

    def discard_partitions(self) -> None:
        """Close all open partitions without committing staged data. After an I/O error, in-memory data is unreliable
        and RocksDB refuses writes. Partitions are reopened from the disk on demand."""
        self._hot.clear()
        with self._opening, self._syncing:
            for number, partition in [*self._partitions.items()]:
                self._discarded_uncleaned[number] = len(partition.cleaning)
                partition.cleaning.end()
                self._unfit_of_closed += partition.unfit
                del self._partitions[number]
                self._end_sync(number)
                with contextlib.suppress(StorageError):  # `storage_failure` names the cause
                    partition.close()
            self.storage_failure = None

    def replace_folder(self, number: int, source: Path) -> None:
        """Replace the folder of a partition by `source`, on the same disk (`arriving_folder`). Raise StorageError.
        Raise MasterKeyError, and change nothing, if the secret of `source` cannot be unwrapped."""
        self._keyring_of(source)
        self.close_partition(number)
        with self._opening, storage_errors(self.path):
            folders.put_folder(self.path, number, source)

    def forget_folder(self, number: int) -> None:
        """Remove the folder of a partition that was moved or starts again. Raise StorageError."""
        self.close_partition(number)
        self.forget_closed(number)

    def forget_closed(self, number: int) -> bool:
        """Remove the folder of a partition unless it is open. Return whether it was removed. Raise StorageError."""
        with self._opening, storage_errors(self.path):
            if number in self._partitions:
                return False
            folders.remove_folder(self.path, number)
            return True

    def open_all(self) -> None:
        """Open all partitions, or the existing ones if other directories may have the rest. Raise PartitionMissing."""
        self.check_complete()
        self.creates_missing = not self.is_shared()
        for partition in self.partitions() if self.creates_missing else self.existing_partitions():
            if self.creates_missing and partition.get(keys.COMPLETE) is None:
                partition.stage({keys.COMPLETE: b""})
                partition.commit()

    def check_complete(self) -> None:
        """Raise PartitionMissing if a folder is missing and cannot be in another directory."""
        lost = {*range(self.fingerprint.partitions)} - {*folders.numbers_in(self.path)}
        if not lost or self.is_shared():
            return
        if any(one.get(keys.COMPLETE) is not None for one in self.existing_partitions()):
            names = folders.format_partitions(lost)
            raise PartitionMissing(f"{self.path} has lost {names}: put the folders back, or restore a checkpoint")

    def is_shared(self) -> bool:
        """Return whether missing partitions may be in other directories: after moves, or with several members."""
        has_peers = (self.path / description.MOVED).exists() or description.reads_topics(self.path)
        return has_peers or any(one.progress is not None for one in self.existing_partitions())

    def has_vectors(self) -> bool:
        """Return whether any committed memory has a vector: then the dimension is certain. Any thread may call it."""
        stored = (keys.OWNERS, keys.after(keys.OWNERS))
        records = (one.scan_stored(*stored, committed=True) for one in self.existing_partitions())
        return any(keys.split(key)[1] == keys.VECTORS for key, _ in chain.from_iterable(records))

    @property
    def unfit(self) -> Counter[tuple[str, str]]:
        """Number of this run's events without effect (such as those of a deleted source), by type and reason."""
        return sum((partition.unfit for partition in [*self._partitions.values()]), self._unfit_of_closed.copy())

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
            A function that returns whether all of them survive a power failure. After a failed sync, which sets
            `storage_failure`, it never returns true."""
        is_synced = partition.sync_check()
        if not partition.unsynced:
            return is_synced
        sync = self._latest_syncs[partition.number] = self._disk.submit(self._sync, partition)
        return lambda: sync.done() and is_synced()

    def begin_syncs(self) -> bool:
        """Start to sync all partitions. Return False if one is still being synced: its sync may lack later commits."""
        unsynced = [partition for partition in self._partitions.values() if partition.unsynced]
        idle = [one for one in unsynced if (sync := self._latest_syncs.get(one.number)) is None or sync.done()]
        for partition in idle:
            self.begin_sync(partition)
        return len(idle) == len(unsynced)

    def _sync(self, partition: Partition) -> None:
        try:
            partition.sync()
        except StorageError as error:
            self.storage_failure = error
            self.on_storage_failure()

    def _end_sync(self, number: int) -> None:
        """Wait until no disk thread uses the partition."""
        if (sync := self._latest_syncs.pop(number, None)) is not None and not sync.cancel():
            wait([sync])

    @property
    def uncleaned_owners(self) -> int:
        """The number of erased owners whose data may still be in files."""
        opened = sum(len(partition.cleaning) for partition in [*self._partitions.values()])
        return opened + sum([*self._discarded_uncleaned.values()])

    def clean(self, partition: Partition) -> None:
        """Start to remove erased data from a partition's files in the background, if there is any."""
        if partition.cleaning and partition not in self._queued_cleanings:
            self._queued_cleanings.add(partition)
            self._cleaner.submit(self._clean, partition)

    def finish_cleaning(self) -> None:
        """Remove erased data from the files of all existing partitions, and wait for the end. Raise StorageError."""
        for partition in self.existing_partitions():
            partition.clean()

    def _clean(self, partition: Partition) -> None:
        self._queued_cleanings.discard(partition)
        try:
            partition.clean()
        except StorageError as error:
            waits_s = process.backoffs_s(CLEANING_RETRY_S, CLEANING_RETRY_MAX_S)
            wait_s = next(self._cleaning_retries_s.setdefault(partition.number, waits_s))
            _log.error("files may still hold erased data; cleaning is repeated in %g s: %s", wait_s, error)
            if partition.is_broken:
                self.storage_failure = error
                self.on_storage_failure()
            if not self._closing.wait(wait_s):
                self.clean(partition)
        else:
            self._cleaning_retries_s.pop(partition.number, None)

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
            partition.cleaning.interrupt()
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

    def __exit__(self, *_: object) -> None:
        self.close()
