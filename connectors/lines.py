"""Feeds of lines, and the delivery of their outputs."""

import io
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO, Protocol

from recallflow.outputs import Answer, DeadLetter, Receipted

Delivered = Answer | Receipted | DeadLetter
Delivery = Callable[[int, list[Delivered]], None]  # the offset of a record, and its outputs

BATCH_RECORDS = 256  # the prepared data of a batch stays in the processor's cache until it is applied
PUMPED_READS = 16
READ_BYTES = 64 * 1024
WAIT_S = 0.01
REST_BYTES = 1024 * 1024


def bounded_lines(file: BinaryIO, limit_bytes: int) -> Iterator[bytes]:
    """Yield lines without their line feed. A longer line is cut to `limit_bytes`; its rest is never held in memory."""
    while line := file.readline(limit_bytes + 1):
        if line.endswith(b"\n") or len(line) <= limit_bytes:
            yield line.removesuffix(b"\n")
            continue
        yield line[:limit_bytes]
        while (rest := file.readline(REST_BYTES)) and not rest.endswith(b"\n"):
            pass


def batches_of_lines(file: io.BufferedIOBase, limit_bytes: int) -> Iterator[list[bytes]]:
    """Yield the lines of `bounded_lines` in batches, one per read, so that a queue needs one operation per batch."""
    rest, is_cut = b"", False
    while data := file.read1(READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if is_cut and lines:  # its beginning was yielded
            del lines[0]
            is_cut = False
        elif is_cut:
            rest = b""
        lines = [line if len(line) <= limit_bytes else line[:limit_bytes] for line in lines]
        if len(rest) > limit_bytes:
            lines.append(rest[:limit_bytes])
            rest, is_cut = b"", True
        if lines:
            yield lines
    if rest:
        yield [rest]


class Feed(Protocol):
    """Source of lines."""

    def take(self) -> list[bytes]:
        """Return the next lines, at most a batch; none after a short wait. Raise StopIteration at the end."""


class IteratorFeed:
    """Feed of available lines: a list, a file."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def take(self) -> list[bytes]:
        if not (batch := list(islice(self._lines, BATCH_RECORDS))):
            raise StopIteration
        return batch


class PumpFeed:
    """Feed of an input that may be slow: a thread reads ahead, so that the loop never blocks on it."""

    def __init__(self, batches: Iterator[list[bytes]]) -> None:
        self._queue: queue.Queue[list[bytes] | BaseException] = queue.Queue(PUMPED_READS)
        threading.Thread(target=self._pump, args=(batches,), daemon=True, name="recallflow-input").start()

    def _pump(self, batches: Iterator[list[bytes]]) -> None:
        try:
            for lines in batches:
                self._queue.put(lines)
            self._queue.put(StopIteration())
        except BaseException as error:  # noqa: BLE001 handed to the loop, which raises it
            self._queue.put(error)

    def take(self) -> list[bytes]:
        batch: list[bytes] = []
        while len(batch) < BATCH_RECORDS:
            try:
                got = self._queue.get(block=not batch, timeout=WAIT_S)
            except queue.Empty:
                return batch
            if isinstance(got, BaseException):
                if batch:
                    self._queue.put(got)
                    return batch
                raise got
            batch += got
        return batch


class TurnFeed:
    """Feed in batches that each end with the last line of a turn."""

    def __init__(self, feed: Feed, ends_turn: Callable[[bytes], bool]) -> None:
        self._feed = feed
        self._ends_turn = ends_turn
        self._held: deque[bytes] = deque()

    def take(self) -> list[bytes]:
        if not self._held:
            self._held.extend(self._feed.take())
        batch: list[bytes] = []
        while self._held:
            batch.append(self._held.popleft())
            if self._ends_turn(batch[-1]):
                break
        return batch
