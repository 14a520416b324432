"""On a Python for which Bytewax has no wheel, all commands work."""

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from benchmarks.kafka_flow import connect, create
from recallflow.events import content_hash
from tests.interpreters import interpreter
from tests.kafka.engine import READY
from tests.kafka.harness import GIVE_UP_S, own_topics, read_topic, until, watched
from tests.llm_server import LlmServer
from tests.release.conftest import Environment

pytestmark = [pytest.mark.index, pytest.mark.python("3.13")]

FIVE_LINES = """
from recallflow import Memory
with Memory("memories") as memory:
    memory.add("My sister Ana is allergic to walnuts", user="ann")
    print(memory.search("What is Ana allergic to?", user="ann", k=5))
"""
TEXT = "I moved to Porto"
MEMORY = {"memory_id": "m", "content": TEXT, "content_hash": content_hash(TEXT), "kind": "message", "role": "user"}
REQUEST = {
    "type": "enrichment.request", "tenant_id": "acme", "user_id": "kim", "tasks": ["facts"],
    "source": "memory.events:0:0", "memories": [MEMORY | {"created_at": 0}],
}  # fmt: skip


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    python = interpreter("3.13")
    assert python is not None
    made = Environment(tmp_path_factory.mktemp("newer"), python, str(wheels["recallflow"]))
    assert "bytewax" not in made.has
    return made


@contextlib.contextmanager
def running(newer: Environment, environment: dict[str, str], *words: str) -> Iterator[None]:
    """Run a flow from when it is ready, and end it as an operator does."""
    command = [str(newer.folder / "env" / "bin" / "recallflow"), *words]
    process: subprocess.Popen[Any] = subprocess.Popen(
        command, cwd=newer.folder, stderr=subprocess.PIPE, text=True, env=environment
    )
    with watched(process):
        assert process.stderr is not None
        log: list[str] = []
        for line in process.stderr:
            log.append(line)
            if READY in line:
                break
        assert process.poll() is None, log
        yield
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=GIVE_UP_S)
        assert process.returncode == 0, [log, errors]


def test_memory_and_the_commands_of_every_day_work(newer: Environment) -> None:
    assert "allergic to walnuts" in newer.shown("python", "-c", FIVE_LINES)
    assert "allergic to walnuts" in newer.shown(
        "recallflow", "ask", "Who is allergic?", "--state-dir", "memories", "--user", "ann"
    )
    assert newer.run("recallflow", "demo").returncode == 0


def test_run_and_enrich_work_on_a_broker(newer: Environment, broker: Cluster) -> None:
    suffix = uuid.uuid4().hex[:12]
    own = own_topics(lambda name: f"{name}-{suffix}")
    own = replace(own, enrichment=f"enrichment-{suffix}", results=f"results-{suffix}")
    create(broker, own, 2)
    broker.create_topics({own.enrichment: 2, own.results: 2})
    named = {f"RECALLFLOW_TOPICS_{name}".upper(): topic for name, topic in asdict(own).items() if topic}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    with LlmServer() as server, connect(broker, own, GIVE_UP_S) as client:
        models = {"RECALLFLOW_LLM_MODEL": "judge", "RECALLFLOW_LLM_BASE_URL": server.url}
        environment = os.environ | named | models | {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        with running(newer, environment, "run", "--state-dir", "engine", "--create"):
            stored = client.add(TEXT, user="kim")
            assert client.search("Where?", user="kim", after=stored.position)[0].content == TEXT
        with running(newer, environment, "enrich", "--state-dir", "enriched", "--create"):
            producer.produce(own.enrichment, orjson.dumps(REQUEST), b"acme/kim")
            producer.flush(GIVE_UP_S)
            until(lambda: bool(read_topic(broker, own.results)))
        assert server.calls["facts"] == 1
