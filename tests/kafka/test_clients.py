"""Clients before an engine on a real broker: both clients, the gateway's service, Memory, adapters, MCP and mem0."""

import asyncio
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.kafka_flow import create, own_topics, running_flow
from recallflow import InvalidRecord, Memory, MemoryAdd, Recall, ReplyTo, Response
from recallflow.client import QueryTimeout, RecallClient
from recallflow.connectors.kafka.service import KafkaService, ServiceTopics
from recallflow.credentials import ApiKeyText, Headers
from recallflow.errors import DeliveryFailed
from recallflow.flows.settings import TopicNames
from recallflow.kafka_clients import Inbox
from recallflow.kafka_options import KafkaOptions
from tests import programme
from tests.kafka.engine import PARTITIONS, Engine
from tests.unit.senders import with_key
from tools.broker import HOST, Cluster, free_ports, has_leaders, retry

WAIT_S = 30.0
MANY = 50


def service_of(cluster: Cluster, topics: TopicNames, replies: Inbox | None = None, timeout_s: float = WAIT_S) -> Any:
    names = topics.memory, topics.queries, topics.responses, topics.receipts, topics.dead_letters
    return closing(KafkaService(KafkaOptions(cluster.bootstrap_servers), ServiceTopics(*names, replies), timeout_s))


@pytest.fixture
def ours(guarded_engine: Engine) -> Headers:
    assert guarded_engine.key is not None
    return with_key(guarded_engine.key)


@pytest.fixture
def service(guarded_engine: Engine) -> Iterator[KafkaService]:
    with service_of(guarded_engine.broker, guarded_engine.topics) as service:
        yield service


def memory(user: str, content: str, **more: Any) -> MemoryAdd:
    return MemoryAdd(type="memory", tenant_id="acme", user_id=user, content=content, kind="fact", **more)


def recall(user: str, query: str, **more: Any) -> Recall:
    return Recall(type="recall", tenant_id="acme", user_id=user, query=query, **more)


def contents(response: Response) -> list[str]:
    return [memory.content for memory in response.memories or []]


def test_applied_event_returns_its_receipt(service: KafkaService, ours: Headers, user: str) -> None:
    async def told() -> None:
        stored = await service.store(memory(user, "tea is green"), ours)
        assert stored.receipt is None
        applied = await service.apply(memory(user, "coffee is black", id="c"), ours, WAIT_S)
        assert applied.receipt is not None
        assert (applied.receipt.outcome, applied.receipt.memory_id) == ("created", "c")
        assert applied.receipt.position == str(applied.position)
        response = await service.ask(recall(user, "tea", k=1, wait_for=str(stored.position)), ours, WAIT_S)
        assert (response.status, contents(response)) == ("ok", ["tea is green"])

    asyncio.run(told())


@pytest.mark.parametrize("one_partition", [False, True], ids=["response topic", "reply partition"])
def test_wrong_credentials_are_refused(guarded_engine: Engine, user: str, one_partition: bool) -> None:
    async def refused(service: KafkaService) -> None:
        response = await service.ask(recall(user, "anything", id="q"), with_key(ApiKeyText.new()), WAIT_S)
        assert response.error is not None
        assert (response.query_id, response.error.code) == ("q", "unauthenticated")
        with pytest.raises(InvalidRecord) as raised:
            await service.apply(memory(user, "x"), (), WAIT_S)
        assert raised.value.code == "unauthenticated"

    topics = guarded_engine.topics
    replies = Inbox(topics.replies[0], single=True) if one_partition else None
    with service_of(guarded_engine.broker, topics, replies) as service:
        asyncio.run(refused(service))


def test_event_without_engine_is_stored(deserted: Engine, user: str) -> None:
    async def stored(service: KafkaService) -> None:
        applied = await service.apply(memory(user, "x"), (), 1.0)
        assert (str(applied.position), applied.receipt) == (f"{deserted.topics.memory}:0:0", None)
        with pytest.raises(QueryTimeout, match="query q "):
            await service.ask(recall(user, "x", id="q"), (), 0.3)

    with service_of(deserted.broker, deserted.topics) as service:
        asyncio.run(stored(service))


def test_oversized_records_and_own_reply_topics_are_refused(service: KafkaService, user: str) -> None:
    async def refused() -> None:
        for refusal in (
            service.ask(recall(user, "x" * 2**20), (), WAIT_S),
            service.store(memory(user, "x" * 2**20), ()),
            service.ask(recall(user, "x", reply_to=ReplyTo(topic="t")), (), WAIT_S),
        ):
            with pytest.raises(InvalidRecord, match=r"1048576|reply_to: "):
                await refusal

    asyncio.run(refused())


def test_missing_reply_partition_is_named(guarded_engine: Engine, user: str) -> None:
    async def refused(service: KafkaService) -> None:
        said = f"has {PARTITIONS} partitions; partition 7 does not exist"
        with pytest.raises(QueryTimeout, match=said):
            await service.ask(recall(user, "x"), (), 1.0)
        assert said in service.obstacle()

    topics = guarded_engine.topics
    with service_of(guarded_engine.broker, topics, Inbox(topics.replies[0], single=True, partition=7)) as service:
        asyncio.run(refused(service))


def test_calls_to_a_missing_broker_time_out_without_futures(user: str) -> None:
    async def futures_left(service: KafkaService) -> int:
        for write in (service.store(memory(user, "x"), ()), service.apply(memory(user, "x"), (), 0.3)):
            with pytest.raises(DeliveryFailed):
                await write
        assert service.obstacle()
        calls = [service.ask(recall(user, "x"), (), 0.2) for _ in range(MANY)]
        over = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in over} == {QueryTimeout}
        del calls, over
        await asyncio.sleep(0)  # this turn of the loop still refers to them
        gc.collect()
        return sum(isinstance(one, asyncio.Future) and not isinstance(one, asyncio.Task) for one in gc.get_objects())

    with service_of(Cluster(f"{HOST}:{free_ports(None)[0]}"), TopicNames(), timeout_s=0.3) as service:
        assert asyncio.run(futures_left(service)) < MANY


def test_response_in_an_added_partition_is_read(deserted: Engine, user: str) -> None:
    topics = deserted.topics
    servers: dict[str, Any] = {"bootstrap.servers": deserted.broker.bootstrap_servers}
    admin = AdminClient(servers)

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
                assert retry(lambda: has_leaders(admin, topics.responses, 2), time.monotonic() + WAIT_S)
            answered = pool.submit(client.search, "anything", user=user, id=f"q-{number}")
            assert is_asked(f"q-{number}")
            answer(f"q-{number}", partition)
            assert answered.result().response.query_id == f"q-{number}"


TENANT = "acme"


def test_embedded_program_works_on_kafka_after_a_one_line_change(broker: Cluster) -> None:
    topics = own_topics()
    create(broker, topics, partitions=2)
    with Memory(tenant=TENANT) as memory:
        embedded = programme.run(memory, "ann")
    with (
        running_flow(broker, topics, TENANT),
        RecallClient(
            broker.bootstrap_servers,
            tenant=TENANT,
            memory_topic=topics.memory,
            query_topic=topics.queries,
            response_topic=topics.responses,
            control_topic=topics.control,
            timeout_s=30.0,
        ) as client,
    ):
        on_kafka = programme.run(client, "ann")
    assert {name: (on_kafka[name], embedded[name]) for name in embedded if on_kafka[name] != embedded[name]} == {}
