"""Consumer for group membership alone: assignments from the coordinator, and commits as a member. It reads no
records."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S
from recallflow.errors import SourceError
from recallflow.kafka_clients import ClientErrors, is_retriable
from recallflow.kafka_options import KafkaOptions

# How soon the other members notice a rebalance: a partition that moves pauses for about twice that.
HEARTBEAT_S = 0.3
LOOK_S = 2.0  # topic metadata interval: added partitions are assigned after it
REQUEST_S = 10.0  # a commit that is not answered by then is sent again
SHARING = "cooperative-sticky"
BY_HAND = "range"  # the coordinator refuses to mix members of both assignment protocols
# The group rebalances, or our membership has ended; the callbacks distinguish the two.
_AGAIN = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.MEMBER_ID_REQUIRED,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # one of two topics has more partitions; the other will follow
}
_FENCED = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}


class Committed(NamedTuple):
    """Progress of a partition: the next offsets of memory and queries, and a text of at most 4,000 characters."""

    memory_offset: int
    query_offset: int
    text: str


class CommittedEntry(NamedTuple):
    """Progress that the group keeps for a partition, with the note of its writer; both None if there is none."""

    committed: Committed
    note: str | None


class GroupConsumer:
    """Membership in the group. `poll` belongs to one thread; another may read and commit meanwhile."""

    def __init__(
        self,
        options: KafkaOptions,
        name: str,
        topics: tuple[str, str],  # memory topic, whose partitions are assigned, and query topic
        membership: Any,  # the `Membership` of this consumer, which receives assignments during `poll`
        *,
        session_s: float,
        rebalance_s: float,  # how long a member may take to hand over
        instance_id: str | None = None,  # id of a static member
        strategy: str = SHARING,
        new_consumer: Callable[..., Any] = Consumer,
    ) -> None:
        chosen: dict[str, object] = {
            "group.id": name,
            "group.protocol": "classic",
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": round(1000 * session_s),
            "heartbeat.interval.ms": round(1000 * HEARTBEAT_S),
            "max.poll.interval.ms": round(1000 * rebalance_s),
            "socket.timeout.ms": round(1000 * REQUEST_S),
            "topic.metadata.refresh.interval.ms": round(1000 * LOOK_S),
            "auto.offset.reset": "latest",
            "queued.min.messages": 1,
            "error_cb": self._complain,
        }
        static = {} if instance_id is None else {"group.instance.id": instance_id}
        self._memory, self._queries = topics
        self._membership = membership
        self._shares, self._is_new = strategy == SHARING, True
        self._client_errors = ClientErrors()
        self._failed: KafkaError | None = None  # error in a callback
        self.member_id: str | None = None  # member id assigned by the coordinator
        self._lost = False
        self._new_consumer, self._options = new_consumer, options.consumer() | chosen | static
        self._consumer: Any = None

    def join(self, is_new: bool) -> None:
        """Begin to join; `poll` completes it. `is_new`: the group has no static member with our instance id."""
        self._is_new = is_new
        self._consumer = self._new_consumer(self._options)
        self._subscribe(self._consumer)

    def _subscribe(self, consumer: Any) -> None:
        consumer.subscribe([self._memory], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)

    def poll(self, wait_s: float) -> None:
        """Serve callbacks. Raise DeploymentLost if another process has joined with our instance id, UsageError if the
        members use the other assignment mode, and SourceError where Kafka refuses us."""
        message = self._consumer.poll(wait_s)
        failed, self._failed = self._failed, None
        for error in (message and message.error(), failed):
            if isinstance(error, KafkaError):
                self._judge(error)
        self._client_errors.check()

    def read(self, partitions: Iterable[int]) -> dict[int, CommittedEntry] | None:
        """Return the committed progress of partitions; None to ask again. Raise as `poll`."""
        asked = [TopicPartition(topic, one) for one in partitions for topic in (self._memory, self._queries)]
        try:
            answers = self._consumer.committed(asked, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            self._judge(error.args[0])
            return None
        for one in answers:
            if one.error is not None:
                self._judge(one.error)
                return None
        queries = {one.partition: one for one in answers if one.topic == self._queries}
        found = {}
        for number, at in ((one.partition, one) for one in answers if one.topic == self._memory):
            committed = Committed(max(0, at.offset), max(0, queries[number].offset), at.metadata or "")
            found[number] = CommittedEntry(committed, queries[number].metadata or None)
        return found

    def commit(self, committed: Mapping[int, Committed], note: str) -> frozenset[int]:
        """Commit progress. Return the accepted partitions; the others may be tried again. Raise as `poll`.

        A memory offset without a text carries no information, and is not committed."""
        member_id = self.member_id
        offsets = [TopicPartition(self._queries, part, at.query_offset, note) for part, at in committed.items()]
        offsets += [
            TopicPartition(self._memory, part, at.memory_offset, at.text) for part, at in committed.items() if at.text
        ]
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._judge(error.args[0])
            return frozenset()
        failed = {answer.partition: answer.error for answer in answers if answer.error is not None}
        for reason in failed.values():
            self._judge(reason)
        # An empty group accepts commits of any client.
        if self._lost or member_id is None or self._consumer.memberid() != member_id:
            return frozenset()
        return frozenset(committed) - failed.keys()

    def leave(self) -> None:
        """Leave the group. A static member keeps its partitions for the length of a session."""
        if self._consumer is not None:
            self._consumer.close()

    def _judge(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            raise self._membership.replaced()
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            raise self._membership.other_assignment_mode()
        if not (is_retriable(error) or error.code() in _AGAIN):
            problem = f"{error.str()}; is it another's, or READ missing?"
            raise SourceError(f"the deployment's consumer group cannot be used: {problem}")

    def _complain(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            self._failed = error
        else:
            self._client_errors(error)

    # An exception of a callback cannot be caught from the client's poll, so `poll` raises it.

    def _assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            if self._shares:
                if self._is_new and self.member_id != consumer.memberid():
                    self._subscribe(consumer)  # during a rebalance, librdkafka rejoins afterwards
                for partition in partitions:
                    partition.offset = OFFSET_END
                consumer.incremental_assign(partitions)
                consumer.pause(partitions)
            else:
                consumer.assign([])
            self.member_id = consumer.memberid()
        except KafkaException as error:
            self._failed = error.args[0]
            return
        self._membership.assigned(_numbers(partitions))

    def _revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._membership.revoked(_numbers(partitions))
        try:
            if self._shares:
                consumer.incremental_unassign(partitions)
            else:
                consumer.unassign()
        except KafkaException as error:
            self._failed = error.args[0]

    def _lose(self, consumer: Any, _: list[TopicPartition]) -> None:
        self._lost = True
        self._membership.lost()
        try:  # otherwise it would rejoin, and fence a newer static member
            consumer.unsubscribe()
        except KafkaException as error:
            self._failed = error.args[0]


def _numbers(partitions: list[TopicPartition]) -> frozenset[int]:
    return frozenset(one.partition for one in partitions)
