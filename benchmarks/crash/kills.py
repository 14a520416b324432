"""What is done to a process from inside: it dies at a named point, or does without a safeguard."""

import os
import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from benchmarks.crash.layout import PARTITIONS
from recallflow.connectors.kafka.delivery import OutputSender, Sent
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.flows.ownership import Ownership
from recallflow.operators import outbox
from recallflow.operators.step import StateStep
from recallflow.state.partition import Partition

POINTS = ("applied", "produced", "marked", "opened")


def arm(point: str, passes: int) -> None:
    """Kills this process at the given pass of a point."""
    left = [passes]

    def passed() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    {"applied": _at_applied, "produced": _at_produced, "marked": _at_marked, "opened": _at_opened}[point](passed)


def _at_applied(passed: Callable[[], None]) -> None:
    """RocksDB has taken a batch; nothing of it is produced."""
    commit = Partition.commit

    def committed(self: Partition, **chosen: bool) -> None:
        writes = bool(self._moved)
        commit(self, **chosen)
        if writes:
            passed()

    patch.object(Partition, "commit", committed).start()


def _at_produced(passed: Callable[[], None]) -> None:
    """The broker has acknowledged new outputs, and the state is synced; how far it is was not committed."""
    send, commit = OutputSender.deliver, Ownership.marked
    sent = [0]

    def counted(self: OutputSender, *args: Any) -> None:
        sent[0] += 1
        send(self, *args)

    def marked(self: Ownership, *args: Any) -> None:
        if sent[0]:
            sent[0] = 0
            passed()
        commit(self, *args)

    patch.object(OutputSender, "deliver", counted).start()
    patch.object(Ownership, "marked", marked).start()


def _at_marked(passed: Callable[[], None]) -> None:
    """The sync of a partition's state up to a mark has begun, and how far it is was not committed."""
    mark = StateStep.mark

    def marked(self: StateStep, *args: Any) -> Any:
        result = mark(self, *args)
        passed()
        return result

    patch.object(StateStep, "mark", marked).start()


def _at_opened(passed: Callable[[], None]) -> None:
    """What was sent before is looked up; some partitions are opened, others not."""
    begin = Ownership._open

    def opened(self: Ownership, *args: Any) -> None:
        begin(self, *args)
        passed()

    patch.object(Ownership, "_open", opened).start()


def take_out(stub: str) -> None:
    """Replaces one of the three safeguards by nothing, to see that the comparison notices."""
    match stub:
        case "dedupe":
            patch.object(Sent, "claim", lambda *_: False).start()
        case "positions":
            patch.object(Partition, "is_applied", lambda *_: False).start()
        case "outbox":
            patch.object(outbox, "read", lambda *_: []).start()


def stop_once_owned() -> None:
    """Ends the flow, as an operator would, when it has every partition."""
    begin = OwnedSource.next_batch

    def given(self: OwnedSource) -> list[Any]:
        if len(self.partitions()) == PARTITIONS:
            self.stopping.set()
        return begin(self)

    patch.object(OwnedSource, "next_batch", given).start()
