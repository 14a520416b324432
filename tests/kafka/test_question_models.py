"""Questions with a language model on a real broker: one that hangs holds up nobody, and a kill loses and repeats
nothing."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from tests.kafka.harness import GIVE_UP_S, Deployment, Names, own_topics, read_topic, until, watched
from tests.llm_server import Fault, LlmServer

SUMMARIES = {"diet": "Ana eats no meat.", "travel": "Ana moved to Porto in May."}
PENDING = 100


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer) -> Deployment:
    own = own_topics(topics)
    broker.create_topics({own.memory: 1, own.queries: 1, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 1))
    chosen = ("--llm", "m-1", "--llm-url", llm_server.url, "--llm-query-timeout-ms", "60000")
    return Deployment(broker, own, tmp_path / "s", flags=chosen)


def send(deployment: Deployment, topic: str, *events: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": deployment.broker.bootstrap_servers})
    for event in events:
        producer.produce(topic, orjson.dumps({"tenant_id": "acme", "user_id": "ana"} | event), b"acme/ana")
    assert producer.flush(GIVE_UP_S) == 0


def answered(deployment: Deployment) -> list[dict[str, Any]]:
    return [orjson.loads(found.value()) for found in read_topic(deployment.broker, deployment.topics.responses)]


def test_while_calls_hang_others_are_answered_and_after_a_kill_each_question_is_answered_once(
    deployment: Deployment, llm_server: LlmServer
) -> None:
    llm_server.answer("select_categories", {"categories": ["travel"]})
    llm_server.fail(Fault("hang"), times=None)
    memory: dict[str, Any] = {"type": "memory", "id": "m", "content": "Ana moved to Porto in May", "receipt": True}
    summaries = [{"type": "category.summary", "category": name, "summary": text} for name, text in SUMMARIES.items()]
    send(deployment, deployment.topics.memory, *summaries, memory)
    question = {"type": "recall", "query": "Where does Ana live?", "k": 1}
    killed = deployment.start()
    with watched(killed):
        deployment.outputs(deployment.topics.receipts, 1)  # it reads: what is asked from now on is answered
        wanted = [question | {"id": f"q{n}", "select_categories": True} for n in range(PENDING)]
        send(deployment, deployment.topics.queries, *wanted)
        llm_server.wait_for(lambda now: now.held == PENDING)
        send(deployment, deployment.topics.queries, question | {"id": "plain"})
        until(lambda: [found["query_id"] for found in answered(deployment)] == ["plain"])
        assert llm_server.now.held == PENDING
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    llm_server.wait_for(lambda now: now.held == 0)
    with deployment.running():
        llm_server.wait_for(lambda now: now.held == PENDING)
        llm_server.heal()
        until(lambda: len(answered(deployment)) == PENDING + 1)
    found = answered(deployment)
    assert Counter(one["query_id"] for one in found) == Counter(["plain", *(f"q{n}" for n in range(PENDING))])
    assert {one["status"] for one in found} == {"ok"}
    assert all([*one["context"]["summaries"]] == ["travel"] for one in found[1:])
    deployment.asked = PENDING + 1
    assert [*deployment.outputs(deployment.topics.responses, PENDING + 1).values()] == [1] * (PENDING + 1)
