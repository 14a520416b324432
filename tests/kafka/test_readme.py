"""What the README shows on Kafka works as it stands, but for the broker's address."""

import shlex
import subprocess
from pathlib import Path

from benchmarks.broker import Broker
from tests.pages import environment, readme, run, running

TOLD = "localhost:9092"


def test_five_commands_end_with_an_answer_and_python_finds_its_own(tmp_path: Path) -> None:
    """On a broker of its own, as the topics have the names that everybody's have."""
    (block,), (script,) = readme("sh kafka"), readme("python kafka")
    with Broker() as broker:
        servers = broker.bootstrap_servers
        topics, engine, remember, ask, tail = block.replace(TOLD, servers).splitlines()
        assert topics.startswith("docker compose ")  # tests/unit/test_compose.py has it
        run("sh", "recallflow topics create", tmp_path, KAFKA_BOOTSTRAP_SERVERS=servers)
        with running(engine, tmp_path, servers):
            run("sh", remember, tmp_path)
            assert "My sister Ana is allergic to walnuts" in run("sh", ask, tmp_path)
            assert "walnuts" in first_line(tail, tmp_path)
            assert "I moved from Leeds to Porto in March" in run("python", script.replace(TOLD, servers), tmp_path)


def first_line(command: str, folder: Path) -> str:
    """Of what a command prints that goes on until it is stopped."""
    with subprocess.Popen(
        shlex.split(command), cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    return line
