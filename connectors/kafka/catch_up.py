"""How far the state is behind what lay in the memory topic at a moment that counts: the start, an outage's end."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Log:
    """One partition of a memory topic. Everything below `next_offset` was given to the dataflow, or is no record."""

    next_offset: int
    first: int  # where this run began
    target: int = 0  # it ended here at the moment that counts
    open: int = 0  # records given that the state is not through with
    open_below: int = 0  # of those, the ones below the target


class CatchUp:
    """Counts what the state step is through with, not what was read, over all workers of a process. What no record ever
    comes of (control records, aborted or compacted ones) counts as done once the reader is past it."""

    def __init__(self) -> None:
        self.behind = True  # False: nothing to go
        self.passed = 0  # records below a target that the state is through with
        self._lock = threading.Lock()
        self._logs: dict[str, _Log] = {}
        self._ends: Mapping[str, int] | None = None

    def begin(self, source: str, offset: int, end: int = 0) -> None:
        """A partition is read from `offset` on, and ended at `end`."""
        with self._lock:
            self._logs[source] = log = _Log(offset, offset)
            log.target = max(offset, end, (self._ends or {}).get(source, 0))
            self.behind = True

    def end(self, source: str) -> None:
        """A partition is not read any more."""
        with self._lock:
            self._logs.pop(source, None)

    def aim(self, ends: Mapping[str, int]) -> None:
        """Where the partitions end now: up to there is to be caught up."""
        with self._lock:
            self._ends = dict(ends)
            for source, log in self._logs.items():
                # Never below what was given: then all that is open counts, and no record need be looked up.
                log.target = max(log.next_offset, ends.get(source, 0))
                log.open_below = log.open
            self.behind = True

    def lose(self) -> None:
        """The brokers are away: nobody knows how much there is to go."""
        with self._lock:
            self._ends = None
            self.behind = True

    def gave(self, source: str, offsets: Iterable[int], next_offset: int) -> None:
        with self._lock:
            log = self._logs[source]
            log.next_offset = next_offset
            for offset in offsets:
                log.open += 1
                log.open_below += offset < log.target

    def passed_over(self, source: str, offset: int) -> None:
        """The reader is at `offset`, and everything it read was given."""
        with self._lock:
            if (log := self._logs.get(source)) is not None:
                log.next_offset = max(log.next_offset, offset)

    def done(self, source: str, offsets: Iterable[int]) -> None:
        with self._lock:
            log = self._logs.get(source)
            if log is None:
                return  # of another topic, or of a file
            for offset in offsets:
                if offset < log.first:  # given by an earlier run
                    continue
                log.open -= 1
                log.open_below -= offset < log.target
                self.passed += self.behind

    def to_go(self) -> int | None:
        """Records between the state and the targets; None where nobody knows."""
        if not self.behind:
            return 0
        with self._lock:
            if self._ends is None:
                return None
            left = sum(map(_left, self._logs.values()))
            self.behind = left > 0
            return left

    def to_go_of(self, source: str) -> int | None:
        """The same of one partition."""
        if not self.behind:
            return 0
        with self._lock:
            log = self._logs.get(source)
            return None if self._ends is None or log is None else _left(log)

    def describe(self, source: str | None = None) -> str:
        """What is missing, of one partition or of all, in words; empty where nothing is."""
        left = self.to_go() if source is None else self.to_go_of(source)
        if left is None:
            return "how many records of memory are to go is not known yet"
        return f"{left:,} records of memory to go" if left else ""


def _left(log: _Log) -> int:
    return max(0, log.target - log.next_offset) + log.open_below
