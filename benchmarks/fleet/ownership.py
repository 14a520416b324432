"""Which member of the deployment's group has which partition, as the brokers know it, over time."""

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks.torture.topics import Topics

LOOK_S = 0.1
ASK_S = 5.0

Owners = dict[int, str]  # partition → the member that has it


class Seen(NamedTuple):
    """What was so from then on."""

    at_s: float
    owners: Owners


class Ownership(threading.Thread):
    """Looks again and again, until it is told to end."""

    def __init__(self, topics: Topics, group: str) -> None:
        super().__init__(daemon=True)
        self._topic, self._group = topics.of("memory"), group
        self._admin: Any = AdminClient({"bootstrap.servers": topics.cluster.bootstrap_servers, "log_level": 0})
        self._over = threading.Event()
        self.seen: list[Seen] = []

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            seen = Seen(time.monotonic(), self.look())
            if not self.seen or self.seen[-1].owners != seen.owners:
                self.seen.append(seen)

    def end(self) -> None:
        self._over.set()
        self.join()

    def look(self) -> Owners:
        """Who has what now; nobody anything where the group is not there yet, or its coordinator is not."""
        try:
            asked = self._admin.describe_consumer_groups([self._group], request_timeout=ASK_S)
            members = asked[self._group].result().members
        except KafkaException:
            return {}
        parts = ((part, one.member_id) for one in members for part in one.assignment.topic_partitions)
        return {part.partition: member for part, member in parts if part.topic == self._topic}


def owners_at(seen: Iterable[Seen], at_s: float) -> Owners:
    """Who had what at a moment."""
    found: Owners = {}
    for one in seen:
        found = one.owners if one.at_s <= at_s else found
    return found


def moved(seen: Iterable[Seen], from_s: float, to_s: float) -> set[int]:
    """The partitions that were not one and the same member's all the time."""
    states = [owners_at(seen, from_s), *(one.owners for one in seen if from_s < one.at_s <= to_s)]
    return {part for state in states for part in state if len({other.get(part) for other in states}) > 1}
