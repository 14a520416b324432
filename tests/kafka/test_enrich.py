"""The enrichment flow on a real broker, with models behind real HTTP: what is killed, fails or hangs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.broker import Cluster, free_ports
from recallflow.connectors.kafka.outgoing import NUMBER_HEADER, SOURCE_HEADER
from recallflow.credentials import ApiKeyText
from recallflow.enrichment import content_hash
from recallflow.flows.enrich import CALLS_STEP
from recallflow.flows.recovery import committed, has_store
from recallflow.flows.topics import Topics
from recallflow.operators.enrichment.prompts import DATA, DATA_END
from recallflow.state.searching import Findings, Known, Pieces, search_folder
from tests.kafka.harness import GIVE_UP_S, Command, Deployment, Names, own_topics, read_topic, until, watched
from tests.llm_server import Asked, Fault, LlmServer

SCRIPT = "import sys; from recallflow.cli import main; sys.exit(main())"
PARTITIONS = 2
CAPACITY = 100
FLAGS = {
    "--enrichment-topic": "enrichment",
    "--result-topic": "results",
    "--memory-topic": "memory",
    "--control-topic": "control",
    "--receipt-topic": "receipts",
    "--dead-letter-topic": "dead_letters",
}


@dataclass
class Enrichment:
    """A deployment of the flow, with topics of its own."""

    broker: Cluster
    topics: Topics
    state_dir: Path
    settings: dict[str, str]

    def start(self, *more: str, state_dir: Path | None = None) -> subprocess.Popen[bytes]:
        words = [
            "--create",
            "--state-dir",
            str(state_dir or self.state_dir),
            "--bootstrap-servers",
            self.broker.bootstrap_servers,
        ]
        named = [word for flag, name in FLAGS.items() for word in (flag, getattr(self.topics, name))]
        command = [sys.executable, "-c", SCRIPT, "enrich", *words, *named, "--epoch-ms", "50", *more]
        environment = os.environ | self.settings
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)

    @contextlib.contextmanager
    def running(self, *more: str, state_dir: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Runs it, and stops it as an operator does."""
        process = self.start(*more, state_dir=state_dir)
        with watched(process):
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                errors = process.communicate()[1].decode()
                print(errors)
            assert process.returncode == 0, errors

    def request(self, count: int, begin: int = 0, **fields: Any) -> None:
        """Asks about so many memories of some users."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "partitioner": "murmur2_random"})
        for number in range(begin, begin + count):
            user = f"u{number % 5}"
            content = f"I moved to town {number}"
            memory: dict[str, Any] = {
                "memory_id": f"m{number}",
                "content": content,
                "content_hash": content_hash(content),
            }
            memory |= {"kind": "message", "role": "user", "created_at": number}
            request: dict[str, Any] = {
                "type": "enrichment.request",
                "tenant_id": "acme",
                "user_id": user,
                "tasks": ["facts"],
            }
            request |= {"source": f"memory.events:0:{number}", "memories": [memory]} | fields
            producer.produce(self.topics.enrichment, orjson.dumps(request), f"acme/{user}")
        assert producer.flush(GIVE_UP_S) == 0

    def read(self, topic: str) -> list[dict[str, Any]]:
        return [orjson.loads(message.value()) for message in read_topic(self.broker, topic)]

    def results(self) -> list[dict[str, Any]]:
        return self.read(self.topics.results)

    def events(self) -> list[dict[str, Any]]:
        return [event for event in self.read(self.topics.memory) if event["type"] != "message"]

    def check_once(self, count: int) -> None:
        """Waits for a result for each request, and what comes of it; all are there once."""
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
    """What a prompt shows."""
    return orjson.loads(asked.user.partition(DATA)[2].partition(DATA_END)[0])


def facts(asked: Asked) -> dict[str, Any]:
    """One fact of each message: what it says."""
    empty: dict[str, Any] = {"entities": [], "valid_from": None, "valid_to": None}
    found = [
        {"message": one["number"], "content": one["text"], "kind": "fact", "confidence": 0.9, "evidence": one["text"]}
        for one in data(asked)["messages"]
    ]
    return {"facts": [one | empty for one in found]}


def settings(llm_server: LlmServer) -> dict[str, str]:
    """Each request is a call of its own."""
    return {
        "RECALLFLOW_LLM_MODEL": "judge",
        "RECALLFLOW_LLM_BASE_URL": llm_server.url,
        "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0",
        "RECALLFLOW_ENRICHMENT_BATCH_SIZE": "1",
    }


@pytest.fixture
def enrichment(broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer) -> Enrichment:
    named = {name: topics(getattr(Topics, name)) for name in FLAGS.values()}
    broker.create_topics(dict.fromkeys(named.values(), PARTITIONS))
    llm_server.answer("facts", facts)
    named |= {name: topics(getattr(Topics, name)) for name in ("queries", "responses")}
    return Enrichment(broker, Topics(replies=(), **named), tmp_path / "enrich", settings(llm_server))


def produce(broker: Cluster, topic: str, value: bytes, key: bytes = b"acme/ann") -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    producer.produce(topic, value, key)
    assert producer.flush(GIVE_UP_S) == 0


def asked_about(llm_server: LlmServer) -> Counter[str]:
    """How often the model read each message."""
    return Counter(one["text"] for asked in llm_server.requests for one in data(asked)["messages"])


def test_requests_are_answered_once(enrichment: Enrichment, llm_server: LlmServer) -> None:
    enrichment.request(20)
    with enrichment.running():
        enrichment.check_once(20)
        enrichment.request(20, begin=20)
        enrichment.check_once(40)
    with enrichment.running():
        enrichment.request(1, begin=40)
        enrichment.check_once(41)
    assert set(asked_about(llm_server).values()) == {1}


def test_events_are_sent_with_our_key_and_nothing_else_is(enrichment: Enrichment) -> None:
    key = ApiKeyText.new().text()
    enrichment.settings["RECALLFLOW_AUTH_API_KEY"] = key
    enrichment.request(1)
    with enrichment.running():
        enrichment.check_once(1)
    events, results = (
        read_topic(enrichment.broker, at) for at in (enrichment.topics.memory, enrichment.topics.results)
    )
    assert {dict(event.headers())["x-api-key"] for event in events} == {key.encode()}
    assert [dict(result.headers()).get("x-api-key") for result in results] == [None]


# ── kills, stops, a lost directory ────────────────────────────────────────────────────────────────────────────────


def test_kills_while_calls_are_under_way_lose_and_double_nothing(enrichment: Enrichment, llm_server: LlmServer) -> None:
    enrichment.request(250)
    written = 0
    # So many are answered, then 100 calls hang, and the process dies; the second time with no snapshot of its own.
    for answered, epoch_ms in ((50, 50), (30, 60_000), (0, 50)):
        llm_server.fail(Fault("delay"), times=answered)
        llm_server.fail("hang", times=None)
        process = enrichment.start("--epoch-ms", str(epoch_ms))
        written += answered
        with watched(process):
            llm_server.wait_for(lambda now: now.held == CAPACITY)
            until(lambda count=written: len(enrichment.results()) >= count)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            process.wait()
        llm_server.heal()
        llm_server.wait_for(lambda now: now.held == 0)
    with enrichment.running():
        enrichment.check_once(250)


def test_a_stop_waits_for_no_call_and_what_was_pending_is_asked_again(
    enrichment: Enrichment, llm_server: LlmServer
) -> None:
    enrichment.request(20)
    llm_server.fail("hang", times=None)
    with enrichment.running():
        llm_server.wait_for(lambda now: now.held == 20)
    assert not enrichment.results()
    llm_server.heal()
    with enrichment.running():
        enrichment.check_once(20)
    assert set(asked_about(llm_server).values()) == {2}


def test_no_file_holds_what_is_asked_nor_of_whom_it_is(enrichment: Enrichment, llm_server: LlmServer) -> None:
    enrichment.request(20)
    llm_server.fail("hang", times=None)
    process = enrichment.start()
    with watched(process):
        llm_server.wait_for(lambda now: now.held == 20)
        until(lambda: sum(map(len, pending(enrichment.state_dir))) == 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
    findings = Findings()
    search_folder(
        enrichment.state_dir, Pieces([b"I moved to town", b"user_id", b'"acme"', b"acme/u"]), Known(), findings
    )
    assert findings.sizes
    assert findings.telling() == {}
    llm_server.heal()
    with enrichment.running():
        enrichment.check_once(20)


def test_what_retention_took_while_it_was_asked_is_passed_over(
    broker: Cluster, enrichment: Enrichment, llm_server: LlmServer
) -> None:
    enrichment.request(10)
    llm_server.fail("hang", times=None)
    with enrichment.running():
        llm_server.wait_for(lambda now: now.held == 10)
    llm_server.heal()
    empty(broker, enrichment.topics.enrichment)
    enrichment.request(1, begin=10)
    with enrichment.running():
        until(lambda: len(enrichment.results()) == 1)
    assert [result["memory_id"] for result in enrichment.results()] == ["m10"]


def pending(state_dir: Path) -> list[tuple[Any, ...]]:
    """What snapshots have under way."""
    if not has_store(state_dir):
        return []
    return [batch for call in committed(state_dir, CALLS_STEP).values() for batch in call.pending]


def empty(broker: Cluster, topic: str) -> None:
    """Removes all records of a topic, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, n, OFFSET_END) for n in range(PARTITIONS)]).values():
        future.result()


def test_without_its_directory_nothing_that_was_answered_is_asked_again(
    enrichment: Enrichment, llm_server: LlmServer
) -> None:
    enrichment.request(30)
    llm_server.fail("hang", times=5)
    with enrichment.running():
        until(lambda: len(enrichment.events()) == 25)
    llm_server.heal()
    shutil.rmtree(enrichment.state_dir)
    before = asked_about(llm_server)
    with enrichment.running():
        enrichment.check_once(30)
    assert (asked_about(llm_server) - before).total() == 5


# ── models that fail ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault("status", status=500), "unavailable"),
        (Fault("status", status=429), "rate_limited"),
        (Fault("hang"), "timeout"),
        (Fault("refusal"), "refused"),
        (Fault("cut"), "unavailable"),
    ],
    ids=lambda one: f"{one.kind} {one.status}" if isinstance(one, Fault) else one,
)
def test_what_a_model_does_not_answer_is_told_in_a_receipt(
    enrichment: Enrichment, llm_server: LlmServer, fault: Fault, why: str
) -> None:
    enrichment.settings |= {"RECALLFLOW_LLM_ATTEMPTS": "1", "RECALLFLOW_LLM_TIMEOUT_MS": "1000"}
    llm_server.fail(fault)
    enrichment.request(1)
    with enrichment.running():
        until(lambda: bool(enrichment.read(enrichment.topics.receipts)))
        enrichment.request(1, begin=1)
        until(lambda: bool(enrichment.events()))  # the flow goes on
    (receipt,) = enrichment.read(enrichment.topics.receipts)
    assert (receipt["outcome"], receipt["code"]) == ("degraded", "FACT_EXTRACTION_FAILED")
    assert (receipt["id"], receipt["position"], receipt["memory_id"]) == (*["memory.events:0:0"] * 2, "m0")
    assert why in receipt["detail"]
    assert "town" not in receipt["detail"]


def test_calls_that_hang_bound_what_is_read(enrichment: Enrichment, llm_server: LlmServer) -> None:
    enrichment.settings["RECALLFLOW_LLM_CAPACITY"] = "2"
    enrichment.request(50)
    llm_server.fail("hang", times=None)
    (port,) = free_ports(1)
    with enrichment.running("--metrics-port", str(port)):
        until(lambda: "recallflow_in_flight_records 8.0" in metrics(port))
        llm_server.wait_for(lambda now: now.held == 2)
        assert llm_server.now.most_at_once == 2
        llm_server.heal()
        enrichment.check_once(50)
        until(lambda: 'recallflow_enriched_tasks_total{outcome="done",task="facts"} 50.0' in metrics(port))
        assert 'recallflow_model_calls_total{model="judge",task="facts",tenant="acme"} 50.0' in metrics(port)
    assert llm_server.now.most_at_once == 2


def metrics(port: int) -> str:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read(), "utf-8")
    return ""


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_no_request_and_no_result_is_a_dead_letter(enrichment: Enrichment) -> None:
    own = enrichment.topics
    foreign = {"type": "memory", "tenant_id": "other", "user_id": "ann", "content": "x"}
    result = {"type": "enrichment.result", "tenant_id": "acme", "user_id": "ann", "request": "r:0:0", "source": "m:0:0"}
    whole = result | {"memory_id": "m", "events": [foreign]}
    for topic in (own.enrichment, own.results):
        for value in (b"no JSON", b"{}", orjson.dumps({"type": "message"})):
            produce(enrichment.broker, topic, value)
    produce(enrichment.broker, own.results, orjson.dumps(whole))
    enrichment.request(1)
    with enrichment.running():
        until(lambda: len(enrichment.events()) == 1)
        until(lambda: len(read_topic(enrichment.broker, own.dead_letters)) == 7)
    shutil.rmtree(enrichment.state_dir)
    with enrichment.running():
        enrichment.request(1, begin=1)
        until(lambda: len(enrichment.events()) == 2)
    assert len(read_topic(enrichment.broker, own.dead_letters)) == 7


def test_messages_of_a_session_are_read_in_one_call(enrichment: Enrichment, llm_server: LlmServer) -> None:
    enrichment.settings |= {"RECALLFLOW_ENRICHMENT_BATCH_SIZE": "8", "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "60000"}
    enrichment.request(80, session_id="s")  # 16 of each of five users
    with enrichment.running():
        enrichment.check_once(80)
    assert llm_server.calls["facts"] == 10


def test_texts_of_a_tenants_users_are_embedded_in_one_call(enrichment: Enrichment, llm_server: LlmServer) -> None:
    enrichment.settings |= {"RECALLFLOW_ENRICHMENT_BATCH_SIZE": "8", "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "60000"}
    enrichment.settings |= {"RECALLFLOW_EMBEDDING_MODEL": "small", "RECALLFLOW_EMBEDDING_DIMENSION": "64"}
    enrichment.request(8, tasks=["embed"])
    with enrichment.running():
        enrichment.check_once(8)
    assert llm_server.calls["embed"] == 1
    embedded = {event["memory_id"]: event for event in enrichment.events()}
    assert {(event["type"], event["model"], len(event["embedding"])) for event in embedded.values()} == {
        ("memory.embedding", "small", 64)
    }
    assert {event["user_id"] for event in embedded.values()} == {f"u{number}" for number in range(5)}


def test_categories_are_those_that_the_operator_decided_on(enrichment: Enrichment, llm_server: LlmServer) -> None:
    category = {"type": "category", "tenant_id": "acme", "name": "places", "description": "where people live"}
    produce(enrichment.broker, enrichment.topics.control, orjson.dumps(category), b"acme/category/places")
    llm_server.answer("categorise", {"assigned": [{"memory": "m1", "category": "places", "confidence": 0.9}]})
    enrichment.request(1, tasks=["categorise"])
    with enrichment.running():
        until(lambda: bool(enrichment.events()))
    (event,) = enrichment.events()
    assert (event["type"], event["memory_id"], event["category"]) == ("memory.update", "m0", "places")
    assert "where people live" in llm_server.requests[0].user


# ── one at a time ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_one_is_refused_or_stands_by(enrichment: Enrichment, tmp_path: Path) -> None:
    enrichment.request(1)
    with enrichment.running() as first:
        enrichment.check_once(1)
        refused = enrichment.start(state_dir=tmp_path / "other")
        _, errors = refused.communicate()
        assert refused.returncode == 1
        assert f"deployment recallflow-{enrichment.topics.enrichment} is held by".encode() in errors
        waiting = enrichment.start("--wait", state_dir=tmp_path / "other")
        with watched(waiting):
            assert waiting.stderr is not None
            while b"standing by" not in (line := waiting.stderr.readline()):
                assert line, "it ended"
            enrichment.request(1, begin=1)
            enrichment.check_once(2)
            first.send_signal(signal.SIGTERM)
            first.wait()
            enrichment.request(1, begin=2)
            enrichment.check_once(3)
            waiting.send_signal(signal.SIGTERM)
            waiting.communicate()
            assert waiting.returncode == 0


def test_a_directory_of_the_other_flow_is_refused_and_left_as_it_was(
    enrichment: Enrichment, tmp_path: Path, command: Command
) -> None:
    made = command("remember", "I live in Porto", "--state-dir", tmp_path / "memory")
    assert made.returncode == 0
    process = enrichment.start(state_dir=tmp_path / "memory")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert b"holds memories: give the enrichment flow a --state-dir of its own" in errors

    with enrichment.running():
        enrichment.request(1)
        enrichment.check_once(1)
    own = enrichment.topics
    enrichment.broker.create_topics(dict.fromkeys((own.queries, own.responses), PARTITIONS))
    words = ["--memory-topic", own.memory, "--control-topic", own.control, "--receipt-topic", own.receipts]
    words += ["--query-topic", own.queries, "--response-topic", own.responses, "--dead-letter-topic", own.dead_letters]
    servers = ["--bootstrap-servers", enrichment.broker.bootstrap_servers]
    refused = command("run", "--state-dir", enrichment.state_dir, *servers, *words)
    assert refused.returncode == 1
    assert f"is of a flow that reads {own.enrichment}" in refused.stderr
    with enrichment.running():
        enrichment.request(1, begin=1)
        enrichment.check_once(2)


# ── with the main flow ────────────────────────────────────────────────────────────────────────────────────────────


def test_kills_of_both_flows_change_nothing_and_a_fact_is_recalled(
    broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer
) -> None:
    """100 calls hang: queries are answered meanwhile, and then both processes die, twice."""
    own = replace(own_topics(topics), enrichment=topics("enrichment"), results=topics("results"))
    broker.create_topics(dict.fromkeys((*own.read(), *own.outputs(), own.enrichment, own.results), PARTITIONS))
    main = Deployment(broker, own, tmp_path / "run", flags=("--enrich-facts", "--enrichment-topic", own.enrichment))
    enrichment = Enrichment(broker, own, tmp_path / "enrich", settings(llm_server))
    llm_server.answer("facts", facts)
    llm_server.fail("hang", times=None)
    for number in range(150):
        message = {"type": "message", "id": f"m{number}", "tenant_id": "acme", "user_id": f"u{number % 5}"}
        content = f"I moved to town {number}"
        produce(broker, own.memory, orjson.dumps(message | {"content": content}), f"acme/u{number % 5}".encode())

    def ask(number: int) -> None:
        query = {"type": "recall", "id": f"q{number}", "tenant_id": "acme", "user_id": "u1", "k": 50}
        produce(broker, own.queries, orjson.dumps(query | {"query": "Where did I move?"}), b"acme/u1")

    def answers() -> list[dict[str, Any]]:
        return enrichment.read(own.responses)

    for asked in (10, 20):
        engine, enrich = main.start(), enrichment.start()
        with watched(engine), watched(enrich):
            llm_server.wait_for(lambda now: now.held == CAPACITY)
            for number in range(asked - 10, asked):
                ask(number)
            until(lambda count=asked: len(answers()) >= count)  # type: ignore[misc]
            for process in (engine, enrich):
                process.send_signal(signal.SIGKILL)
                process.wait()
    llm_server.heal()
    with main.running(), enrichment.running():
        enrichment.check_once(150)
        asked = 20
        while not any(memory["kind"] == "fact" for memory in answers()[-1]["memories"]):
            ask(asked)
            asked += 1
            until(lambda count=asked: len(answers()) == count)  # type: ignore[misc]
    assert [*Counter(answer["query_id"] for answer in answers()).values()] == [1] * asked
