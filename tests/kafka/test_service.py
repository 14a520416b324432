"""The gateway's service before an engine that asks for credentials, on a real broker."""

import asyncio
import gc
from collections.abc import Coroutine, Iterator
from contextlib import closing
from typing import Any, TypeVar

import pytest

from benchmarks.broker import HOST, Cluster, free_ports
from recallflow import InvalidRecord, MemoryAdd, MemoryGet, Recall, ReplyTo, Response
from recallflow.brokers.exchange import Inbox
from recallflow.brokers.options import KafkaOptions
from recallflow.client import QueryTimeout
from recallflow.connectors.kafka.service import KafkaService, ServiceTopics
from recallflow.credentials import ApiKeyText, Headers
from recallflow.errors import DeliveryFailed
from recallflow.flows.settings import TopicNames
from tests.kafka.engine import PARTITIONS, Engine
from tests.kafka.harness import read_topic
from tests.unit.senders import with_key

WAIT_S = 30.0
USERS, ROUNDS = 8, 10
MANY = 50

T = TypeVar("T")


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


def get(user: str, memory_id: str, query_id: str) -> MemoryGet:
    return MemoryGet(type="memory.get", tenant_id="acme", user_id=user, memory_id=memory_id, id=query_id)


def contents(response: Response) -> list[str]:
    return [memory.content for memory in response.memories or []]


async def together(*calls: Coroutine[Any, Any, T]) -> list[T]:
    return await asyncio.gather(*calls)


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
    replies = Inbox(topics.replies[0], one=True) if one_partition else None
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
        for call in (
            service.ask(recall(user, "x" * 2**20), (), WAIT_S),
            service.store(memory(user, "x" * 2**20), ()),
            service.ask(recall(user, "x", reply_to=ReplyTo(topic="t")), (), WAIT_S),
        ):
            with pytest.raises(InvalidRecord, match=r"1048576|reply_to: "):
                await call

    asyncio.run(refused())


def test_services_sharing_a_reply_partition_get_their_own_answers(
    guarded_engine: Engine, ours: Headers, user: str
) -> None:
    """Both ask about the same users, with the same query ids, at the same time."""
    replies = guarded_engine.topics.replies[0]
    inbox = Inbox(replies, one=True, partition=1)
    users = [f"{user}-{number}" for number in range(USERS)]

    async def asked(service: KafkaService, name: str, memory_id: str) -> list[tuple[str, str]]:
        await service.apply(memory(name, "x", id=memory_id), ours, WAIT_S)
        answers = await together(*(service.ask(get(name, memory_id, str(n)), ours, WAIT_S) for n in range(ROUNDS)))
        return [(answer.query_id, (answer.versions or [{}])[0]["id"]) for answer in answers]

    async def both(*services: KafkaService) -> None:
        calls = [(service, name, f"{name}-{place}") for name in users for place, service in enumerate(services)]
        expected = [[(str(number), memory_id) for number in range(ROUNDS)] for _, _, memory_id in calls]
        assert await together(*(asked(*call) for call in calls)) == expected

    broker, topics = guarded_engine.broker, guarded_engine.topics
    with service_of(broker, topics, inbox) as one, service_of(broker, topics, inbox) as other:
        asyncio.run(both(one, other))
    found = [message for message in read_topic(broker, replies) if user.encode() in message.key()]
    assert (len(found), {message.partition() for message in found}) == (2 * USERS * ROUNDS, {1})


def test_client_reads_answers_from_its_reply_partition(guarded_engine: Engine, user: str) -> None:
    replies = guarded_engine.topics.replies[0]
    assert guarded_engine.key is not None
    key = guarded_engine.key.text()
    with guarded_engine.client(api_key=key, reply_topic=replies, reply_partition=2) as client:
        position = client.add("tea is green", user=user)
        assert contents(client.search("tea", user=user, after=position).response) == ["tea is green"]
    [reply] = [one for one in read_topic(guarded_engine.broker, replies) if user.encode() in one.key()]
    assert reply.partition() == 2


def test_missing_reply_partition_is_named(guarded_engine: Engine, user: str) -> None:
    async def refused(service: KafkaService) -> None:
        said = f"has {PARTITIONS} partitions, and none of them is 7"
        with pytest.raises(QueryTimeout, match=said):
            await service.ask(recall(user, "x"), (), 1.0)
        assert said in service.obstacle()

    topics = guarded_engine.topics
    with service_of(guarded_engine.broker, topics, Inbox(topics.replies[0], one=True, partition=7)) as service:
        asyncio.run(refused(service))


def test_calls_to_a_missing_broker_time_out_without_futures(user: str) -> None:
    async def futures_left(service: KafkaService) -> int:
        for call in (service.store(memory(user, "x"), ()), service.apply(memory(user, "x"), (), 0.3)):
            with pytest.raises(DeliveryFailed):
                await call
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
