"""The README, the pages of docs/ and the chat service on Kafka work as shown, but for the broker's address.

They use the topics of everybody's names, so they share a broker of this module's own, one page after another."""

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.broker import Broker, free_ports
from recallflow import MemoryUpdate, RecallClient
from tests import example_pages
from tests.chat_model import Messages, chat_model
from tests.conftest import GIVE_UP_S
from tests.kafka.harness import until, watched
from tests.pages import DOCS, blocks, environment, readme, run, running
from tests.process import Process
from tests.unit.test_pages import WITH_A_BROKER

LOCAL = "localhost:9092"
CHAT_URL = "http://127.0.0.1:8000"


@pytest.fixture
def servers(own_broker: Broker) -> str:
    return own_broker.bootstrap_servers


def test_readme_commands_answer_and_members_share_partitions(servers: str, tmp_path: Path) -> None:
    (block,), (more,), (script,) = (
        readme("sh kafka"), readme("sh members", DOCS / "how-to" / "several-machines.md"), readme("python kafka"),
    )  # fmt: skip
    topics, engine, remember, ask, tail = block.replace(LOCAL, servers).splitlines()
    assert topics.startswith("docker compose ")  # tests/unit/test_compose.py has it
    run("sh", "recallflow topics create", tmp_path, KAFKA_BOOTSTRAP_SERVERS=servers)
    with running(engine, tmp_path, servers):
        run("sh", remember, tmp_path)
        assert "My sister Ana is allergic to walnuts" in run("sh", ask, tmp_path)
        assert "walnuts" in first_line(tail, tmp_path)
        second, third = more.replace(LOCAL, servers).splitlines()
        before = owned(servers)
        with running(second, tmp_path, servers), running(third, tmp_path, servers):
            until(lambda: is_spread(owned(servers), before))
            until(lambda: all([*(tmp_path / folder).glob("p0*")] for folder in ("second", "third")))
            assert "My sister Ana is allergic to walnuts" in run("sh", ask, tmp_path)
            assert "I moved from Leeds to Porto in March" in run("python", script.replace(LOCAL, servers), tmp_path)


def owned(servers: str) -> dict[str, set[int]]:
    admin: Any = AdminClient({"bootstrap.servers": servers})
    (group,) = admin.describe_consumer_groups(["recallflow-memory.events"]).values()
    members = group.result().members
    return {one.member_id: {part.partition for part in one.assignment.topic_partitions} for one in members}


def is_spread(now: dict[str, set[int]], before: dict[str, set[int]]) -> bool:
    numbers = [number for mine in now.values() for number in mine]
    return len(now) == len(before) + 2 and all(now.values()) and sorted(numbers) == [*range(16)]


def first_line(command: str, folder: Path) -> str:
    words = shlex.split(command)
    with subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    return line


@contextmanager
def started(words: list[str], folder: Path, **more: str) -> Iterator[None]:
    process = subprocess.Popen(words, cwd=folder, env=example_pages.environment(**more), stderr=subprocess.DEVNULL)
    with watched(process):
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(GIVE_UP_S) in (0, -signal.SIGTERM)


@contextmanager
def forked_engine(state_dir: Path, servers: str) -> Iterator[None]:
    words = ("--state-dir", str(state_dir), "--bootstrap-servers", servers)
    with Process(state_dir.with_suffix(".log"), "run", *words) as process:
        process.up()
        yield
        assert process.stop().code == 0


def is_served(url: str) -> bool:
    try:
        return httpx.get(f"{url}/docs").is_success
    except httpx.TransportError:
        return False


def prompt_of(messages: Messages) -> str:
    return str(messages[0]["content"])


@pytest.mark.needs("curl")
def test_chat_service_recalls_another_session(servers: str, tmp_path: Path) -> None:
    folder = shutil.copytree(example_pages.EXAMPLES / "chat_service", tmp_path / "chat_service")
    export, serve, tell, ask, watch = example_pages.commands_of("chat_service")
    assert export == f"export KAFKA_BOOTSTRAP_SERVERS={LOCAL}"
    kafka = {"KAFKA_BOOTSTRAP_SERVERS": servers}
    run("sh", "recallflow topics create", tmp_path, **kafka)
    (port,) = free_ports(None)
    url = f"http://127.0.0.1:{port}"
    words = [str(port) if word == "8000" else word for word in shlex.split(serve)]
    with (
        forked_engine(tmp_path / "engine", servers),
        chat_model(prompt_of) as found,
        started(words, folder, **kafka, **found),
    ):
        until(lambda: is_served(url))
        told, asked = (orjson.loads(run("bash", one.replace(CHAT_URL, url), folder)) for one in (tell, ask))
        assert told["remembered"] == []
        assert len(asked["remembered"]) >= 1
        assert "I am allergic to walnuts." in asked["text"]
        assert len(run("bash", watch, folder, **kafka).splitlines()) == 2


def with_an_engine_that_ran(folder: Path, servers: str) -> None:
    """Prepare the runbook's start: a stopped engine with a memory and a refused record."""
    run("sh", "recallflow topics create", folder, KAFKA_BOOTSTRAP_SERVERS=servers)
    with forked_engine(folder / "engine", servers), RecallClient(servers, "acme") as client:
        client.add("Ann is allergic to peanuts", user="ann")
        client.send(MemoryUpdate(type="memory.update", tenant_id="acme", user_id="ann", memory_id="?", tags=["a"]))
        client.search("What can Ann not eat?", user="ann")


@pytest.mark.parametrize("page", WITH_A_BROKER)
def test_page_commands_print_the_shown_output(servers: str, page: str, tmp_path: Path) -> None:
    if page == "how-to/runbook.md":
        with_an_engine_that_ran(tmp_path, servers)
    with ExitStack() as engines:
        for language, code, shows in blocks(page):
            ours, printed = code.replace(LOCAL, servers).replace("--metrics-port 9464", "--metrics-port 0"), ""
            commands = re.split(r"^(?=recallflow )", ours, flags=re.M) if language == "sh" else [ours]
            for command in filter(str.strip, commands):
                if command.startswith("recallflow run"):
                    engines.enter_context(running(command, tmp_path, servers))
                else:
                    printed += run(language, command, tmp_path, KAFKA_BOOTSTRAP_SERVERS=servers)
            assert [line for line in shows if line not in printed] == [], printed
