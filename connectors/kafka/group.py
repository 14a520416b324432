"""A consumer group as an arbiter: of all that join it as the same static member, the last one is in it, and the broker
refuses every commit of the others. The note of the one in it stands beside its committed offset."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import Complaints, passes
from recallflow.connectors.kafka.patience import Patience
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import SourceError

MEMBER = "engine"
ASK_S = 2.0
POLL_S = 0.1
HEARTBEAT_MAX_S = 3.0
JOIN_S = 30.0  # joining is a matter of milliseconds, unless the coordinator is being moved
_GONE = {KafkaError.GROUP_ID_NOT_FOUND}
# Our place is being given out anew, or is gone: the callbacks below and the next question tell which.
_AGAIN = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._MAX_POLL_EXCEEDED,
}
_FENCED = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}


class Fenced(Exception):
    """Another one has joined since."""


class Seen(NamedTuple):
    """`note`: what stands beside the committed offset, if anything. `member`: who is in the group, if anybody."""

    note: str | None
    member: str | None


class Group:
    """The way to a group."""

    def __init__(self, options: KafkaOptions, name: str, topic: str, session_s: float) -> None:
        self.name = name
        self._options = options
        self._topic = topic
        self._session_s = session_s

    def look(self) -> Seen:
        """Who is there, asked from outside. Raises SourceError where Kafka cannot be asked or the topic is missing."""
        with TopicReader(self._options, {"group.id": self.name}) as reader:
            reader.partitions([self._topic])
            member = reader.ask(self._member)
            note = reader.ask(lambda: _note(reader.consumer, self._topic))
        return Seen(note, member)

    def join(self) -> "Member":
        """Returns once we are in the group; whoever was is not any more. Raises SourceError."""
        member, waiting = Member(self._configuration(), self._topic), Patience(JOIN_S)
        try:
            while member.name is None and not waiting.ended():
                member.committed(POLL_S)
            if member.name is not None:
                return member
        except BaseException:
            member.close()
            raise
        member.close()
        raise SourceError(f"cannot join the consumer group {self.name} {waiting}: is it another's?")

    def _member(self) -> str | None:
        try:
            admin: Any = AdminClient(self._options.admin())
            found = admin.describe_consumer_groups([self.name], request_timeout=ASK_S)[self.name].result()
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                return None
            raise
        return None if found.state == ConsumerGroupState.DEAD or not found.members else found.members[0].member_id

    def _configuration(self) -> dict[str, object]:
        return self._options.consumer() | {
            "group.id": self.name,
            "group.instance.id": MEMBER,
            "group.protocol": "classic",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(1000 * self._session_s),
            "heartbeat.interval.ms": round(1000 * min(HEARTBEAT_MAX_S, self._session_s / 10)),
            "max.poll.interval.ms": round(1000 * max(300, self._session_s)),
            "auto.offset.reset": "latest",
            "queued.min.messages": 1,
        }


class Member:
    """Our place in the group: a consumer that reads nothing. It belongs to one thread at a time."""

    def __init__(self, configuration: dict[str, object], topic: str) -> None:
        self.name: str | None = None  # how the group knows us, once it does
        self.lost = False  # the group may have given our place up
        self._topic = topic
        self._complaints = Complaints()
        self._answer: KafkaError | bool | None = None
        callbacks = {"error_cb": self._complain, "on_commit": self._on_commit}
        self._consumer: Any = Consumer(configuration | callbacks)
        self._consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._lose, on_lost=self._lose)

    def note(self) -> str | None:
        """What stands beside the committed offset now. Raises KafkaException."""
        return _note(self._consumer, self._topic)

    def commit(self, note: str) -> None:
        """Sends what is to stand there; `committed` says what came of it."""
        try:
            self._consumer.commit(offsets=[TopicPartition(self._topic, 0, 0, note)], asynchronous=True)
        except KafkaException as error:  # already known to be out
            self._answer = error.args[0]

    def close(self) -> None:
        """Goes away without a word: the group keeps a static member's place for the length of a session."""
        self._consumer.close()

    def committed(self, wait_s: float) -> bool | None:
        """Whether the broker accepted what was sent; None while it is on its way. Raises Fenced, or SourceError where
        Kafka refuses us for another reason."""
        message = self._consumer.poll(wait_s)
        answer, self._answer = self._answer, None
        for error in (message and message.error(), answer):
            if isinstance(error, KafkaError):
                self._judge(error)
        self._complaints.check()
        if answer is None:
            return None
        # An empty group accepts a commit of anybody: only that of its member is a renewal.
        return answer is True and not self.lost and self._consumer.memberid() == self.name

    def _judge(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            raise Fenced
        if not (passes(error) or error.code() in _AGAIN):
            raise SourceError(
                f"the deployment's consumer group cannot be used: {error.str()}; is it another's, or READ missing?"
            )

    def _complain(self, error: KafkaError) -> None:
        if error.code() in _FENCED:
            self._answer = error
        else:
            self._complaints(error)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = OFFSET_END
        with self._keeping_failures():
            consumer.incremental_assign(partitions)
            consumer.pause(partitions)
            self.name = consumer.memberid()

    def _lose(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        # It would join again by itself, and put out whoever came meanwhile.
        self.lost = True
        with self._keeping_failures():
            consumer.unsubscribe()

    @contextlib.contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        """What a callback raises comes out of the client's poll as no exception that can be caught: `committed` raises
        it instead. Whoever was put out fails at whatever it asks of the group."""
        try:
            yield
        except KafkaException as error:
            self._answer = error.args[0]

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        failed = error or next((place.error for place in places if place.error is not None), None)
        self._answer = True if failed is None else failed


def _note(consumer: Any, topic: str) -> str | None:
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=ASK_S)
    if found.error is not None:
        raise KafkaException(found.error)
    note: str | None = found.metadata
    return note or None
