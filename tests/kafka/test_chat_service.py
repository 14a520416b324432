"""The chat service does what its page says, on a real broker with a real engine."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from benchmarks.broker import Broker, free_ports
from recallflow.client import QueryTimeout, RecallClient
from tests.chat_model import Messages, chat_model
from tests.conftest import GIVE_UP_S
from tests.example_pages import EXAMPLES, commands_of, environment, words_of
from tests.kafka.harness import until, watched

SERVED = "http://127.0.0.1:8000"
PROBE_S = 1.0


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker of its own: the example speaks to the topics that everybody has."""
    with Broker() as broker:
        yield broker.bootstrap_servers


@contextmanager
def started(words: list[str], folder: Path, **more: str) -> Iterator[None]:
    """A command that runs until it is told to stop."""
    process = subprocess.Popen(words, cwd=folder, env=environment(**more), stderr=subprocess.DEVNULL)
    with watched(process):
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(GIVE_UP_S) in (0, -signal.SIGTERM)


def answers(client: RecallClient) -> bool:
    """Whether an engine has started."""
    try:
        client.stats(user="ann", timeout_s=PROBE_S)
    except QueryTimeout:
        return False
    return True


def is_served(url: str) -> bool:
    try:
        return httpx.get(f"{url}/docs").is_success
    except httpx.TransportError:
        return False


def model(messages: Messages) -> str:
    """Says what it was told by the prompt."""
    return str(messages[0]["content"])


@pytest.mark.needs("curl")
def test_the_chat_service_remembers_what_was_said_in_another_session(servers: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "chat_service", tmp_path / "chat_service")
    export, serve, tell, ask, watch = commands_of("chat_service")
    assert export == "export KAFKA_BOOTSTRAP_SERVERS=localhost:9092"
    kafka = {"KAFKA_BOOTSTRAP_SERVERS": servers}
    subprocess.run(["recallflow", "topics", "create"], env=environment(**kafka), check=True, stdout=subprocess.DEVNULL)
    (port,) = free_ports(None)
    url = f"http://127.0.0.1:{port}"
    words = [str(port) if word == "8000" else word for word in words_of(serve)]
    run = ["recallflow", "run", "--state-dir", str(tmp_path / "engine"), "--create"]
    with started(run, tmp_path, **kafka), chat_model(model) as found, started(words, folder, **kafka, **found):
        with RecallClient(servers, "chat-service") as client:
            until(lambda: answers(client))
        until(lambda: is_served(url))
        told, asked = (
            orjson.loads(
                subprocess.run(
                    words_of(command.replace(SERVED, url)), capture_output=True, check=True, timeout=GIVE_UP_S
                ).stdout
            )
            for command in (tell, ask)
        )
        assert told["remembered"] == []
        assert len(asked["remembered"]) >= 1
        assert "I am allergic to walnuts." in asked["text"]
        watched_lines = subprocess.run(
            words_of(watch), cwd=folder, env=environment(**kafka), capture_output=True, check=True, timeout=GIVE_UP_S
        ).stdout.splitlines()
    assert len(watched_lines) == 2
