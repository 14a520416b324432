"""Memories and queries for a flow on Kafka, and how long each query took.

Queries go out on a schedule, whether the last one is answered or not; a latency counts from the moment a query was due
to the moment its response is out of the consumer.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.engine import events
from benchmarks.kafka_flow import READY_S, TENANT, connect
from benchmarks.locomo import Conversation
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.records import Position
from tools.broker import Cluster

MEMORIES = 1_000
WARM_UP = 100
LATE_S = 30.0
POLL_S = 0.2
FULL_QUEUE_WAIT_S = 0.05
LINGER_MS = 5  # in bulk, fuller batches are worth a wait

Percentiles = dict[str, float]


# ---------------------------------------------------------------------- memories


def produce(cluster: Cluster, topic: str, lines: Iterable[bytes], tenant_id: str = TENANT) -> dict[str, Position]:
    """Appends memory events of one tenant, keyed by their owners. Returns each owner's last position."""
    producer = Producer(KafkaOptions(cluster.bootstrap_servers).producer() | {"linger.ms": LINGER_MS})
    last: dict[str, Position] = {}

    def stored(_: Any, message: Any) -> None:
        last[message.key().decode()] = Position(topic, message.partition(), message.offset())

    for line in lines:
        key = f"{tenant_id}/{orjson.loads(line)['user_id']}"
        while True:
            try:
                producer.produce(topic, line, key, on_delivery=stored)
            except BufferError:
                producer.poll(FULL_QUEUE_WAIT_S)
            else:
                producer.poll(0)
                break
    if producer.flush(READY_S):
        raise RuntimeError(f"not all events were appended to {topic} within {READY_S:.0f} s")
    return last


def until_applied(cluster: Cluster, topics: TopicNames, last: dict[str, Position], tenant_id: str = TENANT) -> None:
    """Returns once each of these owners' positions is applied. RuntimeError where one is never found."""
    with connect(cluster, topics, 2 * READY_S, tenant_id) as client:
        for owner, position in last.items():
            applied = False
            while not applied:
                user = owner.partition("/")[2]
                answer = client.search("hello", user=user, after=position, wait_timeout_ms=60_000)
                applied = all(warning.code != "stale_read" for warning in answer.warnings)
            if answer.response.status != "ok" or not answer:
                raise RuntimeError(f"{owner}: the memories were not applied: {answer.warnings}")


def remember_all(
    cluster: Cluster, topics: TopicNames, conversations: list[Conversation], users: int, tenant_id: str = TENANT
) -> None:
    """Gives each user of a tenant its memories, and waits until they are applied."""
    lines = events(conversations, users * MEMORIES, users)
    own = (orjson.dumps(orjson.loads(line) | {"tenant_id": tenant_id}) for line in lines)
    until_applied(cluster, topics, produce(cluster, topics.memory, own, tenant_id), tenant_id)


# ---------------------------------------------------------------------- queries


def recalls(conversations: list[Conversation], users: int) -> list[bytes]:
    """Recall queries without ids, asked a day after the last message."""
    now_ms = max(int(turn.time.timestamp() * 1000) for c in conversations for turn in c.turns) + 86_400_000
    questions = [question.text for c in conversations for question in c.questions]
    asked = {"type": "recall", "tenant_id": TENANT, "timestamp": now_ms}
    return [orjson.dumps(asked | {"user_id": f"user{n % users}", "query": text}) for n, text in enumerate(questions)]


class Latency(NamedTuple):
    """Latency of one query from its due time, and the share of it that the engine reports as its own."""

    whole_ms: float
    engine_ms: float


class Schedule:
    """Queries that go out at a steady rate while `more(number)` says so. `due_s`: query id → when it was due."""

    def __init__(
        self, options: KafkaOptions, topic: str, queries: list[bytes], per_s: int, more: Callable[[int], bool]
    ) -> None:
        self.due_s: dict[str, float] = {}
        self._producer = Producer(options.producer())
        self._topic, self._queries, self._per_s, self._more = topic, queries, per_s, more
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def over(self) -> bool:
        return not self._thread.is_alive()

    def _send(self) -> None:
        run, number = uuid.uuid4().hex, 0
        began_s = time.perf_counter() + 0.5
        while self._more(number):
            query = orjson.loads(self._queries[number % len(self._queries)])
            query_id = f"{run}-{number}"
            self.due_s[query_id] = began_s + number / self._per_s
            self._producer.poll(0)
            time.sleep(max(0.0, self.due_s[query_id] - time.perf_counter()))
            self._producer.produce(self._topic, orjson.dumps(query | {"id": query_id}), f"{TENANT}/{query['user_id']}")
            number += 1
        self._producer.flush()


def ask(cluster: Cluster, topics: TopicNames, queries: list[bytes], per_s: int,
        more: Callable[[int], bool]) -> list[Latency]:  # fmt: skip
    """Return the latencies of queries sent while `more(number after the warm-up)` is true.

    Raises:
        RuntimeError: if a query gets no response.
    """
    options = KafkaOptions(cluster.bootstrap_servers)
    with closing(at_end(options, topics.responses)) as consumer:
        schedule = Schedule(options, topics.queries, queries, per_s, lambda number: more(number - WARM_UP))
        latencies = _responses(consumer, schedule)
    if missing := schedule.due_s.keys() - latencies.keys():
        raise RuntimeError(f"{len(missing)} of {len(schedule.due_s)} queries to {topics.queries} got no response")
    return [latencies[query_id] for query_id in list(schedule.due_s)[WARM_UP:]]


def at_end(options: KafkaOptions, topic: str) -> Consumer:
    """A consumer of all of a topic's partitions, from where they end now."""
    consumer = Consumer(options.consumer())
    parts = [TopicPartition(topic, n) for n in consumer.list_topics(topic, timeout=READY_S).topics[topic].partitions]
    for part in parts:
        part.offset = consumer.get_watermark_offsets(part, timeout=READY_S)[1]
    consumer.assign(parts)
    return consumer


def _responses(consumer: Consumer, schedule: Schedule) -> dict[str, Latency]:
    """Return latencies by query id once all responses are there, or none has come for LATE_S."""
    latencies: dict[str, Latency] = {}
    last_s = time.perf_counter()
    while not (schedule.over() and latencies.keys() >= schedule.due_s.keys()):
        message: Any = consumer.poll(POLL_S)
        now_s = time.perf_counter()
        if message is not None and message.error() is None:
            body = orjson.loads(message.value())
            query_id = body.get("query_id") or body["id"]
            last_s = now_s
            if query_id in schedule.due_s:  # not of another tenant
                whole_ms = (now_s - schedule.due_s[query_id]) * 1000
                latencies.setdefault(query_id, Latency(whole_ms, body.get("processing_time_ms", 0.0)))
        elif now_s - last_s > LATE_S:
            break
    return latencies


def percentiles(times_ms: list[float]) -> Percentiles:
    return {f"p{share}": float(np.percentile(times_ms, share)) for share in (50, 95, 99)}


def ratios(these: Percentiles, those: Percentiles) -> Percentiles:
    """Return the ratio of each percentile."""
    return {share: value / those[share] for share, value in these.items()}
