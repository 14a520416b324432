"""The consumers in examples/, in Java, TypeScript and Kafka Connect: built as their pages say, they read what a real
engine answers."""

import os
import shlex
import shutil
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer

from recallflow.flows.router import Router
from recallflow.outputs import EventOutput
from recallflow.queries import MemoryGet
from recallflow.records import MOVED_HEADER, Position
from recallflow.responses import QueryFailed
from recallflow.schema import asyncapi
from tests.conftest import GIVE_UP_S
from tests.kafka.engine import Engine
from tests.kafka.harness import read_topic, until
from tests.pages import environment
from tests.process import watched
from tools.broker import Cluster, free_ports

ROOT = Path(__file__).parents[2]
NODE_VALIDATES = """
import fs from "node:fs";
import { Parser } from "@asyncapi/parser";
const { document, diagnostics } = await new Parser().parse(fs.readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify({ problems: diagnostics, messages: document?.allMessages().length }));
"""


def build(folder: Path, *commands: str) -> None:
    for command in commands:
        words, env = command.split(), environment()
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=GIVE_UP_S)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def commands_of(page: str) -> list[str]:
    lines = (ROOT / "examples" / page / "README.md").read_text().partition("```sh\n")[2].partition("```")[0]
    return lines.splitlines()


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the examples, the packages and the contract, for builds."""
    made = shutil.ignore_patterns("node_modules", "dist", "target")
    copy = tmp_path_factory.mktemp("copy")
    for folder in ("examples", "packages"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=made)
    (copy / "asyncapi.json").write_bytes(orjson.dumps(asyncapi()))
    return copy


@pytest.fixture(scope="module")
def answered(deserted_topics: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a topic with three responses: a memory, nothing, an error."""
    state_dir = tmp_path_factory.mktemp("consumers") / "state"
    with deserted_topics.running(state_dir), deserted_topics.client() as client:
        position = client.add("Ann is allergic to peanuts — «all» of them", user="ann", id="m1")
        client.search("What can't Ann eat?", user="ann", after=position, id="q-found")
        client.search("What can't Bob eat?", user="bob", id="q-nothing")
        with pytest.raises(QueryFailed):
            client.ask(MemoryGet(type="memory.get", tenant_id="acme", user_id="ann", memory_id="none", id="q-error"))
    return deserted_topics.topics.responses


EXPECTED = {
    "q-found ok: m1: Ann is allergic to peanuts — «all» of them", "q-nothing ok: nothing",
    "q-error failed: not_found: memory_id: no current memory has the id 'none'",
}  # fmt: skip


def own_command(command: str, broker: Cluster, topic: str, group: str) -> str:
    """Return a page's command for this broker and topic. In a shared group, the second consumer would find nothing."""
    given = {"localhost:9092": broker.bootstrap_servers, "recall.responses": topic, "my-group": f"{topic}-{group}"}
    for written, own in given.items():
        command = command.replace(written, own)
    return command


def lines_of(command: list[str], folder: Path, count: int) -> set[str]:
    environment = os.environ | {"JAVA_TOOL_OPTIONS": "-Dstdout.encoding=UTF-8"}
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, env=environment)
    with watched(process), process:
        assert process.stdout is not None
        found = {process.stdout.readline().decode().rstrip("\n") for _ in range(count)}
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(GIVE_UP_S) in (0, 128 + signal.SIGTERM)
    assert rest == b""
    return found


@pytest.mark.needs("mvn")
def test_java_consumer_reads_responses(copied: Path, answered: str, broker: Cluster) -> None:
    folder = copied / "examples" / "java"
    *making, running = commands_of("java")
    build(folder, *making)
    given = own_command(running, broker, answered, "java")
    assert lines_of(given.split(), folder, len(EXPECTED)) == EXPECTED


@pytest.mark.needs("npm")
def test_typescript_consumer_and_asyncapi_parser_accept_the_contract(
    copied: Path, answered: str, broker: Cluster
) -> None:
    folder = copied / "examples" / "typescript"
    *making, running = commands_of("typescript")
    build(folder, *making)
    given = own_command(running, broker, answered, "typescript")
    assert lines_of(given.split(), folder, len(EXPECTED)) == EXPECTED
    (folder / "validates.mjs").write_text(NODE_VALIDATES)
    command = ["node", "validates.mjs", str(copied / "asyncapi.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=GIVE_UP_S, check=True)
    said = orjson.loads(done.stdout)
    assert said["problems"] == []
    assert said["messages"] > 30


@pytest.mark.needs("mvn")
def test_kafka_connect_writes_responses_and_derived_memories_unchanged(
    copied: Path, answered: str, deserted_topics: Engine
) -> None:
    folder, broker, topics = copied / "examples" / "kafka_connect", deserted_topics.broker, deserted_topics.topics
    making, running = commands_of("kafka_connect")
    build(folder, making)
    router = Router(topics, defaultdict(lambda: 1), defaultdict(lambda: 99_999))
    derived = EventOutput(Position(topics.results, 0, 0), 0, b"acme/ann", '{"content": "«derived»"}'.encode())
    outgoing = router.route(derived).outgoing
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for more in [((MOVED_HEADER, b"x"),), ()]:
        producer.produce(topics.memory, outgoing.value, outgoing.key, headers=[*outgoing.all_headers, *more])
    assert producer.flush(GIVE_UP_S) == 0
    given = {"localhost:9092": broker.bootstrap_servers, "recall.responses": answered, "memory.events": topics.memory}
    given["8083"] = str(free_ports(None)[0])
    for page in folder.glob("*.properties"):
        text = page.read_text()
        for written, own in given.items():
            text = text.replace(written, own)
        page.write_text(text)
    responses, memories = (folder / f"{name}.jsonl" for name in ("responses", "derived"))
    log = (folder / "connect.log").open("wb")
    with log, watched(process := subprocess.Popen(shlex.split(running), cwd=folder, stdout=log, stderr=log)):
        until(lambda: responses.exists() and responses.read_bytes().count(b"\n") == len(EXPECTED))
        until(lambda: memories.exists() and memories.read_bytes().endswith(b"\n"))
        process.send_signal(signal.SIGTERM)
        process.wait(GIVE_UP_S)
    assert responses.read_bytes().splitlines() == [one.value() for one in read_topic(broker, answered)]
    assert memories.read_bytes() == derived.body + b"\n"
