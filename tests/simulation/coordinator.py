"""What the model assumes of the coordinator of a consumer group, as scenarios of plain consumers with their results.

Each scenario runs on the model and on a real broker, and gives the same there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

SESSION_S = 6.0
OPTIONS = {
    "group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": round(1000 * SESSION_S), "max.poll.interval.ms": round(1000 * SESSION_S),
    "heartbeat.interval.ms": 300, "socket.timeout.ms": 4000, "enable.auto.commit": False,
}  # fmt: skip
POLL_S = 0.1
GIVE_UP_POLLS = 400


class Group:
    def __init__(
        self, new_consumer: Callable[[dict[str, Any]], Any], connection: Mapping[str, Any], name: str, topic: str
    ) -> None:
        self._new_consumer, self._options = new_consumer, {**connection, **OPTIONS, "group.id": name}
        self.topic = topic
        self._consumers: list[Any] = []
        self._owned: dict[Any, set[int]] = {}

    def observer(self) -> Any:
        """Return a consumer that is no member."""
        made = self._new_consumer(self._options)
        self._consumers.append(made)
        return made

    def member(self, instance_id: str | None = None) -> Any:
        """Return a consumer that has begun to join."""
        made = self._new_consumer(self._options | ({} if instance_id is None else {"group.instance.id": instance_id}))
        self._consumers.append(made)
        owned = self._owned[made] = set()

        def assigned(consumer: Any, parts: list[TopicPartition]) -> None:
            owned.update(part.partition for part in parts)
            consumer.incremental_assign(parts)

        def revoked(consumer: Any, parts: list[TopicPartition]) -> None:
            owned.difference_update(part.partition for part in parts)
            consumer.incremental_unassign(parts)

        def lost(_: Any, __: list[TopicPartition]) -> None:
            owned.clear()

        made.subscribe([self.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
        return made

    def poll_until_owned(self, *consumers: Any, of: Any, count: int) -> None:
        for _ in range(GIVE_UP_POLLS):
            if len(self._owned[of]) == count:
                return
            for one in consumers:
                one.poll(POLL_S)
        raise AssertionError(f"a member owns {self._owned[of]}")

    def commit(self, consumer: Any, offset: int = 1, note: str = "") -> str:
        try:
            answers = consumer.commit(offsets=[TopicPartition(self.topic, 0, offset, note)], asynchronous=False)
        except KafkaException as error:
            return str(error.args[0].name())
        return next((str(one.error.name()) for one in answers if one.error is not None), "")

    def committed(self, consumer: Any) -> tuple[int, str]:
        (found,) = consumer.committed([TopicPartition(self.topic, 0)], timeout=10.0)
        return found.offset, found.metadata or ""

    def close(self) -> None:
        for one in self._consumers:
            one.close()


def metadata_comes_back(group: Group) -> list[object]:
    """A commit's metadata comes back with its offset; there is none before."""
    observer = group.observer()
    before = group.committed(observer)
    return [before, group.commit(observer, 3, "a note"), group.committed(observer)]


def only_members_commit(group: Group) -> list[object]:
    member, observer = group.member(), group.observer()
    group.poll_until_owned(member, of=member, count=2)
    return [group.commit(member, 2), group.commit(observer, 5), group.committed(observer)]


def member_that_does_not_poll_leaves(group: Group) -> list[object]:
    """A member joins a rebalance without being polled, and commits. As it gives up no partition in time, it leaves, and
    its commits are refused."""
    first = group.member()
    group.poll_until_owned(first, of=first, count=2)
    second = group.member()
    for _ in range(10):
        second.poll(POLL_S)
    during = group.commit(first, 4)
    group.poll_until_owned(second, of=second, count=2)
    return [during, group.commit(first, 7), group.committed(second)]


def static_twin_fences(group: Group) -> list[object]:
    """A static member takes over partitions of another process with its name, and fences it."""
    first = group.member("twin")
    group.poll_until_owned(first, of=first, count=2)
    second = group.member("twin")
    group.poll_until_owned(second, of=second, count=2)
    return [group.commit(first, 7), group.commit(second, 8), group.committed(second)]


Scenario = Callable[[Group], list[object]]
NONE = -1001, ""
SCENARIOS: dict[Scenario, list[object]] = {
    metadata_comes_back: [NONE, "", (3, "a note")], only_members_commit: ["", "UNKNOWN_MEMBER_ID", (2, "")],
    member_that_does_not_poll_leaves: ["", "UNKNOWN_MEMBER_ID", (4, "")],
    static_twin_fences: ["FENCED_INSTANCE_ID", "", (8, "")],
}  # fmt: skip
