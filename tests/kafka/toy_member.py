"""A member of a deployment that owns partitions and sends nothing: it writes down when it could have.

    python -m tests.kafka.toy_member SERVERS GROUP MEMORY QUERIES SESSION_S DIR FILE [--instance-id ID] [--own RANGES]
        [--hold FILE] [--dies-joining]

A line of FILE: what it is about, the tenure (from a gain to a hand-over), partition, time, how many sends of the
partition there were by then. A line on standard input ends it in good order.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from recallflow.connectors.kafka.group import boottime_s
from recallflow.connectors.kafka.group_consumer import Committed, GroupConsumer
from recallflow.connectors.kafka.membership import Membership
from recallflow.errors import RecallflowError
from recallflow.kafka_options import KafkaOptions
from recallflow.owner import parse_ranges
from recallflow.process import Patience

PACE_S = 0.005
EVENTS = ("gain", "send", "give")


class Line(NamedTuple):
    event: str
    tenure: str
    partition: int
    at_s: float
    sent: int


class Toy:
    """Sends of each partition that it owns, as fast as it may."""

    def __init__(self, path: Path, hold: Path | None = None) -> None:
        """`hold`: revoked partitions are handed over once this file exists."""
        self._hold = hold
        self.owned: dict[int, tuple[str, int]] = {}  # partition → tenure, and what was sent
        self.lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def gain(self, places: dict[int, str | None]) -> None:
        with self.lock:
            for partition, text in places.items():
                self.owned[partition] = f"{os.getpid()}.{time.monotonic_ns()}", int(text or 0)
                self.write("gain", partition, boottime_s())

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        with self.lock:
            for partition in partitions:
                self.write("give", partition, boottime_s())
            final = {partition: committed(self.owned.pop(partition)[1]) for partition in partitions}
        while self._hold is not None and not self._hold.exists():
            time.sleep(PACE_S)
        return final

    def send(self, membership: Membership) -> None:
        with self.lock:
            for partition, (tenure, count) in self.owned.items():
                at_s = boottime_s()
                membership.check(Patience)
                self.owned[partition] = tenure, count + 1
                self.write("send", partition, at_s)
            membership.commit({partition: committed(count) for partition, (_, count) in self.owned.items()})

    def write(self, event: str, partition: int, at_s: float) -> None:
        tenure, count = self.owned[partition]
        os.write(self._file, f"{event} {tenure} {partition} {at_s} {count}\n".encode())


def committed(count: int) -> Committed:
    return Committed(count, count, str(count))


def read(path: Path) -> list[Line]:
    found = []
    for text in path.read_text().splitlines():
        if len(fields := text.split()) < len(Line._fields):
            continue  # whoever wrote it was killed, or is at it
        event, tenure, partition, at_s, sent = fields
        found.append(Line(event, tenure, int(partition), float(at_s), int(sent)))
    return sorted(found, key=lambda line: line.at_s)


def silences(lines: list[Line]) -> dict[int, list[tuple[float, float]]]:
    """Partition → the end of each tenure but the last, and the time until the next send; negative when two members
    sent."""
    spans: dict[int, dict[str, list[float]]] = {}
    for line in lines:
        if line.event == "send":
            spans.setdefault(line.partition, {}).setdefault(line.tenure, []).append(line.at_s)
    return {
        partition: [(ended[-1], began[0] - ended[-1]) for ended, began in pairwise(tenures.values())]
        for partition, tenures in spans.items()
    }


def await_a_line(told: threading.Event) -> None:
    sys.stdin.readline()
    told.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("servers", "group", "memory", "queries"):
        parser.add_argument(name)
    parser.add_argument("session_s", type=float)
    parser.add_argument("directory", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--instance-id")
    parser.add_argument("--own", type=parse_ranges)
    parser.add_argument("--hold", type=Path)
    parser.add_argument("--dies-joining", action="store_true", help="end when the group has admitted this member")
    chosen = parser.parse_args()
    chosen.directory.mkdir(exist_ok=True)
    if chosen.dies_joining:
        GroupConsumer._assign = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    toy = Toy(chosen.file, chosen.hold)
    membership = Membership(
        KafkaOptions(chosen.servers, {"topic.metadata.refresh.interval.ms": "500"}),
        chosen.group,
        chosen.memory,
        chosen.queries,
        toy,
        chosen.directory,
        chosen.session_s,
        instance_id=chosen.instance_id,
        own=chosen.own,
    )
    told = threading.Event()
    threading.Thread(target=await_a_line, args=[told], daemon=True).start()
    try:
        membership.start()
        while not told.wait(PACE_S) and membership.failure() is None:
            toy.send(membership)
        if (failure := membership.failure()) is not None:
            raise failure
        membership.release()
    except RecallflowError as error:
        membership.close()
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
