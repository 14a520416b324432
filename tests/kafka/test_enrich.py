"""The enrichment flow on a real broker, with models behind real HTTP: what is killed, fails or hangs."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.connectors.kafka.outgoing import NUMBER_HEADER, SOURCE_HEADER
from recallflow.enrichment import content_hash
from recallflow.flows.topics import Topics
from recallflow.operators.enrichment.prompts import DATA, DATA_END
from tests.kafka.harness import GIVE_UP_S, Names, read_topic, until, watched
from tests.llm_server import Asked, LlmServer

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
        words = ["--state-dir", str(state_dir or self.state_dir), "--bootstrap-servers", self.broker.bootstrap_servers]
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
        return self.read(self.topics.memory)

    def check_once(self, count: int) -> None:
        """Waits for a result for each request, and what comes of it; all are there once."""
        until(lambda: len(self.results()) >= count)
        assert Counter(result["memory_id"] for result in self.results()) == Counter(f"m{n}" for n in range(count))
        wanted = sum(len(result["events"]) for result in self.results())
        until(lambda: len(self.events()) >= wanted)
        assert wanted >= count
        assert [*Counter(event["id"] for event in self.events()).values()] == [1] * wanted
        headers = [dict(message.headers()) for message in read_topic(self.broker, self.topics.memory)]
        assert [*Counter((one[SOURCE_HEADER], one[NUMBER_HEADER]) for one in headers).values()] == [1] * wanted


def facts(asked: Asked) -> dict[str, Any]:
    """One fact of each message: what it says."""
    data = orjson.loads(asked.user.partition(DATA)[2].partition(DATA_END)[0])
    empty: dict[str, Any] = {"entities": [], "valid_from": None, "valid_to": None}
    found = [
        {"message": one["number"], "content": one["text"], "kind": "fact", "confidence": 0.9, "evidence": one["text"]}
        for one in data["messages"]
    ]
    return {"facts": [one | empty for one in found]}


@pytest.fixture
def enrichment(broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer) -> Enrichment:
    named = {name: topics(getattr(Topics, name)) for name in FLAGS.values()}
    broker.create_topics(dict.fromkeys(named.values(), PARTITIONS))
    settings = {
        "RECALLFLOW_LLM_MODEL": "judge",
        "RECALLFLOW_LLM_BASE_URL": llm_server.url,
        "RECALLFLOW_ENRICHMENT_FACTS": "true",
        "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0",
        "RECALLFLOW_ENRICHMENT_BATCH_SIZE": "1",
    }
    llm_server.answer("facts", facts)
    return Enrichment(broker, Topics(replies=(), **named), tmp_path / "enrich", settings)


def test_requests_are_answered_once(enrichment: Enrichment) -> None:
    enrichment.request(20)
    with enrichment.running():
        enrichment.check_once(20)
        enrichment.request(20, begin=20)
        enrichment.check_once(40)
    with enrichment.running():
        enrichment.request(1, begin=40)
        enrichment.check_once(41)


def test_a_kill_while_calls_are_under_way_loses_and_doubles_nothing(
    enrichment: Enrichment, llm_server: LlmServer
) -> None:
    llm_server.fail("hang", times=None)
    enrichment.request(150)
    for _ in range(3):
        process = enrichment.start()
        with watched(process):
            llm_server.wait_for(lambda now: now.held >= CAPACITY)
            process.send_signal(signal.SIGKILL)
            process.wait()
    llm_server.heal()
    with enrichment.running():
        enrichment.check_once(150)
