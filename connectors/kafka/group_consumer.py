"""A consumer that reads nothing: what a group's coordinator assigns to it, and what it commits as a member."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import Complaints, passes
from recallflow.errors import SourceError

ASK_S = 2.0
# How soon the others hear of a rebalance: a partition that moves is silent for about twice that.
HEARTBEAT_S = 0.3
LOOK_S = 2.0  # at the topic: what is added to it is assigned then
REQUEST_S = 10.0  # a commit that is not answered by then is sent again
SHARING = "cooperative-sticky"
BY_HAND = "range"  # the coordinator takes no member of the one way where there are members of the other
# Our place is being given out anew, or is gone: the callbacks tell which.
_AGAIN = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.MEMBER_ID_REQUIRED,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # one of two topics has grown, and the other one will
}
_FENCED = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}


class Fenced(Exception):
    """Another one has joined under our name since."""


class OtherAssignmentMode(Exception):
    """The group's members assign partitions in the other way."""


class Committed(NamedTuple):
    """How far a partition is: the next offsets of memory and queries, and what else there is to say of it. A text has
    no more than 4,000 characters."""

    memory_offset: int
    query_offset: int
    text: str


class Found(NamedTuple):
    """What stands in the group for a partition: how far it is, if anybody said so, and who said it."""

    committed: Committed
    note: str | None


class Listener(Protocol):
    """What is told of assignments, in `GroupConsumer.poll`. A partition moves on when `revoked` returns."""

    def assigned(self, partitions: frozenset[int]) -> None: ...

    def revoked(self, partitions: frozenset[int]) -> None: ...

    def lost(self) -> None: ...


class GroupConsumer:
    """Our membership. `poll` belongs to one thread; another may read and commit meanwhile."""

    def __init__(
        self,
        options: KafkaOptions,
        name: str,
        topics: tuple[str, str],
        listener: Listener,
        *,
        session_s: float,
        rebalance_s: float,
        instance_id: str | None = None,
        strategy: str = SHARING,
        new_consumer: Callable[..., Any] = Consumer,
    ) -> None:
        """`topics`: of memory, whose partitions are assigned, and of queries. `rebalance_s`: so long a member may take
        to give up what moves. `instance_id`: of a static member."""
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
        self._listener = listener
        self._shares, self._is_new = strategy == SHARING, True
        self._complaints = Complaints()
        self._failed: KafkaError | None = None  # in a callback
        self.member_id: str | None = None  # how the coordinator knows us
        self._lost = False
        self._new_consumer, self._options = new_consumer, options.consumer() | chosen | static
        self._consumer: Any = None

    def join(self, is_new: bool) -> None:
        """Begin to join; `poll` goes on. `is_new`: the group has no static member of our name, whose place we take."""
        self._is_new = is_new
        self._consumer = self._new_consumer(self._options)
        self._subscribe(self._consumer)

    def _subscribe(self, consumer: Any) -> None:
        consumer.subscribe([self._memory], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)

    def poll(self, wait_s: float) -> None:
        """Serves callbacks. Raises Fenced, OtherAssignmentMode, or SourceError where Kafka refuses us."""
        message = self._consumer.poll(wait_s)
        failed, self._failed = self._failed, None
        for error in (message and message.error(), failed):
            if isinstance(error, KafkaError):
                self._judge(error)
        self._complaints.check()

    def read(self, partitions: Iterable[int]) -> dict[int, Found] | None:
        """What stands in the group for partitions; None where it has to be asked again. Raises as `poll`."""
        asked = [TopicPartition(topic, one) for one in partitions for topic in (self._memory, self._queries)]
        try:
            answers = self._consumer.committed(asked, timeout=ASK_S)
        except KafkaException as error:
            self._judge(error.args[0])
            return None
        for one in answers:
            if one.error is not None:
                self._judge(one.error)
                return None
        by_place = {(one.topic, one.partition): one for one in answers}
        return {
            number: self._found(by_place[self._memory, number], by_place[self._queries, number])
            for topic, number in by_place
            if topic == self._memory
        }

    def _found(self, memory: TopicPartition, queries: TopicPartition) -> Found:
        committed = Committed(max(0, memory.offset), max(0, queries.offset), memory.metadata or "")
        return Found(committed, queries.metadata or None)

    def commit(self, committed: Mapping[int, Committed], note: str) -> frozenset[int]:
        """Of which partitions the coordinator took it, from us as its member; it may be tried again with the others.
        Raises as `poll`. An offset of memory without a text says nothing: it is not committed."""
        member_id = self.member_id
        places = [TopicPartition(self._queries, part, at.query_offset, note) for part, at in committed.items()]
        places += [
            TopicPartition(self._memory, part, at.memory_offset, at.text) for part, at in committed.items() if at.text
        ]
        try:
            answers = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            self._judge(error.args[0])
            return frozenset()
        failed = {answer.partition: answer.error for answer in answers if answer.error is not None}
        for reason in failed.values():
            self._judge(reason)
        # An empty group accepts a commit of anybody.
        if self._lost or member_id is None or self._consumer.memberid() != member_id:
            return frozenset()
        return frozenset(committed) - failed.keys()

    def leave(self) -> None:
        """Leaves the group, in which a static member's place is kept for the length of a session."""
        if self._consumer is not None:
            self._consumer.close()

    def _judge(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            raise Fenced
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            raise OtherAssignmentMode
        if not (passes(error) or error.code() in _AGAIN):
            raise SourceError(
                f"the deployment's consumer group cannot be used: {error.str()}; is it another's, or READ missing?"
            )

    def _complain(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            self._failed = error
        else:
            self._complaints(error)

    # What a callback raises comes out of the client's poll as no exception that can be caught, so `poll` raises it.

    def _assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            if self._shares:
                if self._is_new and self.member_id != consumer.memberid():
                    self._subscribe(consumer)  # within a rebalance, librdkafka joins again for it when that has ended
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
        self._listener.assigned(_numbers(partitions))

    def _revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._listener.revoked(_numbers(partitions))
        try:
            if self._shares:
                consumer.incremental_unassign(partitions)
            else:
                consumer.unassign()
        except KafkaException as error:
            self._failed = error.args[0]

    def _lose(self, consumer: Any, _: list[TopicPartition]) -> None:
        self._lost = True
        self._listener.lost()
        try:  # it would join again by itself, and as a static member put out whoever came meanwhile
            consumer.unsubscribe()
        except KafkaException as error:
            self._failed = error.args[0]


def _numbers(partitions: list[TopicPartition]) -> frozenset[int]:
    return frozenset(one.partition for one in partitions)
