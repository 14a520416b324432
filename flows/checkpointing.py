"""Checkpoints of the partitions of a member: kept in an object store while it works, and taken from there by whoever
has no folder of a partition, or one that is far behind."""

import logging
import shutil
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from recallflow.background import beside
from recallflow.connectors.checkpoints.manifest import About
from recallflow.connectors.checkpoints.store import CheckpointStore, Keeper
from recallflow.errors import CheckpointError, MasterKeyError, StorageError
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import arriving_folder, copy_partition

FAR_BEHIND = 20_000  # records: to fetch a folder takes less than to read these again
LOOK_S = 1.0
RESULTS = ("kept", "failed")

_log = logging.getLogger(__name__)

Restore = Callable[[int, Callable[[], bool]], None]  # of a partition, if that is still wanted at its turn


class Checkpoints:
    """Of one member's state directory."""

    def __init__(
        self,
        store: CheckpointStore,
        directory: StateDirectory,
        memory_topic: str,
        deployment: str,
        *,
        every_s: float,
        keep: int,
        owned: Callable[[], frozenset[int]],
    ) -> None:
        """`every_s`: so often each partition that moved is kept; `keep`: so many generations of each stay. `owned`: the
        partitions that are open."""
        self._store, self._directory, self._topic, self._deployment = store, directory, memory_topic, deployment
        self._every_s, self._owned = every_s, owned
        self._keeper = Keeper(store, directory.path, keep)
        self.results = Counter[str]()
        self._run_id = uuid.uuid4().hex
        self._kept: dict[int, int] = {}  # partition → what of its own log was applied when it was kept
        self._due_s: dict[int, float] = {}
        self._stopping = threading.Event()
        self._restoring = defaultdict[int, threading.Lock](threading.Lock)  # by partition, added ones too

    def running(self) -> AbstractContextManager[None]:
        """Keeps checkpoints on a thread of its own."""
        return beside(self._run, "checkpoints", self._stopping)

    def restore(self, number: int, wanted: Callable[[], bool]) -> None:
        """Puts the newest checkpoint of a partition, which nobody works on, in the place of its folder, where that
        lacks much. What cannot be fetched is warned of: the log has it all. One at a time restores a partition;
        `wanted`: whether it is still to be done when its turn comes."""
        with self._restoring[number]:
            if not wanted():
                return
            try:
                self._restore(number)
            except (CheckpointError, MasterKeyError, StorageError) as error:
                _log.warning("partition %d is not taken from a checkpoint: %s", number, error)

    def _restore(self, number: int) -> None:
        applied = self._directory.partition(number).applied.get(self._source(number), -1)
        newest = self._store.newest(number)
        if newest is None or newest.about.offset <= applied + (FAR_BEHIND if applied >= 0 else 0):
            return
        self._check(number, newest.about, applied)
        began_s = time.monotonic()
        folder = arriving_folder(self._directory.path, number)
        found = self._store.fetch_newest(number, folder)
        if found is None:
            return
        try:
            self._check(number, found.about, applied)  # it may be an older one, where the newest was not whole
            self._directory.replace_folder(number, folder)
        except (CheckpointError, MasterKeyError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        took_s = time.monotonic() - began_s
        _log.info(
            "partition %d comes from a checkpoint of %d bytes in %.1f s, applied up to offset %d",
            number, found.size, took_s, found.about.offset,
        )  # fmt: skip

    def _check(self, number: int, about: About, applied: int) -> None:
        """Raises CheckpointError where a checkpoint is not one of this partition, or holds less than its folder."""
        if about.source != self._source(number):
            raise CheckpointError(
                f"{self._store.shown} holds those of {about.source}: each topic wants a --checkpoint-to of its own"
            )
        if about.state_format != keys.FORMAT_VERSION:
            raise CheckpointError(f"{self._store.shown}: it is in format {about.state_format}, of another version")
        if about.fingerprint != asdict(self._directory.fingerprint):
            raise CheckpointError(f"{self._store.shown}: it was kept with other settings")
        if about.offset <= applied:
            raise CheckpointError(f"{self._store.shown}: the newest that is whole holds less than is here")

    def _source(self, number: int) -> str:
        return f"{self._topic}:{number}"

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            now_s = time.monotonic()
            for number in sorted(self._owned()):
                due_s = self._due_s.setdefault(number, now_s + self._every_s * (number % 8 + 1) / 8)  # not all at once
                if now_s >= due_s and not self._stopping.is_set():
                    self._keep(number)
                    self._due_s[number] = time.monotonic() + self._every_s

    def _keep(self, number: int) -> None:
        applied = self._directory.partition(number).applied.get(self._source(number), -1)
        if applied < 0 or applied == self._kept.get(number):
            return
        try:
            saved = self._keeper.keep(number, lambda folder: self._copied(number, folder))
        except (CheckpointError, StorageError, OSError) as error:  # also where it was closed meanwhile
            self.results["failed"] += 1
            _log.warning("no checkpoint of partition %d was kept: %s", number, error)
            return
        self.results["kept"] += 1
        self._kept[number] = saved.manifest.about.offset
        _log.info("a checkpoint of partition %d is kept: %d bytes sent", number, saved.sent_bytes)

    def _copied(self, number: int, folder: Path) -> About:
        """Makes a folder of what is committed, clean of what was erased, and says what it is of: at least so much is
        applied in it."""
        partition = self._directory.partition(number)
        partition.clean()
        partition.sync()
        applied = partition.committed_positions()
        copy_partition(partition, folder)
        return About(
            state_format=keys.FORMAT_VERSION,
            partition=number,
            partitions=self._directory.fingerprint.partitions,
            source=self._source(number),
            applied=applied,
            deployment=self._deployment,
            run_id=self._run_id,
            created_ms=time.time_ns() // 1_000_000,
            fingerprint=asdict(self._directory.fingerprint),
        )
