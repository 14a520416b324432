"""`recallflow reembed` with a real broker and a real HTTP server: which vectors are computed, and which are kept."""

import signal
from collections import Counter
from typing import Any

import orjson
import pytest

from benchmarks.broker import Cluster
from recallflow.enrichment import content_hash
from recallflow.flows.reembed import TOGETHER
from tests.kafka.harness import Command, Names, Start, produce, read_topic
from tests.llm_server import Fault, LlmServer

FERRY, BIKE = "The ferry to Porto leaves at nine", "Bo sold his red bike"


@pytest.fixture
def memory(broker: Cluster, topics: Names) -> str:
    broker.create_topics({topics("memory.events"): 2, topics("control.events"): 1})
    return topics("memory.events")


@pytest.fixture
def reembed(broker: Cluster, memory: str, topics: Names, llm_server: LlmServer) -> list[str]:
    model = ["--embedder", "openai", "--embedding-model", "e-1", "--embedding-dimension", "64"]
    return ["reembed", *model, "--embedding-url", llm_server.url, "--memory-topic", memory,
            "--control-topic", topics("control.events"), "--bootstrap-servers", broker.bootstrap_servers]  # fmt: skip


def notes(count: int) -> list[dict[str, Any]]:
    return [{"type": "memory", "id": f"m{n}", "content": f"Note {n}"} for n in range(count)]


def vectors(broker: Cluster, topic: str) -> list[dict[str, Any]]:
    events = [orjson.loads(message.value()) for message in read_topic(broker, topic)]
    return [event for event in events if event["type"] == "memory.embedding"]


def test_each_current_text_gets_one_vector(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
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
    for mode, texts in (("required", 0), ("auto", 3)):  # an engine that requires credentials refuses these events
        monkeypatch.setenv("RECALLFLOW_AUTH_MODE", mode)
        dry = command(*reembed, "--dry-run", "--price-per-million", "2")
        assert dry.returncode == 0, dry.stderr
        assert dry.stdout.startswith(f"{texts} texts")
    unconfirmed = command(*reembed)
    assert unconfirmed.returncode == 2
    assert llm_server.requests == []
    done = command(*reembed, "--yes")
    assert done.returncode == 0, done.stderr
    asked = sorted(text for asked in llm_server.requests for text in asked.texts)
    assert asked == [f"Ann: {FERRY}", BIKE, "Of another"]
    found = {event["memory_id"]: event for event in vectors(broker, memory) if event["model"] == "e-1"}
    assert {name: event["content_hash"] for name, event in found.items()} == {
        "a": content_hash(FERRY), "b": content_hash(BIKE), "h": content_hash("Of another")
    }  # fmt: skip
    assert (found["h"]["user_id"], found["h"]["environment"]) == ("cy", "test")
    assert all(len(event["embedding"]) == 64 for event in found.values())
    assert command(*reembed, "--yes").stdout.startswith("0 texts")
    produce(broker, memory, {"type": "memory.update", "memory_id": "b", "content": "A third text"})
    assert command(*reembed, "--dry-run").stdout.startswith("1 texts")


def test_a_killed_run_continues_without_repeated_vectors(
    command: Command, start: Start, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    count = 3 * TOGETHER
    produce(broker, memory, *notes(count))
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
    each = Counter(event["memory_id"] for event in vectors(broker, memory))
    assert each == dict.fromkeys((f"m{n}" for n in range(count)), 1)
    paid = Counter(text for asked in llm_server.requests for text in asked.texts)
    assert sum(paid.values()) - count <= TOGETHER


def test_refused_texts_and_rate_limits_hold_up_no_other(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A later run, which has only refused texts left, does not report a failing service."""
    monkeypatch.setenv("RECALLFLOW_EMBEDDING_ATTEMPTS", "1")
    produce(broker, memory, *notes(6))
    llm_server.fail(Fault("status", status=429, retry_after="0"), times=3)
    llm_server.fail(Fault("status", status=400, text="Note 1"), times=None)
    llm_server.oddities["Note 3"] = [1.0] * 8
    for more in (4, 0):
        done = command(*reembed, "--yes")
        assert done.returncode == 0, done.stderr
        assert f"{more} vectors" in done.stdout
        assert len(vectors(broker, memory)) == 4


def test_a_model_in_the_engine_needs_no_run(command: Command) -> None:
    done = command("reembed", "--embedder", "hash")
    assert done.returncode == 0
    assert "--embedder hash" in done.stdout
    assert command("reembed").returncode == 2
