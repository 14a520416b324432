"""Folders of partitions that another member has by now. Such a folder is marked, so that no command tells from it or
writes to it, and is kept for a day: should the partition come back, only the tail of its log is read. Then it goes, as
nothing that is erased meanwhile is erased from it."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from confluent_kafka import KafkaException

from recallflow.background import beside
from recallflow.errors import RecallflowError
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import elsewhere_since_ms, mark_elsewhere, partition_folder, unmark_elsewhere

LOOK_S = 2.0
KEPT_MS = 24 * 3_600_000

_log = logging.getLogger(__name__)

Numbers = Callable[[], frozenset[int]]


class Elsewhere:
    """Of one member's state directory. `StateDirectory` ignores the mark where `run` opens it; whoever opens a
    partition as its own takes the mark away."""

    def __init__(
        self,
        directory: StateDirectory,
        *,
        others: Numbers,
        ours: Numbers,
        warm: Numbers,
        can_come_again: Callable[[int], bool],
        stopping: threading.Event,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`others`: the partitions that other members have, as they said last. `ours`: ours by now, or about to be.
        `warm`: those that we keep warm, whose folders stay. `can_come_again`: whether all that a folder holds is kept
        outside of any member's directory."""
        self._directory, self._others, self._ours, self._warm = directory, others, ours, warm
        self._can_come_again, self._stopping, self._clock_ms = can_come_again, stopping, clock_ms
        self._seen: frozenset[int] = frozenset()  # what others had at the last look
        self._ending = threading.Event()

    def running(self) -> AbstractContextManager[None]:
        """Looks every LOOK_S seconds, on a thread of its own."""
        return beside(self._run, "elsewhere", self._ending)

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            with suppress(KafkaException, RecallflowError, OSError):  # it is looked again
                self.look()

    def look(self) -> None:
        """Marks folders, and removes those whose time is over. What others had for one look alone may be about to come
        back: then nobody has begun with it."""
        others = self._others()
        lasting, self._seen = others & self._seen, others
        for number in self._directory.existing_numbers():
            if number in lasting - self._ours() and not self._stopping.is_set():
                self._look_at(number)

    def _look_at(self, number: int) -> None:
        folder, now_ms = partition_folder(self._directory.path, number), self._clock_ms()
        since_ms, warm = elsewhere_since_ms(folder), number in self._warm()
        if since_ms is None or (warm and now_ms - since_ms >= KEPT_MS // 2):
            mark_elsewhere(folder, now_ms)
            if number in self._ours():  # it came meanwhile, and its mark was taken away before we made it
                unmark_elsewhere(folder)
            return
        over = not warm and now_ms - since_ms >= KEPT_MS and self._can_come_again(number)
        if over and self._directory.forget_closed(number):
            _log.info("partition %d went to another member a day ago: its folder here is removed", number)
