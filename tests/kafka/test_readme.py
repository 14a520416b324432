"""What the README shows on Kafka works as it stands, but for the broker's address."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from recallflow import Found
from recallflow.client import QueryTimeout, RecallClient

ROOT = Path(__file__).parents[2]
ATTEMPTS = 60
PROBE_S = 1.0

Start = Callable[[str], subprocess.Popen[str]]


def block(language: str) -> str:
    """The README's one block in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def start(broker: Cluster, tmp_path: Path) -> Start:
    """Starts a command of the README in a folder that has the samples."""
    samples = Path("recallflow", "samples")
    shutil.copytree(ROOT / samples, tmp_path / samples)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(command: str) -> subprocess.Popen[str]:
        words = shlex.split(command.replace("localhost:9092", broker.bootstrap_servers))
        environment = os.environ | {"PATH": path, "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        return subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return run


def finished(process: subprocess.Popen[str]) -> str:
    """What a command printed until it ended well."""
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return stdout


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    """A command that runs until SIGTERM, and then ends well."""
    try:
        yield
        process.send_signal(signal.SIGTERM)
        finished(process)
    finally:
        process.kill()
        process.communicate()


def asked_until_up(engine: subprocess.Popen[str], client: RecallClient, user: str, question: str) -> Found:
    """The first answer: a query from before the first start is never given one."""
    position = client.add("Bring the prototype to the meeting.", user=user)
    for _ in range(ATTEMPTS):
        assert engine.poll() is None, engine.communicate()[1]
        try:
            return client.search(question, user=user, after=position, timeout_s=PROBE_S)
        except QueryTimeout:
            continue
    raise AssertionError("the engine did not come up")


def test_the_kafka_commands_of_the_readme_work_one_after_the_other(broker: Cluster, start: Start) -> None:
    run, replay = (line for line in block("sh").splitlines() if line.startswith("recallflow "))
    finished(start("recallflow topics create"))
    engine = start(run)
    with stopped(engine):
        assert "205 events sent to memory.events; 0 refused" in finished(start(replay))
        with RecallClient(broker.bootstrap_servers, tenant="demo") as client:
            answer = asked_until_up(engine, client, "team-atlas", "When is the launch?")
        assert any("The launch is on 24 February" in memory.content for memory in answer)
        script = block("python") + "print(found[0].content)"
        assert finished(start(shlex.join([sys.executable, "-c", script]))) == "Ann is allergic to peanuts\n"
