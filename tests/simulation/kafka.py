"""An in-process model of Kafka at the level of the `confluent_kafka` classes that the product uses.

A broker holds logs and the coordinator of consumer groups (classic protocol, dynamic and static members, cooperative
and eager). Requests take time, and a fault may delay them, lose their replies, or make the broker unreachable. What
librdkafka does on threads of its own (joining, heartbeats, sending) runs as timers of the client's process, so it stops
with that process.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import confluent_kafka
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, ConsumerGroupState, KafkaError, KafkaException, TopicPartition

from tests.simulation.world import EPOCH_S, Killed, Process, Task, World

LATENCY_S = 0.001
LATENCY_MAX_S = 0.006
DELAY_MAX_S = 0.8  # of a delayed request: below what the product's lease allows for
RETRY_S = 0.3  # pause of a client between attempts to reach the broker
HEARTBEAT_S = 0.3
REJOIN_S = 1.0  # librdkafka joins no sooner after the last time
HANGS = 0.1  # of the connections that lose a reply, those whose end nobody notices before the request times out
NO_OFFSET = -1001
HEARTBEAT_LOST = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION}

STATES = {
    "empty": ConsumerGroupState.EMPTY, "preparing": ConsumerGroupState.PREPARING_REBALANCING,
    "completing": ConsumerGroupState.COMPLETING_REBALANCING, "stable": ConsumerGroupState.STABLE,
}  # fmt: skip
TOPIC_CONFIG = {
    "max.message.bytes": "1000000", "message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete",
    "retention.ms": "-1", "retention.bytes": "-1",
}  # fmt: skip

Part = tuple[str, int]
Joined = Callable[[int, Any], None]  # takes an error code and the result of a JoinGroup
Headers = tuple[tuple[str, bytes | None], ...]


def failure(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class Message(confluent_kafka.Message):
    """A record as a consumer is given it, or a consumer's event."""

    visible_s = 0.0
    sender: Process | None = None

    def __init__(self, part: Part, offset: int, append_ms: int = 0, **fields: Any) -> None:
        super().__init__(*part, offset, timestamp=(TIMESTAMP_LOG_APPEND_TIME, append_ms), **fields)
        self.append_ms = append_ms


@dataclass
class Log:
    """One partition. Offset n is `records[n]`; records below `low` are gone."""

    records: list[Any] = field(default_factory=list)
    low: int = 0

    @property
    def end(self) -> int:
        return len(self.records)


class Answer:
    def __init__(self, of: World) -> None:
        self._world = of
        self._waiters: list[Task] = []
        self.result: Any = None
        self.error: KafkaException | None = None
        self.is_there = False

    def give(self) -> None:
        self.is_there = True
        self._world.wake_all(self._waiters)

    def get(self, timeout_s: float) -> Any:
        if not self.is_there:
            self._world.block(self._waiters, timeout_s)
        if not self.is_there:
            raise failure(KafkaError._TIMED_OUT)
        if self.error is not None:
            raise self.error
        return self.result


class Broker:
    def __init__(self, of: World, topics: Mapping[str, int]) -> None:
        self.world = of
        self.logs: dict[Part, Log] = {
            (name, number): Log() for name, count in topics.items() for number in range(count)
        }
        self.counts = dict(topics)
        self.groups: dict[str, Group] = {}
        self.is_away = False
        self.lost = 0.0  # probability that a reply is lost
        self.delayed = 0.0  # probability that a request is delayed
        self.watchers: dict[Consumer, None] = {}
        self.appended: list[Callable[[Message], None]] = []
        self.committed: list[Callable[[Part, str, Process], None]] = []
        described = {
            name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(count), SimpleNamespace(leader=1)))
            for name, count in topics.items()
        }
        self._metadata = SimpleNamespace(cluster_id="simulated", topics=described)

    def latency_s(self) -> float:
        draw = self.world.random.random
        if self.delayed and draw() < self.delayed:
            return draw() * DELAY_MAX_S
        return LATENCY_S + draw() * (LATENCY_MAX_S - LATENCY_S)

    def is_away_for(self, process: Process) -> bool:
        return self.is_away or process.is_cut_off

    def loses(self) -> bool:
        return bool(self.lost) and self.world.random.random() < self.lost

    def send(self, work: Callable[[], Any]) -> "Answer":
        task = self.world.current
        if task is None or task.process.is_dead:
            raise Killed
        answer = Answer(self.world)
        process = task.process

        def fail(code: int) -> None:
            answer.error = failure(code)
            answer.give()

        def arrive() -> None:
            if self.is_away_for(process):
                process.later(0.1, lambda: fail(KafkaError._TRANSPORT))
                return
            try:
                answer.result = work()
            except KafkaException as error:
                answer.error = error
            if not self.loses():
                process.later(self.latency_s() if self.delayed else 0.0, answer.give)
            elif self.world.random.random() >= HANGS:
                process.later(RETRY_S, lambda: fail(KafkaError._TRANSPORT))

        if self.is_away_for(process):
            process.later(RETRY_S * (0.5 + self.world.random.random()), lambda: fail(KafkaError._TRANSPORT))
        else:
            self.world.later(self.latency_s(), arrive)
        return answer

    def call(self, work: Callable[[], Any], timeout_s: float) -> Any:
        """Return the broker's response to the current thread, or raise KafkaException."""
        return self.send(work).get(timeout_s)

    def now_ms(self) -> int:
        return int((EPOCH_S + self.world.now_s) * 1000)

    def append(
        self, part: Part, key: bytes | None, value: bytes | None, headers: Headers = (), *,
        append_ms: int | None = None, sender: Process | None = None,
    ) -> Any:  # fmt: skip
        log = self.logs[part]
        at_ms = self.now_ms() if append_ms is None else append_ms
        message = Message(part, log.end, at_ms, key=key, value=value, headers=[*headers] or None)
        message.visible_s = self.world.now_s + self.latency_s()
        message.sender = sender
        log.records.append(message)
        for call in self.appended:
            call(message)
        for consumer in self.watchers:
            if part in consumer.assigned:
                self.world.later(message.visible_s - self.world.now_s, consumer.notice)
        return message

    def metadata(self) -> Any:
        return self._metadata

    def group(self, name: str) -> "Group":
        if name not in self.groups:
            self.groups[name] = Group(self, name)
        return self.groups[name]


@dataclass
class Member:
    id: str
    client: "Consumer"
    instance: str | None
    session_s: float
    rebalance_s: float
    topics: tuple[str, ...]
    owned: frozenset[int] = frozenset()
    assigned: frozenset[int] = frozenset()
    alive_s: float = 0.0  # the last sign of life
    joined: Joined | None = None  # answers a JoinGroup under way


class Group:
    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name = broker, name
        self.world = broker.world
        self.members: dict[str, Member] = {}
        self.fenced: set[str] = set()
        self.generation = 0
        self.state = "empty"
        self.offsets: dict[Part, tuple[int, str]] = {}
        self._serial = 0
        self._round = 0

    # each of these runs at the broker

    def join(self, client: "Consumer", member_id: str, answer: Joined) -> None:
        instance = client.instance
        if member_id and member_id not in self.members:
            answer(KafkaError.FENCED_INSTANCE_ID if member_id in self.fenced else KafkaError.UNKNOWN_MEMBER_ID, None)
            return
        if not member_id:
            self._serial += 1
            member_id = f"{instance or 'member'}-{self._serial}"
            before = next((one for one in self.members.values() if instance and one.instance == instance), None)
            member = Member(
                member_id, client, instance, client.session_s, client.rebalance_s, client.topics,
                alive_s=self.world.now_s,
            )  # fmt: skip
            if before is not None:
                del self.members[before.id]
                self.fenced.add(before.id)
                if before.joined is not None:
                    before.joined(KafkaError.FENCED_INSTANCE_ID, None)
                member.assigned = before.assigned
            self.members[member_id] = member
            self._expire_later(member)
            if before is not None and self.state == "stable":
                answer(0, (member_id, self.generation, member.assigned))
                return
        member = self.members[member_id]
        member.owned, member.joined, member.alive_s = client.owned, answer, self.world.now_s
        self._prepare()
        self._complete_if_all()

    def _prepare(self) -> None:
        if self.state == "preparing":
            return
        self.state = "preparing"
        self._round += 1
        round_ = self._round
        most_s = max((one.rebalance_s for one in self.members.values()), default=0.0)
        self.world.later(most_s, lambda: self._give_up_missing(round_))

    def _give_up_missing(self, round_: int) -> None:
        if self.state == "preparing" and self._round == round_:
            for member in [one for one in self.members.values() if one.joined is None]:
                del self.members[member.id]
            self._complete_if_all()

    def _complete_if_all(self) -> None:
        if self.state != "preparing" or any(one.joined is None for one in self.members.values()):
            return
        if not self.members:
            self.state = "empty"
            self.generation += 1
            return
        self.generation += 1
        self.state = "completing"
        leader = next(iter(self.members.values()))
        generation = self.generation
        answers = [(one, one.joined) for one in self.members.values()]
        for member, answer in answers:
            member.joined, member.alive_s = None, self.world.now_s
            if answer is not None and member is not leader:
                self.world.later(self.broker.latency_s(), partial(self._await_sync, member, answer, generation))
        # The leader computes the assignment and brings it with its SyncGroup.
        found = assign(self.broker.counts[leader.topics[0]], self.members)
        first = next(answer for member, answer in answers if member is leader)
        leader.client.process.later(2 * self.broker.latency_s(), lambda: self._sync(leader, first, generation, found))

    def _await_sync(self, member: Member, answer: Joined, generation: int) -> None:
        if self.generation != generation or member.id not in self.members:
            answer(KafkaError.REBALANCE_IN_PROGRESS, member.id)
        elif self.state == "stable":
            answer(0, (member.id, generation, member.assigned))
        else:
            self.world.later(0.002, lambda: self._await_sync(member, answer, generation))

    def _sync(
        self, leader: Member, answer: "Callable[[int, Any] , None] | None", generation: int,
        found: dict[str, frozenset[int]],
    ) -> None:  # fmt: skip
        if answer is None:
            return
        if (
            self.broker.is_away_for(leader.client.process)
            or self.generation != generation
            or self.state != "completing"
        ):
            answer(KafkaError.REBALANCE_IN_PROGRESS, leader.id)
            return
        for member in self.members.values():
            member.assigned = found.get(member.id, frozenset())
        self.state = "stable"
        answer(0, (leader.id, generation, leader.assigned))

    def heartbeat(self, member_id: str, generation: int) -> int:
        if error := self._check(member_id, generation):
            return error
        self.members[member_id].alive_s = self.world.now_s
        return KafkaError.REBALANCE_IN_PROGRESS if self.state == "preparing" else 0

    def _check(self, member_id: str, generation: int) -> int:
        if member_id in self.fenced:
            return KafkaError.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return KafkaError.UNKNOWN_MEMBER_ID
        return KafkaError.ILLEGAL_GENERATION if generation != self.generation else 0

    def commit(self, process: Process, member_id: str, generation: int, places: Sequence[Any]) -> None:
        if generation < 0 and not self.members:
            pass  # an empty group accepts a commit of anybody
        elif error := self._check(member_id, generation):
            raise failure(error)
        elif self.state == "completing":
            raise failure(KafkaError.REBALANCE_IN_PROGRESS)
        if member_id in self.members:
            self.members[member_id].alive_s = self.world.now_s
        for place in places:
            part = place.topic, place.partition
            self.offsets[part] = place.offset, place.metadata or ""
            for call in self.broker.committed:
                call(part, place.metadata or "", process)

    def leave(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is not None:
            self._prepare()
            self._complete_if_all()

    def _expire_later(self, member: Member) -> None:
        self.world.later(member.alive_s + member.session_s - self.world.now_s + 0.001, lambda: self._expire(member))

    def _expire(self, member: Member) -> None:
        if self.members.get(member.id) is not member:
            return
        waits = member.joined is not None
        if waits or self.broker.is_away:  # a coordinator that was away gives each member a session more
            member.alive_s = self.world.now_s
        if self.world.now_s - member.alive_s >= member.session_s:
            self.leave(member.id)
        else:
            self._expire_later(member)


def assign(count: int, members: Mapping[str, Member]) -> dict[str, frozenset[int]]:
    """Assign partitions like the cooperative-sticky assignor: balanced; partitions that others still own stay
    unassigned."""
    if all(not member.client.is_cooperative for member in members.values()):
        return dict.fromkeys(members, frozenset[int]())
    fewest, more = divmod(count, len(members))
    claims: dict[int, str] = {}
    for name, member in members.items():
        for number in sorted(member.owned):
            claims.setdefault(number, name)
    kept: dict[str, list[int]] = {name: [] for name in members}
    for number, name in sorted(claims.items()):
        room = fewest + (1 if more > 0 else 0)
        if number < count and len(kept[name]) < room:
            kept[name].append(number)
            more -= len(kept[name]) == fewest + 1
    for number in range(count):
        if not any(number in found for found in kept.values()):
            least = min(kept, key=lambda name: (len(kept[name]), name))
            kept[least].append(number)
    return {
        name: frozenset(number for number in found if claims.get(number, name) == name) for name, found in kept.items()
    }


_broker: list[Broker] = []


def broker() -> Broker:
    """The broker that clients of the world connect to."""
    return _broker[-1]


@contextlib.contextmanager
def connected(made: Broker) -> Iterator[None]:
    """Let new clients connect to this broker."""
    _broker.append(made)
    try:
        yield
    finally:
        _broker.pop()


class Consumer:
    """`confluent_kafka.Consumer`: a member of a group, or a reader of partitions that it was assigned by hand."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._broker = broker()
        self.world = self._broker.world
        task = self.world.current
        if task is None or task.process.is_dead:
            raise Killed
        self.process = task.process
        self._group = self._broker.group(str(options["group.id"]))
        self.instance: str | None = options.get("group.instance.id")
        self.session_s = int(options.get("session.timeout.ms", 45_000)) / 1000
        self.rebalance_s = int(options.get("max.poll.interval.ms", 300_000)) / 1000
        self.is_cooperative = options.get("partition.assignment.strategy") == "cooperative-sticky"
        self._socket_s = int(options.get("socket.timeout.ms", 60_000)) / 1000
        self._reports_ends = bool(options.get("enable.partition.eof"))
        self._reset = str(options.get("auto.offset.reset", "latest"))
        self._complain: Callable[[KafkaError], None] = options.get("error_cb", lambda _: None)
        self.topics: tuple[str, ...] = ()
        self.assigned: dict[Part, int] = {}  # partition → the next offset
        self._paused: set[Part] = set()
        self._ended: dict[Part, int] = {}
        self._waiters: list[Task] = []
        # membership
        self.owned: frozenset[int] = frozenset()
        self._member_id = ""
        self._generation = -1
        self._callbacks: dict[str, Callable[..., None]] = {}
        self._events: deque[tuple[str, Any]] = deque()
        self._is_joining = self._is_calling = self._rejoins = self._is_closed = False
        self._is_new = False  # joined, and not synced yet
        self._join_waiters: list[Task] = []
        self._joined_s = -REJOIN_S
        self._alive_s = 0.0
        self._polled_s: float | None = self.world.now_s  # None within a poll, its callbacks included
        self._broker.watchers[self] = None

    def notice(self) -> None:
        if not self.process.is_dead:
            self.world.wake_all(self._waiters)

    def assign(self, parts: Iterable[TopicPartition]) -> None:
        self._check_alive()
        self.assigned = {(one.topic, one.partition): one.offset for one in parts}
        self._ended.clear()

    def incremental_assign(self, parts: Iterable[TopicPartition]) -> None:
        self._check_alive()
        given = {(one.topic, one.partition): one.offset for one in parts}
        if self.topics:
            self.owned |= frozenset(number for _, number in given)
            return
        self.assigned |= given
        for part in given:
            self._ended.pop(part, None)
        self.notice()

    def incremental_unassign(self, parts: Iterable[TopicPartition]) -> None:
        self._check_alive()
        for one in parts:
            if self.topics:
                self.owned -= {one.partition}
            self.assigned.pop((one.topic, one.partition), None)
            self._paused.discard((one.topic, one.partition))

    def unassign(self) -> None:
        self.assigned.clear()
        self.owned = frozenset()

    def pause(self, parts: Iterable[TopicPartition]) -> None:
        self._paused |= {(one.topic, one.partition) for one in parts}

    def resume(self, parts: Iterable[TopicPartition]) -> None:
        self._paused -= {(one.topic, one.partition) for one in parts}
        self.notice()

    def poll(self, timeout: float = -1) -> Message | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        self._check_alive()
        self._polled_s = None
        try:
            return self._consume(num_messages, timeout)
        finally:
            self._polled_s = self.world.now_s

    def _consume(self, num_messages: int, timeout: float) -> list[Message]:
        self.world.preempt()
        until_s = self.world.now_s + timeout if timeout >= 0 else None
        while True:
            self._serve()
            found: list[Message] = []
            while len(found) < num_messages and (message := self._next()) is not None:
                found.append(message)
            left_s = 60.0 if until_s is None else until_s - self.world.now_s
            if found or left_s <= 0:
                return found
            self.world.block(self._waiters, left_s)

    def _next(self) -> Any:
        if self._broker.is_away_for(self.process) or self.topics:
            return None
        for part, offset in self.assigned.items():
            if part in self._paused:
                continue
            log = self._broker.logs[part]
            if offset < log.low:
                if self._reset == "error":
                    del self.assigned[part]
                    return Message(part, offset, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
                offset = log.low
            if offset < log.end:
                message = log.records[offset]
                if message.visible_s > self.world.now_s:
                    continue
                del self.assigned[part]  # the next partition comes first now
                self.assigned[part] = offset + 1
                return message
            if self._reports_ends and self._ended.get(part) != offset:
                self._ended[part] = offset
                return Message(part, offset, error=KafkaError(KafkaError._PARTITION_EOF))
        return None

    def get_watermark_offsets(
        self, part: TopicPartition, timeout: float = 10.0, cached: bool = False
    ) -> tuple[int, int]:
        log = self._broker.logs[part.topic, part.partition]
        if cached:
            return log.low, log.end
        return self._broker.call(lambda: (log.low, log.end), timeout)  # type: ignore[no-any-return]

    def offsets_for_times(self, parts: Sequence[TopicPartition], timeout: float = 10.0) -> list[TopicPartition]:
        def find(part: TopicPartition) -> TopicPartition:
            log = self._broker.logs[part.topic, part.partition]
            later = (one.offset() for one in log.records[log.low :] if one.append_ms >= part.offset)
            return TopicPartition(part.topic, part.partition, log.end if part.offset < 0 else next(later, -1))

        return self._broker.call(lambda: [find(part) for part in parts], timeout)  # type: ignore[no-any-return]

    def list_topics(self, topic: str | None = None, timeout: float = 10.0) -> Any:  # noqa: ARG002
        return self._broker.call(self._broker.metadata, timeout)

    def committed(self, parts: Sequence[TopicPartition], timeout: float = 10.0) -> list[Any]:
        def find() -> list[Any]:
            found = [self._group.offsets.get((one.topic, one.partition), (NO_OFFSET, "")) for one in parts]
            return [
                SimpleNamespace(topic=one.topic, partition=one.partition, offset=offset, metadata=text, error=None)
                for one, (offset, text) in zip(parts, found, strict=True)
            ]

        return self._broker.call(find, timeout)  # type: ignore[no-any-return]

    def commit(self, offsets: Sequence[Any], asynchronous: bool = False) -> list[Any]:  # noqa: ARG002
        self._check_alive()
        until_s = self.world.now_s + self._socket_s
        while self._is_joining:  # the coordinator answers a JoinGroup before it reads what comes behind it
            if (left_s := until_s - self.world.now_s) <= 0:
                raise failure(KafkaError._TIMED_OUT)
            self.world.block(self._join_waiters, left_s)
        member_id, generation = self._member_id, self._generation
        self._broker.call(lambda: self._group.commit(self.process, member_id, generation, offsets), self._socket_s)
        return [SimpleNamespace(topic=one.topic, partition=one.partition, error=None) for one in offsets]

    def memberid(self) -> str | None:
        return self._member_id or None

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self.topics, self._callbacks = tuple(topics), callbacks
        if self._member_id:  # librdkafka joins again once the rebalance at hand has ended
            self._rejoins = True
        else:
            self._join_soon()

    def unsubscribe(self) -> None:
        if self._member_id:
            self._leave()
        self.topics = ()

    def close(self) -> None:
        self._check_alive()
        if self._is_closed:
            return
        if self._member_id and self.owned:
            self._events.append(("revoke", self.owned))
            self._serve()
        self._is_closed = True
        self._broker.watchers.pop(self, None)
        self.assigned.clear()
        if self._member_id and self.instance is None:
            self._leave()
        self._member_id = ""

    def _leave(self) -> None:
        member_id, self._member_id, self._generation = self._member_id, "", -1
        if not self._broker.is_away_for(self.process) and self.instance is None:
            self.world.later(self._broker.latency_s(), lambda: self._group.leave(member_id))

    def _check_alive(self) -> None:
        if self.process.is_dead:
            raise Killed

    def _join_soon(self) -> None:
        self._is_joining = True
        wait_s = max(0.0, self._joined_s + REJOIN_S - self.world.now_s) if self._member_id else 0.0
        self.process.later(wait_s + self._broker.latency_s(), self._join)

    def _join(self) -> None:
        if self._is_closed or not self.topics:
            return
        self._joined_s = self.world.now_s
        if self._broker.is_away_for(self.process):
            self._joined_s -= REJOIN_S
            self.process.later(RETRY_S, self._join)
            return

        def answered(code: int, result: Any) -> None:
            self.process.later(self._broker.latency_s(), lambda: self._has_joined(code, result))

        self._group.join(self, self._member_id, answered)

    def _has_joined(self, code: int, result: Any) -> None:
        if self._is_closed or not self.topics:
            return
        self._is_joining = False
        self.world.wake_all(self._join_waiters)
        if code == KafkaError.REBALANCE_IN_PROGRESS:  # the answer to its SyncGroup
            self._is_new, self._member_id = self._is_new or not self._member_id, result
            self._join_soon()
        elif code in HEARTBEAT_LOST:
            self._lose()
        elif code:
            self._fence()
        else:
            is_new, self._is_new = self._is_new or not self._member_id, False
            self._member_id, self._generation, assigned = result
            self._alive_s = self.world.now_s
            if self.is_cooperative:
                if revoked := self.owned - assigned:
                    self._events.append(("revoke", revoked))
                    self._rejoins = True
                self._events.append(("assign", assigned - self.owned))
            else:
                self._events.append(("assign", assigned))
            self.notice()
            if is_new:
                self.process.later(HEARTBEAT_S, lambda: self._beat(self._member_id))

    def _beat(self, member_id: str) -> None:
        if self._is_closed or self._member_id != member_id:
            return
        self.process.later(HEARTBEAT_S, lambda: self._beat(member_id))
        if self._polled_s is not None and self.world.now_s - self._polled_s >= self.rebalance_s:
            self._leave()
            self._lose()
        elif self.world.now_s - self._alive_s >= self.session_s and not self._is_joining:
            self._lose()
        elif not self._is_joining and not self._broker.is_away_for(self.process):
            generation = self._generation

            def arrive() -> None:
                if not self._broker.is_away_for(self.process):
                    code = self._group.heartbeat(member_id, generation)
                    if not self._broker.loses():
                        self.process.later(
                            self._broker.latency_s(), lambda: self._has_beaten(member_id, generation, code)
                        )

            self.world.later(self._broker.latency_s(), arrive)

    def _has_beaten(self, member_id: str, generation: int, code: int) -> None:
        if self._is_closed or (self._member_id, self._generation) != (member_id, generation) or self._is_joining:
            return
        if code in HEARTBEAT_LOST:
            self._lose()
        elif code == KafkaError.FENCED_INSTANCE_ID:
            self._fence()
        else:
            self._alive_s = self.world.now_s
            if code == KafkaError.REBALANCE_IN_PROGRESS:
                self._rebalance()

    def _rebalance(self) -> None:
        if self._is_calling or self._events:
            self._rejoins = True
        elif self.is_cooperative:
            self._join_soon()
        else:
            self._events.append(("revoke", self.owned))
            self._rejoins = True
            self.notice()

    def _lose(self) -> None:
        self._member_id, self._generation = "", -1
        self._events.clear()
        self._events.append(("lost", self.owned))
        self._rejoins = True
        self.notice()

    def _fence(self) -> None:
        self._lose()
        self._events.appendleft(("error", KafkaError(KafkaError._FATAL)))
        self._rejoins = False

    def _serve(self) -> None:
        while self._events and not self._is_calling:
            kind, about = self._events.popleft()
            if kind == "error":
                self._complain(about)
                continue
            parts = [TopicPartition(self.topics[0], number) for number in sorted(about)]
            self._is_calling = True
            try:
                self._callbacks[f"on_{kind}"](self, parts)
            finally:
                self._is_calling = False
        if self._rejoins and not self._events and not self._is_calling and self.topics and not self._is_closed:
            self._rejoins = False
            self._join_soon()


@dataclass
class _Pending:
    key: bytes | None
    value: bytes | None
    headers: Headers
    report: Callable[[Any, Any], None]
    until_s: float
    number: int
    is_reported: bool = False


class Producer:
    """`confluent_kafka.Producer`, idempotent: a batch that is sent again is appended once."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._broker = broker()
        self.world = self._broker.world
        task = self.world.current
        if task is None or task.process.is_dead:
            raise Killed
        self.process = task.process
        self._timeout_s = int(options.get("message.timeout.ms", 300_000)) / 1000
        self._queues: dict[Part, deque[_Pending]] = {}
        self._in_flight: dict[Part, list[_Pending]] = {}
        self._reports: deque[Callable[[], None]] = deque()
        self._waiters: list[Task] = []
        self._count = 0
        self._numbers: dict[Part, int] = {}

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[[Any, Any], None] = lambda *_: None,
        timestamp: int = 0,  # noqa: ARG002  the brokers' time counts
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        if self.process.is_dead:
            raise Killed
        part = topic, partition
        number = self._numbers[part] = self._numbers.get(part, -1) + 1
        until_s = self.world.now_s + self._timeout_s
        self._queues.setdefault(part, deque()).append(
            _Pending(key, value, tuple(headers), on_delivery, until_s, number)
        )
        self._count += 1
        self.process.later(0.0005, lambda: self._send(part))
        self.process.later(self._timeout_s + 0.01, lambda: self._expire(part))
        self.world.preempt()

    def poll(self, timeout: float = 0.0) -> int:
        return self._serve(timeout, lambda: bool(self._reports))

    def flush(self, timeout: float = -1) -> int:
        self._serve(timeout, lambda: self._count == 0)
        return self._count

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:  # noqa: ARG002
        for queue in self._queues.values():
            for one in queue:
                self._report(one, KafkaError(KafkaError._PURGE_QUEUE), None)
            queue.clear()

    def __len__(self) -> int:
        return self._count

    def _serve(self, timeout_s: float, done: Callable[[], bool]) -> int:
        if self.process.is_dead:
            raise Killed
        self.world.preempt()
        until_s = self.world.now_s + timeout_s
        served = 0
        while True:
            is_done = done()
            while self._reports:
                self._count -= 1
                served += 1
                self._reports.popleft()()
            if is_done or done() or (left_s := until_s - self.world.now_s) <= 0:
                return served
            self.world.block(self._waiters, left_s)

    def _report(self, one: _Pending, error: KafkaError | None, message: Message | None) -> None:
        if one.is_reported:
            return
        one.is_reported = True
        self._reports.append(lambda: one.report(error, message))
        self.world.wake_all(self._waiters)

    def _expire(self, part: Part) -> None:
        for one in [*self._in_flight.get(part, ()), *self._queues.get(part, ())]:
            if one.until_s <= self.world.now_s:
                self._report(one, KafkaError(KafkaError._MSG_TIMED_OUT), None)

    def _send(self, part: Part) -> None:
        self._expire(part)
        queue = self._queues.get(part)
        if part in self._in_flight or not queue:
            return
        while queue and queue[0].is_reported:
            queue.popleft()
        if not queue:
            return
        if self._broker.is_away_for(self.process):
            self.process.later(RETRY_S, lambda: self._send(part))
            return
        batch = [one for one in queue if not one.is_reported]
        queue.clear()
        self._in_flight[part] = batch
        self._transmit(part, batch, {})

    def _transmit(self, part: Part, batch: list[_Pending], appended: dict[int, Message]) -> None:
        """Send a batch until it is acknowledged or has expired."""
        process, away = self.process, self._broker

        def arrive() -> None:
            if away.is_away_for(process):
                return
            for one in batch:
                if one.number not in appended:
                    appended[one.number] = away.append(part, one.key, one.value, one.headers, sender=process)
            if not away.loses():
                process.later(away.latency_s(), acknowledged)

        def acknowledged() -> None:
            if self._in_flight.get(part) is not batch:
                return
            del self._in_flight[part]
            for one in batch:
                self._report(one, None, appended[one.number])
            self._send(part)

        def again() -> None:
            if self._in_flight.get(part) is not batch:
                return
            self._expire(part)
            if all(one.is_reported for one in batch):
                del self._in_flight[part]
                self._send(part)
            else:
                self._transmit(part, batch, appended)

        if not away.is_away_for(process):
            self.world.later(away.latency_s(), arrive)
        process.later(1.0, again)


class AdminClient:
    def __init__(self, options: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._broker = broker()

    def poll(self, timeout: float = 0.0) -> int:  # noqa: ARG002
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = 10.0) -> Any:  # noqa: ARG002
        return self._broker.call(self._broker.metadata, timeout)

    def list_offsets(self, asked: Mapping[TopicPartition, Any], request_timeout: float, **_: Any) -> Mapping[Any, Any]:
        logs = self._broker.logs
        return self._futures(
            [*asked], lambda one: SimpleNamespace(offset=logs[one.topic, one.partition].end), request_timeout
        )

    def describe_topics(self, topics: Any, request_timeout: float) -> Mapping[str, Any]:
        counts = self._broker.counts
        return self._futures(
            topics.topic_names,
            lambda name: SimpleNamespace(topic_id=f"id of {name}", partitions=[*range(counts[name])]),
            request_timeout,
        )

    def describe_configs(self, resources: Sequence[Any], request_timeout: float) -> Mapping[Any, Any]:
        found = {name: SimpleNamespace(value=value) for name, value in TOPIC_CONFIG.items()}
        return self._futures(resources, lambda _: found, request_timeout)

    def describe_consumer_groups(self, names: Sequence[str], request_timeout: float) -> Mapping[str, Any]:
        return self._futures(names, lambda name: _described(self._broker.group(name)), request_timeout)

    def _futures(self, asked: Sequence[Any], find: Callable[[Any], Any], timeout_s: float) -> dict[Any, "Asked"]:
        """Send one request, and return a future for each part of its answer."""
        answer = self._broker.send(lambda: {place: find(one) for place, one in enumerate(asked)})
        return {one: Asked(answer, place, timeout_s) for place, one in enumerate(asked)}


class Asked:
    def __init__(self, answer: Answer, place: int, timeout_s: float) -> None:
        self._answer, self._place, self._timeout_s = answer, place, timeout_s

    def done(self) -> bool:
        return self._answer.is_there

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002
        return self._answer.get(self._timeout_s)[self._place]


def _described(group: Group) -> Any:
    members = [
        SimpleNamespace(
            group_instance_id=member.instance,
            member_id=member.id,
            assignment=SimpleNamespace(
                topic_partitions=[TopicPartition(member.topics[0], number) for number in sorted(member.assigned)]
            ),
        )
        for member in group.members.values()
    ]
    return SimpleNamespace(members=members, state=STATES[group.state])
