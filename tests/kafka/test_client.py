"""Both clients against a real broker and a running main flow."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import HOST, Cluster, free_ports, retry
from benchmarks.kafka_flow import create, own_topics, running_flow
from recallflow import EpisodesList, Found, InvalidRecord, MemoryGet, Position, Response
from recallflow.client import AsyncRecallClient, DeliveryFailed, QueryFailed, QueryTimeout, RecallClient
from recallflow.flows.topics import Topics
from recallflow.graphs import GraphReport
from tests.kafka.harness import Command

TENANT = "acme"
PAIRS = 100
WAIT_S = 30.0


@pytest.fixture(scope="module")
def topics(broker: Cluster) -> Iterator[Topics]:
    """Topics with a main flow of their own behind them, up and answering."""
    topics = own_topics()
    create(broker, topics, partitions=3)
    with running_flow(broker, topics, TENANT):
        yield topics


def named(topics: Topics) -> dict[str, str]:
    return {
        "memory_topic": topics.memory,
        "query_topic": topics.queries,
        "response_topic": topics.responses,
        "control_topic": topics.control,
    }


@pytest.fixture
def client(broker: Cluster, topics: Topics) -> Iterator[RecallClient]:
    with RecallClient(broker.bootstrap_servers, TENANT, **named(topics), timeout_s=WAIT_S) as client:  # type: ignore[arg-type]
        yield client


@pytest.fixture
def user() -> str:
    """A user of this test's own."""
    return f"user-{uuid.uuid4().hex[:12]}"


def contents(found: Found) -> list[str]:
    return [memory.content for memory in found]


def found(client: RecallClient, user_id: str, number: int) -> bool:
    """Whether what is remembered now is recalled at once."""
    text = f"the code of locker {number} is {number * 7919}"
    position = client.add(text, user=user_id)
    return text in contents(client.search(f"code of locker {number}", user=user_id, after=position))


def test_what_was_remembered_is_recalled_with_its_position(client: RecallClient, user: str) -> None:
    assert [number for number in range(PAIRS) if not found(client, user, number)] == []


def test_a_response_says_what_is_applied_and_comes_under_its_query_id(client: RecallClient, user: str) -> None:
    first, second = (client.add(text, user=user) for text in ("tea is green", "coffee is black"))
    assert first.position.source == second.position.source
    found = client.search("tea", user=user, after=[first.position, second.position], id="q-1", k=1)
    response = found.response
    assert (response.query_id, response.status, contents(found)) == ("q-1", "ok", ["tea is green"])
    assert str(second.position) in (response.applied or [])


def test_a_message_is_changed_and_forgotten_by_its_position(client: RecallClient, user: str) -> None:
    said = {"role": "user", "content": "I moved to Oslo", "name": "Ann", "timestamp": "2026-01-31T12:00:00Z"}
    at = client.add(said, user=user, session="s1").position
    [memory] = client.search("Oslo", user=user, after=at)
    assert (memory.id, memory.kind, memory.name, memory.session_id) == (str(at), "message", "Ann", "s1")
    assert memory.created_at == "2026-01-31T12:00:00Z"

    changed = client.update(at, user=user, content="I moved to Bergen")
    assert contents(client.search("moved", user=user, after=changed)) == ["I moved to Bergen"]
    forgotten = client.forget(at, user=user)
    assert contents(client.search("moved", user=user, after=forgotten)) == []


def test_forgetting_by_a_filter_leaves_the_rest(client: RecallClient, user: str) -> None:
    client.add("blue is old", user=user, tags=["old"])
    client.add("blue is new", user=user, tags=["new"])
    forgotten = client.forget(user=user, where={"tag": "old"})
    assert contents(client.search("blue", user=user, after=forgotten)) == ["blue is new"]


def test_threads_share_a_client(client: RecallClient, user: str) -> None:
    users = [f"{user}-{number}" for number in range(4)]
    with ThreadPoolExecutor(len(users)) as pool:
        results = pool.map(lambda each: [found(client, each, number) for number in range(25)], users)
    assert list(results) == [[True] * 25] * len(users)


def test_many_coroutines_share_a_client(broker: Cluster, topics: Topics, user: str) -> None:
    async def pair(client: AsyncRecallClient, number: int) -> list[str]:
        at = await client.add(f"fact {number}", user=f"{user}-{number}")
        return contents(await client.search("fact", user=f"{user}-{number}", after=at))

    async def pairs() -> list[list[str]]:
        names = named(topics)
        async with AsyncRecallClient(broker.bootstrap_servers, TENANT, timeout_s=WAIT_S, **names) as client:  # type: ignore[arg-type]
            return await asyncio.gather(*(pair(client, number) for number in range(PAIRS)))

    assert asyncio.run(pairs()) == [[f"fact {number}"] for number in range(PAIRS)]


def test_one_user_does_not_see_the_other_nor_another_environment(
    broker: Cluster, topics: Topics, client: RecallClient, user: str
) -> None:
    at = client.add("my secret", user=user)
    assert contents(client.search("secret", user=f"{user}-other")) == []
    with RecallClient(
        broker.bootstrap_servers,
        TENANT,
        environment="staging",
        timeout_s=WAIT_S,
        **named(topics),  # type: ignore[arg-type]
    ) as staging:
        assert contents(staging.search("secret", user=user, after=at)) == []


def test_any_query_can_be_asked(client: RecallClient, user: str) -> None:
    client.add({"role": "user", "content": "hello"}, user=user, session="s1")
    response = client.ask(EpisodesList(type="episodes.list", tenant_id=TENANT, user_id=user))
    assert [episode.session_id for episode in response.episodes or []] == ["s1"]


def test_an_error_response_is_raised_with_what_is_wrong(client: RecallClient, user: str) -> None:
    query = MemoryGet(type="memory.get", tenant_id=TENANT, user_id=user, memory_id="nowhere", id="q-2")
    with pytest.raises(QueryFailed, match=r"query q-2: not_found: .*nowhere") as raised:
        client.ask(query)
    assert (raised.value.query_id, raised.value.error.code) == ("q-2", "not_found")


def test_a_query_that_is_too_large_is_refused_at_once(client: RecallClient, user: str) -> None:
    with pytest.raises(InvalidRecord, match="over 1048576 bytes"):
        client.search("x" * 2**20, user=user)


def test_what_is_not_applied_in_time_is_a_degraded_answer(client: RecallClient, user: str) -> None:
    at = client.add("here", user=user).position
    ahead = Position(at.topic, at.partition, at.offset + 1_000)
    found = client.search("walnuts", user=user, after=ahead, wait_timeout_ms=50)
    assert (found.response.status, [warning.code for warning in found.warnings]) == ("degraded", ["stale_read"])


def test_without_an_engine_a_query_times_out_under_its_id(broker: Cluster) -> None:
    topics = own_topics()
    create(broker, topics, partitions=1)
    with RecallClient(broker.bootstrap_servers, TENANT, **named(topics)) as client:  # type: ignore[arg-type]
        with pytest.raises(
            QueryTimeout, match=r"no response to query q-3 within 0\.5 s; is the engine running"
        ) as raised:
            client.search("anyone?", user="ann", id="q-3", timeout_s=0.5)
        assert isinstance(raised.value, TimeoutError)
        client.add("still works", user="ann")


@pytest.mark.parametrize("missing", ["memory_topic", "query_topic", "response_topic"])
def test_a_topic_that_is_missing_is_named(broker: Cluster, topics: Topics, missing: str) -> None:
    names = named(topics) | {missing: "no-such-topic"}
    with (
        RecallClient(broker.bootstrap_servers, TENANT, timeout_s=1.0, **names) as client,  # type: ignore[arg-type]
        pytest.raises((DeliveryFailed, QueryTimeout), match="no-such-topic" if missing != "query_topic" else "no resp"),
    ):
        client.add("lost", user="ann") if missing == "memory_topic" else client.search("anyone?", user="ann")


def test_without_kafka_every_call_ends_in_its_time() -> None:
    nowhere = f"{HOST}:{free_ports(None)[0]}"
    with RecallClient(nowhere, TENANT, timeout_s=1.0, options={"log_level": "0"}) as client:
        with pytest.raises(DeliveryFailed, match=f"memory.events at {nowhere}: .*is Kafka reachable"):
            client.add("lost", user="ann")
        with pytest.raises(QueryTimeout, match=r"within 1 s.*Kafka's last complaint: .+"):
            client.search("anyone?", user="ann")


def test_closing_fails_what_is_still_open(broker: Cluster) -> None:
    topics = own_topics()
    create(broker, topics, partitions=1)

    async def asked() -> Callable[[], Found]:
        client = AsyncRecallClient(broker.bootstrap_servers, TENANT, **named(topics))  # type: ignore[arg-type]
        open_query = asyncio.ensure_future(client.search("anyone?", user="ann"))
        await client.add("a record that is acknowledged", user="ann")
        await client.close()
        await asyncio.wait([open_query])
        return open_query.result

    with pytest.raises(Exception, match="closed before a response came"):
        asyncio.run(asked())()


def test_a_response_in_a_partition_that_was_added_comes_too(broker: Cluster, user: str) -> None:
    topics = own_topics()
    create(broker, topics, partitions=1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def led() -> bool:
        found = admin.list_topics(topics.responses, timeout=WAIT_S).topics[topics.responses].partitions
        return len(found) == 2 and all(partition.leader >= 0 for partition in found.values())

    def answer(query_id: str, partition: int) -> None:
        """As an engine does that was started after the topic grew."""
        value = Response(query_id=query_id, status="ok", memories=[]).model_dump_json().encode()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})  # which asks for partitions anew
        producer.produce(topics.responses, value, f"{TENANT}/{user}".encode(), partition)
        assert producer.flush(WAIT_S) == 0

    def asked(query_id: str) -> None:
        with closing(Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "test"})) as consumer:
            consumer.assign([TopicPartition(topics.queries, 0, 0)])
            for message in iter(lambda: consumer.poll(WAIT_S), None):
                if query_id.encode() in (message.value() or b""):
                    return
        raise AssertionError(f"{query_id} was not asked")

    with (
        RecallClient(broker.bootstrap_servers, TENANT, timeout_s=WAIT_S, **named(topics)) as client,  # type: ignore[arg-type]
        ThreadPoolExecutor(1) as pool,
    ):
        for number, partition in enumerate((0, 1, 0, 1)):
            if number == 1:
                admin.create_partitions([NewPartitions(topics.responses, 2)])[topics.responses].result()
                assert retry(led, time.monotonic() + WAIT_S)
            answered = pool.submit(client.search, "anything", user=user, id=f"q-{number}")
            asked(f"q-{number}")
            answer(f"q-{number}", partition)
            assert answered.result().response.query_id == f"q-{number}"


# ── the graph ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_facts_are_found_with_what_states_them(client: RecallClient, user: str) -> None:
    works: dict[str, Any] = {"source": "Ann", "type": "works_at", "target": "Acme"}
    lives: dict[str, Any] = {"source": "Ann", "type": "lives_in", "target": "Porto"}
    client.add("Ann started at Acme", user=user, id="m1", relations=[works])
    client.add("Ann moved to Porto", user=user, id="m2", relations=[lives])
    every = client.facts(user=user, entities=["Ann"])
    of_type = client.facts("Acme", user=user, types=["works_at"], limit=1)
    assert {(fact.type, fact.target_name) for fact in every} == {
        ("works_at", "Acme"),
        ("lives_in", "Porto"),
    }
    (fact,) = of_type
    assert [(one.id, one.quote) for one in fact.evidence] == [("m1", "Ann started at Acme")]
    with pytest.raises(QueryFailed, match="not_found"):
        client.facts(user=user, entities=["Nobody"])


def test_a_rollout_is_decided_traced_and_told(broker: Cluster, topics: Topics, user: str) -> None:
    """Of a tenant of its own: others are not touched."""
    with RecallClient(broker.bootstrap_servers, user, **named(topics), timeout_s=WAIT_S) as client:  # type: ignore[arg-type]
        client.add("Rollout alarms page the on-call", user="ann", id="alarm", topics=["dashboard"])
        at = client.add("Grafana turns pale", user="ann", id="red", topics=["dashboard"])
        answer = client.search("rollout alarms", user="ann", k=1, strategy="hybrid_graph", after=at)
        assert (answer.response.fallback, contents(answer)) == ("rollout_off", ["Rollout alarms page the on-call"])
        trace = client.graph_trace("rollout alarms", user="ann", k=1)
        assert [memory.id for memory in trace.expanded] == ["red"]

        decided = client.graph_rollout("canary", by="ops", why="try it")
        assert decided.topic == topics.control
        retry(lambda: _told(client).rollout.mode == "canary", time.monotonic() + WAIT_S)
        rollout = _told(client).rollout
        assert (rollout.mode, rollout.by, rollout.why) == ("canary", "ops", "try it")
        answer = client.search("rollout alarms", user="ann", k=1, strategy="hybrid_graph")
        assert (answer.response.fallback, len(answer)) == (None, 2)

        client.graph_gate(True, by="ops", why="wait")
        retry(lambda: _told(client).gate.blocked, time.monotonic() + WAIT_S)
        gate = _told(client).gate
        assert (gate.blocked, gate.by, gate.why) == (True, "ops", "wait")
        blocked = client.search("rollout alarms", user="ann", strategy="hybrid_graph")
        assert blocked.response.fallback == "quality_gate_blocked"


def test_the_command_asks_the_engine(command: Command, broker: Cluster, topics: Topics, user: str) -> None:
    with RecallClient(broker.bootstrap_servers, user, **named(topics), timeout_s=WAIT_S) as client:  # type: ignore[arg-type]
        relation = {"source": "Ann", "type": "works_at", "target": "Acme"}
        client.add("Ann started at Acme", user="ann", id="m1", relations=[relation])
        client.search("Ann", user="ann")
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--query-topic", topics.queries]
    where += ["--response-topic", topics.responses, "--tenant", user, "--user", "ann"]
    facts = command("graph", "facts", "Acme", *where)
    assert facts.stdout == "Ann works_at Acme\n    “Ann started at Acme” m1\n", facts.stderr
    status, trace = command("graph", "status", *where), command("graph", "trace", "Acme", *where)
    assert status.stdout.startswith("rollout  off\ngate     open\n"), status.stderr
    assert trace.stdout.startswith("from     m1 ("), trace.stderr
    unknown = command("graph", "facts", "--entity", "Nobody", *where)
    assert (unknown.returncode, "not_found" in unknown.stderr) == (1, True)


def _told(client: RecallClient) -> GraphReport:
    return client.graph_status(user="ann")
