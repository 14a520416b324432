"""The service that the gateway puts questions and events to, before a main flow that asks for credentials."""

import asyncio
import gc
import time
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer

from benchmarks.broker import HOST, Cluster, free_ports
from benchmarks.kafka_flow import own_topics
from recallflow import InvalidRecord, MemoryAdd, MemoryGet, Recall, ReplyTo, Response
from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.reader import Inbox
from recallflow.client import QueryTimeout, RecallClient
from recallflow.connectors.kafka.service import KafkaService, ServiceTopics
from recallflow.credentials import ApiKeyText
from recallflow.errors import DeliveryFailed
from recallflow.flows.topics import Topics
from tests.kafka.harness import GIVE_UP_S, Deployment, read_topic
from tests.unit.senders import api_key, with_key

KEY = ApiKeyText.new()
OURS = with_key(KEY)
LONG_AGO_MS = 60_000
WAIT_S = 30.0
USERS, ROUNDS = 8, 10
PARTITIONS = 3
MANY = 50

T = TypeVar("T")


@pytest.fixture(scope="module")
def topics(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """Topics with a main flow behind them, up and answering, where every record needs our key."""
    topics = replace(own_topics(), replies=(f"replies-{uuid.uuid4().hex[:12]}",))
    broker.create_topics(dict.fromkeys((topics.memory, topics.queries, *topics.outputs()), PARTITIONS))
    broker.create_topics({topics.control: 1}, {"message.timestamp.type": "CreateTime"})
    producer, event = Producer({"bootstrap.servers": broker.bootstrap_servers}), api_key(KEY)
    value = event.model_dump_json(exclude_none=True).encode()
    producer.produce(topics.control, value, event.record_key, timestamp=time.time_ns() // 1_000_000 - LONG_AGO_MS)
    assert producer.flush(GIVE_UP_S) == 0
    folder = tmp_path_factory.mktemp("service")
    config = folder / "recallflow.toml"
    config.write_text('[auth]\nmode = "required"\n')
    flags = ("--config", str(config), "--reply-topic", *topics.replies)
    with Deployment(broker, topics, folder / "s", flags=flags).running():
        with closing(service_of(broker, topics)) as service:
            asyncio.run(until_answered(service))
        yield topics


@pytest.fixture
def service(broker: Cluster, topics: Topics) -> Iterator[KafkaService]:
    with closing(service_of(broker, topics)) as service:
        yield service


def service_of(cluster: Cluster, topics: Topics, replies: Inbox | None = None) -> KafkaService:
    names = topics.memory, topics.queries, topics.responses, topics.receipts, topics.dead_letters
    return KafkaService(KafkaOptions(cluster.bootstrap_servers), ServiceTopics(*names, replies), WAIT_S)


async def until_answered(service: KafkaService) -> None:
    for _ in range(int(GIVE_UP_S)):
        with suppress(QueryTimeout):
            await service.ask(recall("probe", "anyone there?"), OURS, 1.0)
            return
    raise AssertionError("no answer")


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


@pytest.fixture
def user() -> str:
    """A user of this test's own."""
    return f"user-{uuid.uuid4().hex[:12]}"


def test_what_is_stored_is_applied_in_its_time_and_asked_for(service: KafkaService, user: str) -> None:
    async def told() -> None:
        stored = await service.store(memory(user, "tea is green"), OURS)
        assert stored.receipt is None
        applied = await service.apply(memory(user, "coffee is black", id="c"), OURS, WAIT_S)
        assert applied.receipt is not None
        assert (applied.receipt.outcome, applied.receipt.memory_id) == ("created", "c")
        assert applied.receipt.position == str(applied.position)
        response = await service.ask(recall(user, "tea", k=1, wait_for=str(stored.position)), OURS, WAIT_S)
        assert (response.status, contents(response)) == ("ok", ["tea is green"])

    asyncio.run(told())


def test_queries_of_one_id_that_are_under_way_at_once_do_not_cross(service: KafkaService, user: str) -> None:
    async def asked() -> list[Response]:
        for number in range(USERS):
            await service.apply(memory(user, "x", id=f"m{number}"), OURS, WAIT_S)
        return await together(*(service.ask(get(user, f"m{number}", "q"), OURS, WAIT_S) for number in range(USERS)))

    answers = asyncio.run(asked())
    assert [answer.query_id for answer in answers] == ["q"] * USERS
    assert [(answer.versions or [{}])[0]["id"] for answer in answers] == [f"m{number}" for number in range(USERS)]


def test_a_refused_event_says_which_field_is_wrong(service: KafkaService, user: str) -> None:
    async def refused() -> InvalidRecord:
        await service.apply(memory(user, "x", id="m"), OURS, WAIT_S)
        with pytest.raises(InvalidRecord) as conflict:
            await service.apply(memory(user, "y", id="m"), OURS, WAIT_S)
        return conflict.value

    error = asyncio.run(refused())
    assert error.code == "id_conflict"
    assert [problem.field for problem in error.fields] == ["id"]


@pytest.mark.parametrize("one_partition", [False, True], ids=["response topic", "reply partition"])
def test_what_is_refused_for_its_credentials_is_told_at_once(
    broker: Cluster, topics: Topics, user: str, one_partition: bool
) -> None:
    async def refused(service: KafkaService) -> None:
        response = await service.ask(recall(user, "anything", id="q"), with_key(ApiKeyText.new()), WAIT_S)
        assert response.error is not None
        assert (response.query_id, response.error.code) == ("q", "unauthenticated")
        with pytest.raises(InvalidRecord) as raised:
            await service.apply(memory(user, "x"), (), WAIT_S)
        assert raised.value.code == "unauthenticated"

    replies = Inbox(topics.replies[0], one=True) if one_partition else None
    with closing(service_of(broker, topics, replies)) as service:
        asyncio.run(refused(service))


def test_an_event_that_is_not_applied_in_time_is_stored(broker: Cluster, user: str) -> None:
    """No engine is there."""
    topics = own_topics()
    broker.create_topics(dict.fromkeys((topics.memory, topics.queries, *topics.outputs()), 1))

    async def stored(service: KafkaService) -> None:
        applied = await service.apply(memory(user, "x"), OURS, 3.0)
        assert (str(applied.position), applied.receipt) == (f"{topics.memory}:0:0", None)
        with pytest.raises(QueryTimeout, match=r"query q within 0\.5 s; is the engine running"):
            await service.ask(recall(user, "x", id="q"), OURS, 0.5)

    with closing(service_of(broker, topics)) as service:
        asyncio.run(stored(service))


def test_what_is_too_large_is_refused_and_the_answers_place_is_ours(service: KafkaService, user: str) -> None:
    async def refused() -> None:
        for large in (
            service.ask(recall(user, "x" * 2**20), OURS, WAIT_S),
            service.store(memory(user, "x" * 2**20), OURS),
        ):
            with pytest.raises(InvalidRecord, match="over 1048576 bytes"):
                await large
        with pytest.raises(InvalidRecord, match=r"reply_to: .*leave it out"):
            await service.ask(recall(user, "x", reply_to=ReplyTo(topic="t")), OURS, WAIT_S)

    asyncio.run(refused())


def test_two_services_on_one_reply_partition_have_each_their_own_answers(
    broker: Cluster, topics: Topics, user: str
) -> None:
    """They ask about the same users, under the same ids, at the same time."""
    inbox = Inbox(topics.replies[0], one=True, partition=1)
    users = [f"{user}-{number}" for number in range(USERS)]

    async def asked(service: KafkaService, name: str, memory_id: str) -> list[tuple[str, str]]:
        await service.apply(memory(name, "x", id=memory_id), OURS, WAIT_S)
        answers = await together(*(service.ask(get(name, memory_id, str(n)), OURS, WAIT_S) for n in range(ROUNDS)))
        return [(answer.query_id, (answer.versions or [{}])[0]["id"]) for answer in answers]

    async def both(*services: KafkaService) -> None:
        calls = [(service, name, f"{name}-{place}") for name in users for place, service in enumerate(services)]
        expected = [[(str(number), memory_id) for number in range(ROUNDS)] for _, _, memory_id in calls]
        assert await together(*(asked(*call) for call in calls)) == expected

    with closing(service_of(broker, topics, inbox)) as one, closing(service_of(broker, topics, inbox)) as other:
        asyncio.run(both(one, other))
    replies = [message for message in read_topic(broker, topics.replies[0]) if user.encode() in message.key()]
    assert (len(replies), {message.partition() for message in replies}) == (2 * USERS * ROUNDS, {1})


def test_a_client_may_have_its_answers_in_one_partition_too(broker: Cluster, topics: Topics, user: str) -> None:
    with RecallClient(
        broker.bootstrap_servers,
        "acme",
        memory_topic=topics.memory,
        query_topic=topics.queries,
        response_topic=topics.responses,
        timeout_s=WAIT_S,
        api_key=KEY.text(),
        reply_topic=topics.replies[0],
        reply_partition=2,
    ) as client:
        position = client.add("tea is green", user=user)
        assert contents(client.search("tea", user=user, after=position).response) == ["tea is green"]
    [reply] = [message for message in read_topic(broker, topics.replies[0]) if user.encode() in message.key()]
    assert reply.partition() == 2


def test_a_reply_partition_that_there_is_not_is_named(broker: Cluster, topics: Topics, user: str) -> None:
    async def refused(service: KafkaService) -> None:
        with pytest.raises(QueryTimeout, match="has 3 partitions, and none of them is 7"):
            await service.ask(recall(user, "x"), OURS, 2.0)
        assert "has 3 partitions, and none of them is 7" in service.obstacle()

    with closing(service_of(broker, topics, Inbox(topics.replies[0], one=True, partition=7))) as service:
        asyncio.run(refused(service))


def test_without_kafka_every_call_ends_in_its_time_and_the_obstacle_is_named(user: str) -> None:
    options = KafkaOptions(f"{HOST}:{free_ports(None)[0]}", {"log_level": "0"})
    topics = Topics()
    names = topics.memory, topics.queries, topics.responses, topics.receipts, topics.dead_letters

    async def failed(service: KafkaService) -> None:
        with pytest.raises(QueryTimeout, match=r"within 1 s.*Kafka's last complaint: .+"):
            await service.ask(recall(user, "x"), OURS, 1.0)
        for call in (service.store(memory(user, "x"), OURS), service.apply(memory(user, "x"), OURS, 1.0)):
            with pytest.raises(DeliveryFailed, match=r"memory\.events at .*is Kafka reachable"):
                await call
        assert service.obstacle().startswith("Kafka has not answered yet")

    with closing(KafkaService(options, ServiceTopics(*names), 1.0)) as service:
        asyncio.run(failed(service))


def test_without_kafka_nothing_is_kept_of_a_call_that_is_over(user: str) -> None:
    options = KafkaOptions(f"{HOST}:{free_ports(None)[0]}", {"log_level": "0"})
    topics = Topics()
    names = topics.memory, topics.queries, topics.responses, topics.receipts, topics.dead_letters

    async def futures_left(service: KafkaService) -> int:
        calls = [service.ask(recall(user, "x"), OURS, 0.2) for _ in range(MANY)]
        over = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in over} == {QueryTimeout}
        del calls, over
        await asyncio.sleep(0)  # this turn of the loop still knows of them
        gc.collect()
        return sum(isinstance(one, asyncio.Future) and not isinstance(one, asyncio.Task) for one in gc.get_objects())

    with closing(KafkaService(options, ServiceTopics(*names), 1.0)) as service:
        assert asyncio.run(futures_left(service)) < MANY
