"""Members of an enrichment deployment over a Kafka in this process: partitions move and members die while calls are"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any, cast

import orjson
import pytest

from recallflow.connectors.kafka import cluster
from recallflow.connectors.kafka.cluster import EndOffsetPoller
from recallflow.connectors.kafka.group_consumer import Committed
from recallflow.connectors.kafka.messages import NUMBER_HEADER, SOURCE_HEADER
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.partition import TopicOffsets
from recallflow.connectors.kafka.sender import DeliverySink, EarlierOutputs, OutputSender, ToSend
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.events import EnrichmentResult
from recallflow.flows import initial_progress, ownership
from recallflow.flows.engine_metrics import Stages
from recallflow.flows.enrich import RequestReader, recipe
from recallflow.flows.initial_progress import initial_enrichment_progress
from recallflow.flows.ownership import Ownership
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import Router, routing
from recallflow.flows.runner import RecipeLoop
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.operators.async_call import Completions, Runtime
from recallflow.operators.enrichment.enrich import Enricher
from recallflow.operators.enrichment.results import PositionedRequest, result
from recallflow.outputs import Ack, DeadLetter, EventOutput
from recallflow.records import Position, Record
from tests.unit.connectors.fake_consumer import FakeKafka

TOPICS = TopicNames()
NOWHERE = KafkaOptions("nowhere:1")
PARTITIONS = 2
WRITTEN = TOPICS.enrichment_output_topics()
GIVE_UP_S = 20.0


class Brokers:
    def __init__(self) -> None:
        self.kafka = FakeKafka(**dict.fromkeys((TOPICS.enrichment, *WRITTEN), PARTITIONS))
        self.places: dict[int, Committed] = {}
        self.asked: Counter[str] = Counter()
        self.requests = 0
        self.held: set[asyncio.Event] = set()
        self.holds = True

    def request(self, count: int) -> None:
        for _ in range(count):
            number, self.requests = self.requests, self.requests + 1
            memory = {"memory_id": f"m{number}", "content": "x", "content_hash": "h", "kind": "message"}
            value: dict[str, Any] = {"type": "enrichment.request", "tenant_id": "acme", "user_id": f"u{number % 5}"}
            value |= {
                "tasks": ["facts"], "source": f"memory.events:0:{number}", "memories": [memory | {"created_at": 0}],
            }  # fmt: skip
            key = f"acme/u{number % 5}".encode()
            self.kafka.append(TOPICS.enrichment, number % PARTITIONS, orjson.dumps(value), key, append_ms=number + 1)

    async def ask(self, asked: Sequence[PositionedRequest], at_ms: int) -> Sequence[EnrichmentResult]:  # noqa: ARG002
        self.asked.update(str(one.position) for one in asked)
        gate = asyncio.Event()
        if self.holds:
            self.held.add(gate)
            await gate.wait()
        event = {"type": "memory.update", "tenant_id": "acme", "memory_id": "m", "environment": "prod"}
        found = []
        for one in asked:
            empty = result(one, [])
            found.append(empty.model_copy(update={"events": [event | {"user_id": one.request.user_id}] * 2}))
        return found

    def ends(self) -> TopicOffsets:
        return {topic: {n: self.kafka.end(topic, n) for n in range(PARTITIONS)} for topic in WRITTEN}

    def sources(self, topic: str) -> Counter[tuple[bytes, bytes]]:
        """Return how often each output is in a topic."""
        headers = [dict(one.headers()) for log in self.kafka.topics[topic] for one in log.messages]
        return Counter((one[SOURCE_HEADER], one[NUMBER_HEADER]) for one in headers)

    def check_once(self) -> None:
        wanted = {
            (b"%s:%d:%d" % (TOPICS.enrichment.encode(), n % PARTITIONS, n // PARTITIONS), b"0")
            for n in range(self.requests)
        }
        assert self.sources(TOPICS.results) == dict.fromkeys(wanted, 1)
        assert self.sources(TOPICS.memory).total() == 2 * self.requests
        assert {*self.sources(TOPICS.memory).values()} <= {1}


class LogSender:
    """In place of OutputSender: outputs are in their topics after a flush, or before, as a seed chooses."""

    def __init__(self, brokers: Brokers, draw: Random) -> None:
        self._brokers, self._draw = brokers, draw
        self._queue: list[ToSend] = []
        self._barriers: list[int] = []  # the outputs sent before each
        self._sent = 0

    def next_barrier(self) -> int:
        self._barriers.append(self._sent + len(self._queue))
        return len(self._barriers) - 1

    def first_unacknowledged_barrier(self) -> int:
        return next((n for n, outputs in enumerate(self._barriers) if outputs > self._sent), len(self._barriers))

    def deliver(self, item: ToSend) -> None:
        self._queue.append(item)

    def poll_outputs(self) -> None:
        while self._queue and self._draw.random() < 0.5:
            self._send()

    def flush_outputs(self) -> None:
        while self._queue:
            self._send()

    def drop(self) -> None:
        self._queue.clear()

    def _send(self) -> None:
        topic, number, outgoing = self._queue.pop(0)
        self._sent += 1
        kafka, headers = self._brokers.kafka, outgoing.all_headers
        kafka.append(topic, number, outgoing.value, outgoing.key, append_ms=1_000, headers=headers)


class FakeEnds(EndOffsetPoller):
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def latest(self) -> tuple[TopicOffsets, int]:
        return self._brokers.ends(), 1

    def ask(self) -> TopicOffsets:
        return self._brokers.ends()

    def at(self, at_ms: int) -> TopicOffsets:  # noqa: ARG002
        return {topic: dict.fromkeys(range(PARTITIONS), 0) for topic in WRITTEN}

    def first_loss(self, begin: TopicOffsets, at_ms: int) -> str | None:  # noqa: ARG002
        return None


class Member:
    def __init__(self, brokers: Brokers, draw: Random) -> None:
        self.brokers = brokers
        self.runtime = Runtime(Completions(), capacity=10, timeout_s=None)
        self.source = OwnedSource(
            NOWHERE,
            TOPICS.results,
            TOPICS.enrichment,
            sync_s=0.02,
            tails=lambda: (brokers.ends(), 1),
            completions=self.runtime.completions.pop_all,
            wake=self.runtime.completions.wake,
            new_consumer=brokers.kafka.consumer,
            queries_in_flight_max=20,
            settle=lambda: sink.settle(),
        )
        known, ends = EarlierOutputs(), FakeEnds(brokers)
        self.ownership = Ownership(
            NOWHERE,
            (TOPICS.results, TOPICS.enrichment),
            None,
            self.source,
            known,
            ends,
            self._commit,
            lambda _: True,
            initial_progress=partial(initial_enrichment_progress, NOWHERE, TOPICS, ends, "here"),
            deployment="here",
            round_robin_by_tenant=False,
        )
        sink = DeliverySink(cast(OutputSender, LogSender(brokers, draw)), known, self.ownership.commit_barriers)
        spans = RecordSpans(Stages((TOPICS.results, TOPICS.enrichment)))
        router = Router(TOPICS, dict.fromkeys(WRITTEN, PARTITIONS), dict.fromkeys(WRITTEN, 1_000_000))
        enricher = Enricher(
            self.runtime, brokers.ask, 2, 10, lambda _: nullcontext(), lambda *_: None, lambda: time.time_ns() // 10**6
        )
        reader = RequestReader(TOPICS.enrichment, lambda at: known.claim((str(at).encode(), b"0")), spans)
        route = routing(router, self.source, lambda _: None, spans)
        self.loop = RecipeLoop(recipe(self.source, reader, enricher, route, sink))

    def _commit(self, places: Mapping[int, Committed]) -> None:
        self.brokers.places |= {number: at for number, at in places.items() if number in self.numbers}

    numbers: frozenset[int] = frozenset()  # the partitions that the group gave to us

    def gain(self, numbers: Collection[int]) -> None:
        self.numbers |= frozenset(numbers)
        texts = {n: self.brokers.places[n].text if n in self.brokers.places else None for n in numbers}
        for number, text in texts.items():
            if text is not None:  # as the membership does
                self.brokers.places[number] = self.ownership.initial_commit(self.brokers.places[number])
        self.ownership.gain(texts)
        self.until(lambda: self.source.partitions() >= self.numbers)

    def give_up(self, numbers: Collection[int]) -> None:
        final: dict[int, Committed] = {}
        thread = threading.Thread(target=lambda: final.update(self.ownership.give_up(numbers)))
        thread.start()
        self.until(lambda: not thread.is_alive())
        self.brokers.places |= final
        self.numbers -= frozenset(numbers)

    def until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + GIVE_UP_S
        while not true():
            assert time.monotonic() < deadline_s
            assert self.ownership.failure() is None
            self.loop.step()

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.loop.step()

    def let_through(self, count: int | None = None) -> None:
        async def release() -> None:
            for gate in [*self.brokers.held][:count]:
                self.brokers.held.discard(gate)
                gate.set()

        self.runtime.run(release())

    def die(self) -> None:
        self.numbers = frozenset()  # the group takes nothing from it any more
        self.source.close()
        self.ownership.end()
        self.runtime.close()


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()

    def reader(*arguments: Any, **chosen: Any) -> TopicReader:
        return TopicReader(*arguments, **chosen | {"new_consumer": made.kafka.consumer})

    for module in (initial_progress, ownership, cluster):
        monkeypatch.setattr(module, "TopicReader", reader)
    return made


@pytest.fixture
def join(brokers: Brokers) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def make(draw: Random | None = None) -> Member:
        members.append(Member(brokers, draw or Random(0)))
        return members[-1]

    yield make
    for member in members:
        member.die()


def finish(brokers: Brokers, *members: Member) -> None:
    deadline_s = time.monotonic() + GIVE_UP_S
    while brokers.sources(TOPICS.memory).total() < 2 * brokers.requests:
        assert time.monotonic() < deadline_s
        for member in members:
            member.work(1)
    brokers.check_once()


@pytest.mark.parametrize("seed", range(6))
def test_moves_and_kills_leave_each_result_once(brokers: Brokers, join: Callable[..., Member], seed: int) -> None:
    draw = Random(seed)
    members = [join(draw), join(draw)]
    owners = {0: 0, 1: 1}
    brokers.request(6)
    for number, owner in owners.items():
        members[owner].gain([number])
    for _ in range(12):
        number = draw.randrange(PARTITIONS)
        owner = owners[number]
        match draw.choice(("request", "work", "answer", "move", "kill")):
            case "request":
                brokers.request(draw.randrange(5))
            case "answer":
                members[owner].let_through(draw.randrange(4))
            case "move":
                members[owner].give_up([number])
                owners[number] = 1 - owner
                members[1 - owner].gain([number])
            case "kill":
                members[owner].die()
                members[owner] = join(draw)
                lost = [one for one, had in owners.items() if had == owner]
                heir = draw.randrange(2)
                owners |= dict.fromkeys(lost, heir)
                members[heir].gain(lost)
        for member in members:
            member.work(draw.randrange(4))
    brokers.holds = False
    members[0].let_through()
    finish(brokers, *members)


OWNER = {"tenant_id": "acme", "user_id": "ann", "environment": "prod"}
EVENT = OWNER | {"type": "memory.update", "memory_id": "m", "category": "travel"}


def result_record(**events: Any) -> Record:
    said = OWNER | {"type": "enrichment.result", "request": "enrichment.requests:0:1", "source": "memory.events:0:1"}
    value = orjson.dumps(said | {"memory_id": "m", "events": [EVENT, EVENT | events]})
    return Record(Position("enrichment.results", 0, 7), value, 0)


def read(record: Record, *, answered: bool = False) -> list[type]:
    spans = RecordSpans(Stages(("enrichment.requests", "enrichment.results")))
    ((key, outputs),) = RequestReader("enrichment.requests", lambda _: answered, spans)([record])
    assert key == "000"
    assert isinstance(outputs, tuple)
    return [type(output) for output in outputs]


@pytest.mark.parametrize("field", OWNER)
def test_a_result_changes_its_own_owners_memory_alone(field: str) -> None:
    """A result is sent as a whole or not at all."""
    assert (read(result_record()), read(result_record(**{field: "another"}))) == (
        [EventOutput, EventOutput, Ack], [DeadLetter, Ack],
    )  # fmt: skip


def test_an_answered_request_is_done_without_output() -> None:
    invalid = Record(Position("enrichment.requests", 0, 7), b"no JSON", 0)
    assert (read(invalid), read(invalid, answered=True)) == ([DeadLetter, Ack], [Ack])
