"""Checkpoints of a member's partitions in an object store: periodic uploads, and restores of missing or outdated
folders."""

import logging
import shutil
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path

from recallflow.connectors.checkpoints.generation import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore, Keeper
from recallflow.errors import CheckpointError, MasterKeyError, StorageError
from recallflow.process import background_thread
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import arriving_folder, copy_partition

FAR_BEHIND = 20_000  # records; fetching a folder takes less time than reading these again
CHECK_INTERVAL_S = 1.0
RESULTS = ("kept", "failed")

_log = logging.getLogger(__name__)

Restore = Callable[[int, Callable[[], bool]], None]  # restores a partition if the second argument returns true


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one member's state directory."""

    store: CheckpointStore
    directory: StateDirectory
    memory_topic: str
    deployment: str
    _: KW_ONLY
    every_s: float  # the interval of checkpoints of a partition with new records
    keep: int  # the number of generations
    owned: Callable[[], frozenset[int]]  # returns the open partitions

    def __post_init__(self) -> None:
        self._keeper = Keeper(self.store, self.directory.path, self.keep)
        self.results = Counter[str]()
        self._run_id = uuid.uuid4().hex
        self._kept: dict[int, int] = {}  # partition → the offset applied at its last checkpoint
        self._due_s: dict[int, float] = {}
        self._stopping = threading.Event()
        self._restoring = defaultdict[int, threading.Lock](threading.Lock)  # by partition

    def running(self) -> AbstractContextManager[None]:
        """Write checkpoints on a separate thread."""
        return background_thread(self._run, "checkpoints", self._stopping)

    def restore(self, number: int, wanted: Callable[[], bool]) -> None:
        """Replace the folder of a closed partition by its newest checkpoint if the folder is missing or far behind.
        Failures are logged only, because the log has all records. One thread at a time restores a partition; `wanted`
        is called once it has its turn."""
        with self._restoring[number]:
            if not wanted():
                return
            try:
                self._restore(number)
            except (CheckpointError, MasterKeyError, StorageError) as error:
                _log.warning("partition %d was not restored from a checkpoint: %s", number, error)

    def _restore(self, number: int) -> None:
        applied = self.directory.partition(number).applied.get(self._source(number), -1)
        newest = self.store.newest(number)
        if newest is None or newest.about.offset <= applied + (FAR_BEHIND if applied >= 0 else 0):
            return
        self._check(number, newest.about, applied)
        began_s = time.monotonic()
        folder = arriving_folder(self.directory.path, number)
        found = self.store.fetch_newest(number, folder)
        if found is None:
            return
        try:
            self._check(number, found.about, applied)  # an older one, if the newest was incomplete
            self.directory.replace_folder(number, folder)
        except (CheckpointError, MasterKeyError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        took_s = time.monotonic() - began_s
        _log.info(
            "partition %d was restored from a checkpoint of %d bytes in %.1f s, applied up to offset %d",
            number, found.size, took_s, found.about.offset,
        )  # fmt: skip

    def _check(self, number: int, about: CheckpointOrigin, applied: int) -> None:
        """Raise CheckpointError for a checkpoint of another topic or configuration, or older than the folder."""
        if about.source != self._source(number):
            raise CheckpointError(
                f"{self.store.shown} holds checkpoints of {about.source}: give each topic its own --checkpoint-to"
            )
        if about.state_format != keys.FORMAT_VERSION:
            raise CheckpointError(f"{self.store.shown}: another version wrote it, in format {about.state_format}")
        if about.fingerprint != asdict(self.directory.fingerprint):
            raise CheckpointError(f"{self.store.shown}: it was written with other settings")
        if about.offset <= applied:
            raise CheckpointError(f"{self.store.shown}: the newest complete checkpoint is older than the local folder")

    def _source(self, number: int) -> str:
        return f"{self.memory_topic}:{number}"

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_INTERVAL_S):
            now_s = time.monotonic()
            for number in sorted(self.owned()):
                due_s = self._due_s.setdefault(number, now_s + self.every_s * (number % 8 + 1) / 8)  # staggered
                if now_s >= due_s and not self._stopping.is_set():
                    self._keep(number)
                    self._due_s[number] = time.monotonic() + self.every_s

    def _keep(self, number: int) -> None:
        applied = self.directory.partition(number).applied.get(self._source(number), -1)
        if applied < 0 or applied == self._kept.get(number):
            return
        try:
            saved = self._keeper.keep(number, lambda folder: self._copied(number, folder))
        except (CheckpointError, StorageError, OSError) as error:  # also if the partition was closed meanwhile
            self.results["failed"] += 1
            _log.warning("the checkpoint of partition %d failed: %s", number, error)
            return
        self.results["kept"] += 1
        self._kept[number] = saved.manifest.about.offset
        _log.info("wrote a checkpoint of partition %d: %d bytes sent", number, saved.sent_bytes)

    def _copied(self, number: int, folder: Path) -> CheckpointOrigin:
        """Copy the committed state of a partition into a folder, after the cleaning of erased data. Return its
        description. The copy may hold more than the offsets in the description."""
        partition = self.directory.partition(number)
        partition.clean()
        partition.sync()
        applied = partition.committed_positions()
        copy_partition(partition, folder)
        return CheckpointOrigin(
            state_format=keys.FORMAT_VERSION,
            partition=number,
            partitions=self.directory.fingerprint.partitions,
            source=self._source(number),
            applied=applied,
            deployment=self.deployment,
            run_id=self._run_id,
            created_ms=time.time_ns() // 1_000_000,
            fingerprint=asdict(self.directory.fingerprint),
        )
