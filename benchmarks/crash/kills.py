"""What is done to a process from inside: it dies at a named point, or does without a safeguard."""

import os
import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from recallflow.connectors.kafka import sink
from recallflow.connectors.kafka.sink import OutputSender
from recallflow.connectors.kafka.source import KafkaSource
from recallflow.operators import outbox
from recallflow.operators.partition import PartitionLogic
from recallflow.state.partition import Partition

POINTS = ("applied", "produced", "snapshot", "tail")


def arm(point: str, passes: int) -> None:
    """Kills this process at the given pass of a point."""
    left = [passes]

    def passed() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    {"applied": _at_applied, "produced": _at_produced, "snapshot": _at_snapshot, "tail": _at_tail}[point](passed)


def _at_applied(passed: Callable[[], None]) -> None:
    """RocksDB has taken a batch; nothing of it is produced."""
    commit = Partition.commit

    def committed(self: Partition) -> None:
        writes = bool(self._moved)
        commit(self)
        if writes:
            passed()

    patch.object(Partition, "commit", committed).start()


def _at_produced(passed: Callable[[], None]) -> None:
    """The broker has acknowledged new outputs; no snapshot says so."""
    send, flush = OutputSender.deliver, OutputSender.flush_outputs
    sent = [0]

    def counted(self: OutputSender, *args: Any) -> None:
        sent[0] += 1
        send(self, *args)

    def flushed(self: OutputSender) -> None:
        flush(self)
        if sent[0]:
            sent[0] = 0
            passed()

    patch.object(OutputSender, "deliver", counted).start()
    patch.object(OutputSender, "flush_outputs", flushed).start()


def _at_snapshot(passed: Callable[[], None]) -> None:
    """A state partition's snapshot is taken, and not committed."""
    snapshot = PartitionLogic.snapshot

    def taken(self: PartitionLogic) -> Any:
        result = snapshot(self)
        passed()
        return result

    patch.object(PartitionLogic, "snapshot", taken).start()


def _at_tail(passed: Callable[[], None]) -> None:
    """Some output partitions' tails are read, others not."""
    read = sink.read_tail

    def was_read(*args: Any) -> Any:
        result = read(*args)
        passed()
        return result

    patch.object(sink, "read_tail", was_read).start()


def take_out(stub: str) -> None:
    """Replaces one of the three safeguards by nothing, to see that the comparison notices."""
    read = sink.read_tail
    match stub:
        case "dedupe":
            patch.object(sink, "read_tail", lambda *args: ([], read(*args)[1])).start()
        case "positions":
            patch.object(Partition, "is_applied", lambda *_: False).start()
        case "outbox":
            patch.object(outbox, "read", lambda *_: []).start()


def stop_at_once() -> None:
    build = KafkaSource.build_part

    def built(self: KafkaSource, *args: Any) -> Any:
        self.stopping.set()
        return build(self, *args)

    patch.object(KafkaSource, "build_part", built).start()
