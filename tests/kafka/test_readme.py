"""What the README shows on Kafka works as it stands, but for the broker's address."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from benchmarks.broker import Broker
from tests.kafka.harness import until
from tests.pages import environment, readme, run, running

TOLD = "localhost:9092"


def test_five_commands_end_with_an_answer_and_two_more_spread_the_work(tmp_path: Path) -> None:
    """On a broker of its own, as the topics have the names that everybody's have."""
    (block,), (more,), (script,) = readme("sh kafka"), readme("sh members"), readme("python kafka")
    with Broker() as broker:
        servers = broker.bootstrap_servers
        topics, engine, remember, ask, tail = block.replace(TOLD, servers).splitlines()
        assert topics.startswith("docker compose ")  # tests/unit/test_compose.py has it
        run("sh", "recallflow topics create", tmp_path, KAFKA_BOOTSTRAP_SERVERS=servers)
        with running(engine, tmp_path, servers):
            run("sh", remember, tmp_path)
            assert "My sister Ana is allergic to walnuts" in run("sh", ask, tmp_path)
            assert "walnuts" in first_line(tail, tmp_path)
            second, third = more.replace(TOLD, servers).splitlines()
            before = owned(servers)
            with running(second, tmp_path, servers), running(third, tmp_path, servers):
                until(lambda: spread(owned(servers), before))
                until(lambda: all([*(tmp_path / folder).glob("p0*")] for folder in ("second", "third")))
                assert "My sister Ana is allergic to walnuts" in run("sh", ask, tmp_path)
                assert "I moved from Leeds to Porto in March" in run("python", script.replace(TOLD, servers), tmp_path)


def owned(servers: str) -> dict[str, set[int]]:
    """Each member of the deployment, by how the brokers know it → its partitions."""
    admin: Any = AdminClient({"bootstrap.servers": servers})
    (group,) = admin.describe_consumer_groups(["recallflow-memory.events"]).values()
    members = group.result().members
    return {one.member_id: {part.partition for part in one.assignment.topic_partitions} for one in members}


def spread(now: dict[str, set[int]], before: dict[str, set[int]]) -> bool:
    """Two more members than before; each has partitions, and no two have the same."""
    numbers = [number for mine in now.values() for number in mine]
    return len(now) == len(before) + 2 and all(now.values()) and sorted(numbers) == [*range(16)]


def first_line(command: str, folder: Path) -> str:
    """Of what a command prints that goes on until it is stopped."""
    with subprocess.Popen(
        shlex.split(command), cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    return line
