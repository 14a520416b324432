"""`recallflow reembed` against a real broker and a real HTTP server: what is computed, and what engines make of it."""

import signal
from collections import Counter
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.enrichment import content_hash
from recallflow.flows.reembed import TOGETHER
from tests.kafka.harness import GIVE_UP_S, Command, Names, Start, flags, read_topic
from tests.llm_server import Fault, LlmServer

FERRY, BIKE = "The ferry to Porto leaves at nine", "Bo sold his red bike"


@pytest.fixture
def memory(command: Command, broker: Cluster, topics: Names) -> str:
    """A memory topic of this test's own."""
    named = ["--enrichment-topic", topics("enrichment.requests"), "--result-topic", topics("enrichment.results")]
    done = command("topics", "create", "--partitions", 2, *flags(topics), *named,
                   "--bootstrap-servers", broker.bootstrap_servers)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return topics("memory.events")


@pytest.fixture
def reembed(broker: Cluster, memory: str, topics: Names, llm_server: LlmServer) -> list[str]:
    """The command for a model of the test server."""
    model = ["--embedder", "openai", "--embedding-model", "e-1", "--embedding-dimension", "64"]
    return ["reembed", *model, "--embedding-url", llm_server.url, "--memory-topic", memory,
            "--control-topic", topics("control.events"), "--bootstrap-servers", broker.bootstrap_servers]  # fmt: skip


def produce(broker: Cluster, topic: str, *events: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for event in events:
        owner = {"tenant_id": "acme", "user_id": "ann"} | event
        producer.produce(topic, orjson.dumps(owner), f"{owner['tenant_id']}/{owner['user_id']}")
    assert producer.flush(GIVE_UP_S) == 0


def told(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"type": "memory", "id": f"m{n}", "content": f"Note {n}"} for n in range(first, first + count)]


def vectors(broker: Cluster, topic: str) -> list[dict[str, Any]]:
    events = [orjson.loads(message.value()) for message in read_topic(broker, topic)]
    return [event for event in events if event["type"] == "memory.embedding"]


def test_texts_that_stand_get_a_vector_once(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    produce(
        broker,
        memory,
        {"type": "message", "id": "a", "name": "Ann", "content": FERRY, "session_id": "s"},
        {"type": "memory", "id": "b", "content": "An earlier text"},
        {"type": "memory.update", "memory_id": "b", "content": BIKE},
        {"type": "memory", "id": "c", "content": "Forgotten"},
        {"type": "memory.forget", "memory_id": "c"},
        {"type": "memory", "id": "d", "content": "Of a category", "category": "gone"},
        {"type": "memory.forget", "filter": {"category": "gone"}},
        {"type": "memory", "id": "e", "content": "Has its vector", "embedding": [1.0] + [0.0] * 63},
        {"type": "memory", "id": "f", "content": "Another's vector", "embedding": [1.0, 0.0]},
        {"type": "memory", "id": "h", "content": "Of another", "user_id": "cy", "environment": "test"},
        {"type": "memory.embedding", "memory_id": "a", "embedding": [1.0, 0.0], "model": "other",
         "content_hash": content_hash(FERRY)},
    )  # fmt: skip
    dry = command(*reembed, "--dry-run", "--price-per-million", "2")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.startswith("3 texts stand without a vector of e-1: 68 characters, about ")
    assert "at 2 per million" in dry.stdout
    assert "1 events bring vectors of another size" in dry.stdout
    assert llm_server.requests == []
    done = command(*reembed, "--yes")
    assert done.returncode == 0, done.stderr
    assert sorted(text for asked in llm_server.requests for text in asked.texts) == [
        f"Ann: {FERRY}",
        BIKE,
        "Of another",
    ]
    found = {event["memory_id"]: event for event in vectors(broker, memory) if event["model"] == "e-1"}
    assert {name: event["content_hash"] for name, event in found.items()} == {
        "a": content_hash(FERRY), "b": content_hash(BIKE), "h": content_hash("Of another")
    }  # fmt: skip
    assert (found["h"]["user_id"], found["h"]["environment"]) == ("cy", "test")
    assert all(len(event["embedding"]) == 64 for event in found.values())
    again = command(*reembed, "--yes")
    assert again.stdout.startswith("0 texts stand without")
    produce(broker, memory, {"type": "memory.update", "memory_id": "b", "content": "A third text"})
    assert command(*reembed, "--dry-run").stdout.startswith("1 texts stand without")


def test_nothing_is_paid_for_what_an_engine_refuses(
    command: Command, broker: Cluster, memory: str, reembed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, memory, *told(2))  # without credentials
    for mode, texts in (("required", 0), ("auto", 2)):
        monkeypatch.setenv("RECALLFLOW_AUTH_MODE", mode)
        dry = command(*reembed, "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert dry.stdout.startswith(f"{texts} texts stand without")


def test_after_a_kill_it_goes_on_where_it_stopped(
    command: Command, start: Start, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    """No vector stands twice in the topic, and hardly any is paid twice."""
    count = 3 * TOGETHER
    produce(broker, memory, *told(count))
    llm_server.fail(Fault("delay"), times=4)
    llm_server.fail("hang", times=None)
    process = start(*reembed, "--yes")
    llm_server.wait_for(lambda now: now.held == 4)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(vectors(broker, memory)) == TOGETHER
    llm_server.heal()
    done = command(*reembed, "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{count - TOGETHER:,} texts stand without")
    each = Counter(event["memory_id"] for event in vectors(broker, memory))
    assert each == dict.fromkeys((f"m{n}" for n in range(count)), 1)
    paid = Counter(text for asked in llm_server.requests for text in asked.texts)
    assert sum(paid.values()) - count <= TOGETHER


def test_one_text_that_is_not_taken_holds_up_no_other(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    """And the next run, which has nothing else to do, does not say that the service fails."""
    produce(broker, memory, *told(6))
    llm_server.fail(Fault("status", status=400, text="Note 1"), times=None)
    llm_server.oddities["Note 3"] = [1.0] * 8
    for more in (4, 0):
        done = command(*reembed, "--yes")
        assert done.returncode == 0, done.stderr
        assert f"{more} vectors are in" in done.stdout
        assert "2 texts were not taken" in done.stdout
        assert len(vectors(broker, memory)) == 4


def test_a_limit_of_calls_is_waited_for(
    command: Command,
    broker: Cluster,
    memory: str,
    reembed: list[str],
    llm_server: LlmServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RECALLFLOW_EMBEDDING_ATTEMPTS", "1")
    produce(broker, memory, *told(2))
    llm_server.fail(Fault("status", status=429, retry_after="0"), times=3)
    done = command(*reembed, "--yes")
    assert done.returncode == 0, done.stderr
    assert len(vectors(broker, memory)) == 2


def test_a_service_that_takes_nothing_is_told_of_in_one_line(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    produce(broker, memory, *told(50))
    llm_server.fail(Fault("status", status=401), times=None)
    done = command(*reembed, "--yes")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "rejected" in last
    assert "Run the same command again" in last
    assert "Traceback" not in done.stderr
    assert llm_server.calls["embed"] < 20
    assert vectors(broker, memory) == []


def test_vectors_of_another_size_say_what_to_set(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    produce(broker, memory, *told(2))
    llm_server.fail("wrong_dimension")
    done = command(*reembed, "--yes")
    assert done.returncode == 2
    assert "set embedding.dimension" in done.stderr
    assert vectors(broker, memory) == []


def test_nothing_is_computed_that_nobody_agreed_to(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    produce(broker, memory, *told(2))
    done = command(*reembed)
    assert done.returncode == 2
    assert "give --yes" in done.stderr
    assert llm_server.requests == []


def test_models_in_the_engines_process_need_nothing_beforehand(command: Command) -> None:
    done = command("reembed", "--embedder", "hash")
    assert done.returncode == 0
    assert "recallflow run --embedder hash --state-dir NEW_DIR" in done.stdout
    assert "recallflow replay --embedded --embedder hash" in done.stdout
    unnamed = command("reembed")
    assert unnamed.returncode == 2
    assert "--embedder openai" in unnamed.stderr
