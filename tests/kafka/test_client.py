"""Both clients against an engine on a real broker."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import retry
from recallflow import Found, Response
from recallflow.client import AsyncRecallClient, DeliveryFailed, QueryTimeout, RecallClient
from tests.kafka.engine import Engine

WAIT_S = 30.0


@pytest.fixture
def client(engine: Engine) -> Iterator[RecallClient]:
    with engine.client() as client:
        yield client


def async_client(engine: Engine, **chosen: Any) -> AsyncRecallClient:
    return AsyncRecallClient(engine.broker.bootstrap_servers, "acme", **{"timeout_s": WAIT_S, **engine.named, **chosen})


def test_query_without_engine_times_out(deserted: Engine) -> None:
    with deserted.client() as client:
        with pytest.raises(QueryTimeout, match="q-3") as raised:
            client.search("anyone?", user="ann", id="q-3", timeout_s=0.3)
        assert isinstance(raised.value, TimeoutError)
        client.add("still works", user="ann")


@pytest.mark.parametrize("missing", ["memory_topic", "response_topic"])
def test_missing_topic_is_named(engine: Engine, missing: str) -> None:
    with (
        engine.client(timeout_s=0.5, **{missing: "no-such-topic"}) as client,
        pytest.raises((DeliveryFailed, QueryTimeout), match="no-such-topic"),
    ):
        client.add("lost", user="ann") if missing == "memory_topic" else client.search("anyone?", user="ann")


def test_close_fails_open_queries(deserted: Engine) -> None:
    async def result() -> Found:
        client = async_client(deserted)
        open_query = asyncio.ensure_future(client.search("anyone?", user="ann"))
        await client.add("a record that is acknowledged", user="ann")
        await client.close()
        await asyncio.wait([open_query])
        return open_query.result()

    with pytest.raises(Exception, match="closed"):
        asyncio.run(result())


def test_response_in_an_added_partition_is_read(deserted: Engine, user: str) -> None:
    topics = deserted.topics
    servers: dict[str, Any] = {"bootstrap.servers": deserted.broker.bootstrap_servers}
    admin = AdminClient(servers)

    def has_leaders() -> bool:
        found = admin.list_topics(topics.responses, timeout=WAIT_S).topics[topics.responses].partitions
        return len(found) == 2 and all(partition.leader >= 0 for partition in found.values())

    def is_asked(query_id: str) -> bool:
        with closing(Consumer({**servers, "group.id": "test"})) as consumer:
            consumer.assign([TopicPartition(topics.queries, 0, 0)])
            messages = iter(lambda: consumer.poll(WAIT_S), None)
            return any(query_id.encode() in (message.value() or b"") for message in messages)

    def answer(query_id: str, partition: int) -> None:
        value = Response(query_id=query_id, status="ok", memories=[]).model_dump_json().encode()
        producer = Producer(servers)  # a new one, which asks for the partitions anew
        producer.produce(topics.responses, value, f"acme/{user}".encode(), partition)
        assert producer.flush(WAIT_S) == 0

    with deserted.client() as client, ThreadPoolExecutor(1) as pool:
        for number, partition in enumerate((0, 1, 0)):
            if number == 1:
                admin.create_partitions([NewPartitions(topics.responses, 2)])[topics.responses].result()
                assert retry(has_leaders, time.monotonic() + WAIT_S)
            answered = pool.submit(client.search, "anything", user=user, id=f"q-{number}")
            assert is_asked(f"q-{number}")
            answer(f"q-{number}", partition)
            assert answered.result().response.query_id == f"q-{number}"


# ── the graph ─────────────────────────────────────────────────────────────────────────────────────────────────────
