"""The consumers in examples/, in Java and TypeScript: built as their pages say, they read what a real engine
answers."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from benchmarks.broker import Cluster, free_ports
from recallflow.client import RecallClient
from recallflow.errors import QueryFailed
from recallflow.queries import MemoryGet
from tests.conftest import GIVE_UP_S
from tests.kafka.harness import Deployment, Names, own_topics, until, watched

ROOT = Path(__file__).parents[2]
NODE_VALIDATES = """
import fs from "node:fs";
import { Parser } from "@asyncapi/parser";
const { document, diagnostics } = await new Parser().parse(fs.readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify({ problems: diagnostics, messages: document?.allMessages().length }));
"""


def build(folder: Path, *commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, timeout=GIVE_UP_S)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def commands_of(page: str) -> list[str]:
    """What a page says to type, but for the command that runs it."""
    lines = (ROOT / "examples" / page / "README.md").read_text().partition("```sh\n")[2].partition("```")[0]
    return lines.splitlines()


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples, with the contract beside them: what is built in it is gone afterwards."""
    made = ("node_modules", "dist", "target", "response.d.ts")
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "examples", copy / "examples", ignore=shutil.ignore_patterns(*made))
    shutil.copytree(ROOT / "docs" / "schemas", copy / "docs" / "schemas")
    shutil.copy(ROOT / "docs" / "asyncapi.json", copy / "docs")
    return copy


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def answered(broker: Cluster, topics: Names, tmp_path: Path) -> Iterator[str]:
    """A topic with three responses: a memory, nothing, an error."""
    own = own_topics(topics)
    broker.create_topics({own.memory: 1, own.queries: 1, own.responses: 2, own.receipts: 1, own.dead_letters: 1})
    broker.create_topics({own.control: 1})
    port = free_ports(None)[0]
    engine = Deployment(broker, own, tmp_path / "state", flags=("--metrics-port", str(port)))
    client = RecallClient(
        broker.bootstrap_servers,
        "acme",
        memory_topic=own.memory,
        query_topic=own.queries,
        response_topic=own.responses,
        control_topic=own.control,
        timeout_s=60,
    )
    with engine.running(), client:
        until(lambda: is_ready(port))
        position = client.add("Ann is allergic to peanuts — «all» of them", user="ann", id="m1")
        client.search("What can't Ann eat?", user="ann", after=position, id="q-found")
        client.search("What can't Bob eat?", user="bob", id="q-nothing")
        with pytest.raises(QueryFailed):
            client.ask(MemoryGet(type="memory.get", tenant_id="acme", user_id="ann", memory_id="none", id="q-error"))
        yield own.responses


EXPECTED = {
    "q-found ok: m1: Ann is allergic to peanuts — «all» of them",
    "q-nothing ok: nothing",
    "q-error failed: not_found: memory_id: no current memory has the id 'none'",
}


def lines_of(command: list[str], folder: Path, count: int) -> set[str]:
    """The first lines that a consumer prints; it is told to stop then, and ends."""
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
def test_a_consumer_in_java_reads_responses(copied: Path, answered: str, broker: Cluster) -> None:
    folder = copied / "examples" / "java"
    *making, running = commands_of("java")
    build(folder, *making)
    given = running.replace("localhost:9092", broker.bootstrap_servers).replace("recall.responses", answered)
    assert lines_of(given.split(), folder, len(EXPECTED)) == EXPECTED


@pytest.mark.needs("npm")
def test_a_consumer_in_typescript_reads_responses_and_the_contract_is_an_asyncapi_document(
    copied: Path, answered: str, broker: Cluster
) -> None:
    folder = copied / "examples" / "typescript"
    *making, running = commands_of("typescript")
    build(folder, *making)
    given = running.replace("localhost:9092", broker.bootstrap_servers).replace("recall.responses", answered)
    assert lines_of(given.split(), folder, len(EXPECTED)) == EXPECTED

    (folder / "validates.mjs").write_text(NODE_VALIDATES)
    command = ["node", "validates.mjs", str(copied / "docs" / "asyncapi.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=GIVE_UP_S, check=True)
    said = orjson.loads(done.stdout)
    assert said["problems"] == []
    assert said["messages"] > 30
