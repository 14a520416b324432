"""Periodic queries to each partition, and the time that a partition does not answer because of a fault."""

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.fleet.engine import Topics
from tests.fleet.members import BACK, Episode, Seen, Span, moved, owners_at
from tests.fleet.records import Log, Sent, who

KIND = "probe"  # of the topic that answers go to
DRAIN_S = 60.0
POLL_S = 0.02
TEXT = "the walnut harbour"


class Probe(NamedTuple):
    """A question to a partition: when it was due and, if there was an answer, when."""

    partition: int
    due_s: float
    answered_s: float | None

    @property
    def ms(self) -> float:
        return float("inf") if self.answered_s is None else (self.answered_s - self.due_s) * 1000


def settle_in(log: Log, partitions: int) -> dict[int, Sent]:
    """One owner in each partition, with a memory to find."""
    found: dict[int, Sent] = {}
    while len(found) < partitions:
        told = [log.tell(f"probe{log.number()}", content=TEXT) for _ in range(partitions)]
        log.flush()
        found |= {int(sent.position.split(":")[1]): sent for sent in told}
    return found


class Probes:
    """Ask from `start` to `end`. Questions are asked when they are due, whatever became of those before."""

    def __init__(self, topics: Topics, owners: dict[int, Sent], every_s: float) -> None:
        self._topics, self._owners, self._every_s = topics, owners, every_s
        self._run = uuid.uuid4().hex[:8]
        self._due: dict[str, tuple[int, float]] = {}
        self._arrived: dict[str, list[float]] = {}
        self._over, self._drained = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._ask, self._listen)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Ask nothing more, and waits until all is answered, or nothing comes for long."""
        asking, listening = self._threads
        self._over.set()
        asking.join()
        deadline = time.monotonic() + DRAIN_S
        while len(self._arrived) < len(self._due) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._drained.set()
        listening.join()

    def probes(self) -> list[Probe]:
        found = [(name, *due) for name, due in list(self._due.items())]
        return [Probe(number, due_s, self._arrived.get(name, [None])[0]) for name, number, due_s in found]

    def lost(self) -> list[str]:
        return [name for name in self._due if name not in self._arrived]

    def twice(self) -> list[str]:
        return [name for name, times in self._arrived.items() if len(times) > 1]

    def _ask(self) -> None:
        producer = Producer({"bootstrap.servers": self._topics.cluster.bootstrap_servers, "linger.ms": 0})
        began_s, number = time.monotonic(), 0
        while not self._over.wait(max(0.0, began_s + number * self._every_s - time.monotonic())):
            for partition, owner in self._owners.items():
                name = f"{self._run}-{partition}-{number}"
                self._due[name] = (partition, time.monotonic())
                reply_to = {"topic": self._topics.of(KIND)}
                asked = {"type": "recall", "id": name, "query": TEXT, "k": 1, "explain": False, "reply_to": reply_to}
                fields = who(owner.owner)
                key = "/".join(fields.values())
                producer.produce(self._topics.of("query"), orjson.dumps(asked | fields), key, partition)
            producer.poll(0)
            number += 1
        producer.flush()

    def _listen(self) -> None:
        name = self._topics.of(KIND)
        settings = {"bootstrap.servers": self._topics.cluster.bootstrap_servers, "group.id": f"probes-{self._run}"}
        more = {"enable.auto.commit": False, "fetch.wait.max.ms": 5, "isolation.level": "read_uncommitted"}
        with closing(Consumer(settings | more | {"log_level": 0})) as consumer:
            parts = [TopicPartition(name, number, OFFSET_BEGINNING) for number in self._topics.bounds(KIND)]
            consumer.assign(parts)
            while not self._drained.is_set():
                for message in consumer.consume(1_000, POLL_S):
                    if message.error() is None:
                        query_id = orjson.loads(message.value() or b"")["query_id"]
                        self._arrived.setdefault(query_id, []).append(time.monotonic())


ALONG = "moved along"  # a partition of a member that nothing happened to, before the others were back


@dataclass
class Silence:
    """Milliseconds. `longest`: by cause, for each partition and each time the longest that an answer took."""

    idle_p50: float = 0.0
    idle_p95: float = 0.0
    still_p50: float = 0.0  # of partitions that stayed where they were, while others moved
    still_p95: float = 0.0
    longest: dict[str, list[float]] = field(default_factory=dict)


def measure(probes: Sequence[Probe], idle: Span, episodes: Iterable[Episode], seen: Sequence[Seen]) -> Silence:
    """A probe belongs to the span in which it was due. A partition of a member that was hit was silent because of the
    fault until another one answered for it, also after the member came back; what moves then moves because of that."""
    still: list[float] = []
    longest: dict[str, list[float]] = defaultdict(list)
    for fault, back in episodes:
        before, after = owners_at(seen, fault.from_s), owners_at(seen, back.to_s)
        gone = set(before.values()) - set(after.values())
        moved_away, moved_back = (moved(seen, span.from_s, span.to_s) for span in (fault, back))
        for partition, owner in before.items():
            away, returned = ([p for p in within(span, probes) if p.partition == partition] for span in (fault, back))
            taken_over = partition in moved_away and recovered(away, back.from_s)
            if owner in gone and not taken_over:
                away, returned = away + returned, []
            if owner in gone or partition in moved_away:
                longest[fault.cause if owner in gone else ALONG].extend(longest_of(away))
                away = []
            if partition in moved_back:
                longest[BACK].extend(longest_of(returned))
                returned = []
            still.extend(probe.ms for probe in away + returned)
    idle_ms = [probe.ms for probe in within(idle, probes)]
    found = {cause: times_ms for cause, times_ms in longest.items() if times_ms}
    return Silence(*shares(idle_ms), *shares(still), longest=found)


def recovered(away: Sequence[Probe], back_s: float) -> bool:
    return bool(away) and (answered_s := away[-1].answered_s) is not None and answered_s < back_s


def within(span: Span, probes: Iterable[Probe]) -> list[Probe]:
    return [probe for probe in probes if span.from_s <= probe.due_s < span.to_s]


def longest_of(probes: Sequence[Probe]) -> list[float]:
    return [max(probe.ms for probe in probes)] if probes else []


def shares(times_ms: list[float]) -> tuple[float, float]:
    return (float(np.percentile(times_ms, 50)), float(np.percentile(times_ms, 95))) if times_ms else (0.0, 0.0)
