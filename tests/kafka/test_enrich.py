"""The enrichment flow on a real broker, with models behind real HTTP: kills, stops, failing and hanging models."""

import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.broker import Cluster
from recallflow.connectors.kafka.messages import NUMBER_HEADER, SOURCE_HEADER
from recallflow.enrichment import content_hash
from recallflow.operators.enrichment.prompts import DATA, DATA_END
from recallflow.state.trace_search import Findings, Pieces, RecordFilter, search_folder
from tests.kafka.harness import (
    FLOW_FLAGS,
    SESSION_S,
    Command,
    Deployment,
    Names,
    OnTopics,
    enriched_topics,
    own_topics,
    produce,
    read_topic,
    until,
    watched,
)
from tests.llm_server import Asked, LlmServer
from tests.starts import COMMAND, Started, fork_server

PARTITIONS = 2
CAPACITY = 20


@dataclass
class Enrichment(OnTopics):
    state_dir: Path
    settings: dict[str, str]

    def words(self, *more: str, state_dir: Path | None = None) -> list[str]:
        where = ["--create", "--state-dir", str(state_dir or self.state_dir), *self.options(FLOW_FLAGS["enrich"])]
        return ["enrich", *where, "--epoch-ms", "50", "--session-timeout-s", str(SESSION_S), *more]

    def start(self, *more: str, state_dir: Path | None = None) -> Started:
        return fork_server().start(COMMAND, self.words(*more, state_dir=state_dir), os.environ | self.settings)

    @contextlib.contextmanager
    def running(self, *more: str, state_dir: Path | None = None) -> Iterator[Started]:
        with self.command(*self.words(*more, state_dir=state_dir), environment=self.settings, log=[]) as process:
            yield process

    def request(self, count: int, begin: int = 0, **fields: Any) -> None:
        requests: list[dict[str, Any]] = []
        for number in range(begin, begin + count):
            user = f"u{number % 5}"
            content = f"I moved to town {number}"
            memory: dict[str, Any] = {
                "memory_id": f"m{number}", "content": content, "content_hash": content_hash(content),
            }  # fmt: skip
            memory |= {"kind": "message", "role": "user", "created_at": number}
            request: dict[str, Any] = {
                "type": "enrichment.request", "tenant_id": "acme", "user_id": user, "tasks": ["facts"],
            }  # fmt: skip
            request |= {"source": f"memory.events:0:{number}", "memories": [memory]} | fields
            requests.append(request)
        produce(self.broker, self.topics.enrichment, *requests)

    def results(self) -> list[dict[str, Any]]:
        return self.read(self.topics.results)

    def events(self) -> list[dict[str, Any]]:
        return [event for event in self.read(self.topics.memory) if event["type"] != "message"]

    def check_once(self, count: int) -> None:
        until(lambda: len(self.results()) >= count)
        assert Counter(result["memory_id"] for result in self.results()) == Counter(f"m{n}" for n in range(count))
        wanted = sum(len(result["events"]) for result in self.results())
        until(lambda: len(self.events()) >= wanted)
        assert wanted >= count
        assert [*Counter(event["id"] for event in self.events()).values()] == [1] * wanted
        headers = [dict(message.headers() or ()) for message in read_topic(self.broker, self.topics.memory)]
        identities = Counter((one[SOURCE_HEADER], one[NUMBER_HEADER]) for one in headers if SOURCE_HEADER in one)
        assert [*identities.values()] == [1] * wanted


def data(asked: Asked) -> Any:
    return orjson.loads(asked.user.partition(DATA)[2].partition(DATA_END)[0])


def facts(asked: Asked) -> dict[str, Any]:
    empty: dict[str, Any] = {"entities": [], "valid_from": None, "valid_to": None}
    found = [
        {"message": one["number"], "content": one["text"], "kind": "fact", "confidence": 0.9, "evidence": one["text"]}
        for one in data(asked)["messages"]
    ]
    return {"facts": [one | empty for one in found]}


def settings(llm_server: LlmServer) -> dict[str, str]:
    return {
        "RECALLFLOW_LLM_MODEL": "judge", "RECALLFLOW_LLM_BASE_URL": llm_server.url,
        "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0", "RECALLFLOW_ENRICHMENT_BATCH_SIZE": "1",
        "RECALLFLOW_LLM_CAPACITY": str(CAPACITY),
    }  # fmt: skip


@pytest.fixture
def enrichment(broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer) -> Enrichment:
    llm_server.answer("facts", facts)
    return Enrichment(broker, enriched_topics(broker, topics), tmp_path / "enrich", settings(llm_server))


def asked_about(llm_server: LlmServer) -> Counter[str]:
    return Counter(one["text"] for asked in llm_server.requests for one in data(asked)["messages"])


def empty(broker: Cluster, topic: str) -> None:
    """Remove all records of a topic, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, n, OFFSET_END) for n in range(PARTITIONS)]).values():
        future.result()


# ── kills, stops, a lost directory ────────────────────────────────────────────────────────────────────────────────


def test_open_requests_are_asked_again_unless_retention_took_them(
    broker: Cluster, enrichment: Enrichment, llm_server: LlmServer
) -> None:
    """No file names a user or holds a text while calls are under way, and a stop does not wait for them."""
    enrichment.request(10)
    llm_server.fail("hang", times=None)
    process = enrichment.start()
    with watched(process):
        llm_server.wait_for(lambda now: now.held == 10)
        process.send_signal(signal.SIGKILL)
        process.wait()
    findings, texts = Findings(), Pieces([b"I moved to town", b"user_id", b'"acme"', b"acme/u"])
    search_folder(enrichment.state_dir, texts, RecordFilter(), findings)
    assert findings.sizes
    assert findings.telling() == {}
    llm_server.heal()
    with enrichment.running():
        enrichment.check_once(10)
    assert {*asked_about(llm_server).values()} == {2}

    llm_server.fail("hang", times=None)
    enrichment.request(5, begin=10)
    with enrichment.running():
        llm_server.wait_for(lambda now: now.held == 5)
    llm_server.heal()
    empty(broker, enrichment.topics.enrichment)
    enrichment.request(1, begin=15)
    refused = enrichment.start()
    assert b"--give-up-unanswered" in refused.communicate()[1]
    assert refused.returncode == 1
    with enrichment.running("--give-up-unanswered"):
        until(lambda: len(enrichment.results()) == 11)
    assert "m15" in [result["memory_id"] for result in enrichment.results()]


def test_a_lost_directory_and_a_new_deployment_repeat_nothing(enrichment: Enrichment, llm_server: LlmServer) -> None:
    own = enrichment.topics
    foreign = {"type": "memory", "tenant_id": "other", "user_id": "ann", "content": "x"}
    result = {"type": "enrichment.result", "tenant_id": "acme", "user_id": "ann", "request": "r:0:0", "source": "m:0:0"}
    for topic in (own.enrichment, own.results):
        produce(enrichment.broker, topic, b"no JSON", b"{}", b'{"type": "message"}')
    produce(enrichment.broker, own.results, result | {"memory_id": "m", "events": [foreign]})
    enrichment.request(10)
    llm_server.fail("hang", times=2)
    with enrichment.running():
        until(lambda: len(enrichment.events()) == 8)
        until(lambda: len(read_topic(enrichment.broker, own.dead_letters)) == 7)
    llm_server.heal()
    shutil.rmtree(enrichment.state_dir)
    before = asked_about(llm_server)
    with enrichment.running("--deployment", f"another-{own.enrichment}"):
        until(lambda: len(enrichment.events()) == 10)
    assert (asked_about(llm_server) - before).total() == 2
    assert Counter(event["id"] for event in enrichment.events()).most_common(1)[0][1] == 1
    assert len(read_topic(enrichment.broker, own.dead_letters)) == 7


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── several processes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_of_another_flow_is_refused_and_unchanged(
    enrichment: Enrichment, tmp_path: Path, command: Command
) -> None:
    assert command("remember", "I live in Porto", "--state-dir", tmp_path / "memory").returncode == 0
    process = enrichment.start(state_dir=tmp_path / "memory")
    process.communicate()
    assert process.returncode == 2

    with enrichment.running():
        enrichment.request(1)
        enrichment.check_once(1)
    own = enrichment.topics
    words = ["--memory-topic", own.memory, "--control-topic", own.control, "--receipt-topic", own.receipts]
    words += ["--query-topic", own.queries, "--response-topic", own.responses, "--dead-letter-topic", own.dead_letters]
    servers = ["--bootstrap-servers", enrichment.broker.bootstrap_servers]
    refused = command("run", "--state-dir", enrichment.state_dir, *servers, *words)
    assert refused.returncode == 1
    assert own.enrichment in refused.stderr
    with enrichment.running():
        enrichment.request(1, begin=1)
        enrichment.check_once(2)


# ── with the main flow ────────────────────────────────────────────────────────────────────────────────────────────


def test_kills_of_both_flows_change_nothing(
    broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer
) -> None:
    """Queries are answered while all calls hang; then both processes die."""
    own = replace(own_topics(topics), enrichment=topics("enrichment"), results=topics("results"))
    broker.create_topics(dict.fromkeys((*own.read(), *own.outputs(), own.enrichment, own.results), PARTITIONS))
    main = Deployment(broker, own, tmp_path / "run", flags=("--enrich-facts", "--enrichment-topic", own.enrichment))
    enrichment = Enrichment(broker, own, tmp_path / "enrich", settings(llm_server))
    llm_server.answer("facts", facts)
    llm_server.fail("hang", times=None)
    for number in range(40):
        message = {"type": "message", "id": f"m{number}", "tenant_id": "acme", "user_id": f"u{number % 5}"}
        content = f"I moved to town {number}"
        produce(broker, own.memory, message | {"content": content})

    def ask(number: int) -> None:
        query = {"type": "recall", "id": f"q{number}", "tenant_id": "acme", "user_id": "u1", "k": 50}
        produce(broker, own.queries, query | {"query": "Where did I move?"})

    def answers() -> list[dict[str, Any]]:
        return enrichment.read(own.responses)

    engine, enrich = main.start(), enrichment.start()
    with watched(engine), watched(enrich):
        llm_server.wait_for(lambda now: now.held == CAPACITY)
        for number in range(5):
            ask(number)
        until(lambda: len(answers()) >= 5)
        for process in (engine, enrich):
            process.send_signal(signal.SIGKILL)
            process.wait()
    llm_server.heal()
    with main.running(), enrichment.running():
        enrichment.check_once(40)
        asked = 5
        while not any(memory["kind"] == "fact" for memory in answers()[-1]["memories"]):
            ask(asked)
            asked += 1
            until(lambda count=asked: len(answers()) == count)  # type: ignore[misc]
    assert [*Counter(answer["query_id"] for answer in answers()).values()] == [1] * asked
