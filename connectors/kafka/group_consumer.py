"""Consumer that is a group member, and reads no records: assignments from the coordinator, and commits as a member."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S
from recallflow.errors import SourceError
from recallflow.kafka_clients import ClientErrors, is_retriable
from recallflow.kafka_options import KafkaOptions

# Members learn of a rebalance by a heartbeat. A partition that moves pauses for about two intervals.
HEARTBEAT_INTERVAL_S = 0.3
METADATA_INTERVAL_S = 2.0  # of topics: added partitions are assigned after it
COMMIT_TIMEOUT_S = 10.0  # a commit that is not answered by then is sent again
COOPERATIVE = "cooperative-sticky"
MANUAL = "range"  # differs from COOPERATIVE, so that the coordinator refuses to mix members of both
# Errors while the group rebalances, or after our membership has ended. The callbacks distinguish the two.
_TRANSIENT = {
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
    """Progress that the group stores for a partition, with the note of its writer (a `Holder`), if there is one."""

    committed: Committed
    note: str | None


class GroupConsumer:
    """Membership in the group. One thread calls `poll`; another may read and commit meanwhile."""

    def __init__(
        self,
        options: KafkaOptions,
        name: str,
        topics: tuple[str, str],  # memory topic, whose partitions are assigned, and query topic
        membership: Any,  # the `Membership` of this consumer, which receives assignments during `poll`
        *,
        session_s: float,
        rebalance_s: float,  # how long a member may take to hand over
        instance_id: str | None,  # id of a static member
        strategy: str,  # COOPERATIVE or MANUAL
        new_consumer: Callable[..., Any],
    ) -> None:
        group_options: dict[str, object] = {
            "group.id": name,
            "group.protocol": "classic",
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": round(1000 * session_s),
            "heartbeat.interval.ms": round(1000 * HEARTBEAT_INTERVAL_S),
            "max.poll.interval.ms": round(1000 * rebalance_s),
            "socket.timeout.ms": round(1000 * COMMIT_TIMEOUT_S),
            "topic.metadata.refresh.interval.ms": round(1000 * METADATA_INTERVAL_S),
            "auto.offset.reset": "latest",
            "queued.min.messages": 1,
            "error_cb": self._on_error,
        }
        static = {} if instance_id is None else {"group.instance.id": instance_id}
        self._memory, self._queries = topics
        self._membership = membership
        self._is_cooperative, self._is_new = strategy == COOPERATIVE, True
        self._client_errors = ClientErrors()
        self._callback_error: KafkaError | None = None
        self.member_id: str | None = None  # assigned by the coordinator
        self._lost = False
        self._new_consumer, self._options = new_consumer, options.consumer() | group_options | static
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
        members use the other assignment mode, and SourceError if Kafka refuses us."""
        message = self._consumer.poll(wait_s)
        callback_error, self._callback_error = self._callback_error, None
        for error in (message and message.error(), callback_error):
            if isinstance(error, KafkaError):
                self._check(error)
        self._client_errors.check()

    def read(self, partitions: Iterable[int]) -> dict[int, CommittedEntry] | None:
        """Return the committed progress of partitions; None if the request must be repeated. Raise as `poll`."""
        parts = [TopicPartition(topic, one) for one in partitions for topic in (self._memory, self._queries)]
        try:
            answers = self._consumer.committed(parts, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            self._check(error.args[0])
            return None
        for one in answers:
            if one.error is not None:
                self._check(one.error)
                return None
        memories, queries = (
            {one.partition: one for one in answers if one.topic == topic} for topic in (self._memory, self._queries)
        )
        entries = {}
        for number, memory in memories.items():
            committed = Committed(max(0, memory.offset), max(0, queries[number].offset), memory.metadata or "")
            entries[number] = CommittedEntry(committed, queries[number].metadata or None)
        return entries

    def commit(self, committed: Mapping[int, Committed], note: str) -> frozenset[int]:
        """Commit progress. Return the accepted partitions; the others may be tried again. Raise as `poll`.

        A memory offset with an empty `text` is not committed, because no owner continues from it."""
        member_id = self.member_id
        offsets = [TopicPartition(self._queries, part, at.query_offset, note) for part, at in committed.items()]
        offsets += [
            TopicPartition(self._memory, part, at.memory_offset, at.text) for part, at in committed.items() if at.text
        ]
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._check(error.args[0])
            return frozenset()
        errors = {answer.partition: answer.error for answer in answers if answer.error is not None}
        for reason in errors.values():
            self._check(reason)
        # The group accepts commits of any client while it has no members.
        if self._lost or member_id is None or self._consumer.memberid() != member_id:
            return frozenset()
        return frozenset(committed) - errors.keys()

    def leave(self) -> None:
        """Leave the group. A static member keeps its partitions for the length of a session."""
        if self._consumer is not None:
            self._consumer.close()

    def _check(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            raise self._membership.replacement_error()
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            raise self._membership.assignment_mode_error()
        if not (is_retriable(error) or error.code() in _TRANSIENT):
            remedy = "check that no other program uses it, and grant the right READ on it"
            raise SourceError(f"the deployment's consumer group cannot be used: {error.str()}; {remedy}")

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            self._callback_error = error
        else:
            self._client_errors(error)

    # An exception of a callback cannot be caught from the client's poll, so `poll` raises it.

    def _assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            if self._is_cooperative:
                if self._is_new and self.member_id != consumer.memberid():
                    self._subscribe(consumer)  # rejoin afterwards: we, not an owner, begin the second rebalance
                for partition in partitions:
                    partition.offset = OFFSET_END
                consumer.incremental_assign(partitions)
                consumer.pause(partitions)
            else:
                consumer.assign([])
            self.member_id = consumer.memberid()
        except KafkaException as error:
            self._callback_error = error.args[0]
            return
        self._membership.assigned(frozenset(one.partition for one in partitions))

    def _revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._membership.revoked(frozenset(one.partition for one in partitions))
        try:
            if self._is_cooperative:
                consumer.incremental_unassign(partitions)
            else:
                consumer.unassign()
        except KafkaException as error:
            self._callback_error = error.args[0]

    def _lose(self, consumer: Any, _: list[TopicPartition]) -> None:
        self._lost = True
        self._membership.lost()
        try:  # otherwise it would rejoin, and fence a newer static member
            consumer.unsubscribe()
        except KafkaException as error:
            self._callback_error = error.args[0]
