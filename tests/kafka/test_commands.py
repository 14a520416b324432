"""The commands that speak to Kafka, against a real broker."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.broker import Cluster

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(broker: Cluster) -> Command:
    """Runs `recallflow …` against the broker."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from recallflow.cli import main; sys.exit(main())",
                *map(str, arguments),
            ],
            env=os.environ | {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def values(broker: Cluster, topic: str) -> list[tuple[bytes, bytes]]:
    """Key and value of every record of a topic, in offset order of each partition."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "test", "enable.partition.eof": True}
    )
    found = []
    for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(10)) is not None and message.error() is None:
            found.append((message.key() or b"", message.value() or b""))
    consumer.close()
    return found


def test_topics_are_created_once(command: Command) -> None:
    first, again = command("topics", "create"), command("topics", "create")
    assert (first.returncode, again.returncode) == (0, 0)
    assert "memory.events:" in first.stdout
    assert set(again.stdout.split(": ")[1::2]) <= {"was there"} or again.stdout.count("was there") == 7


def test_a_log_is_sent_once_however_often_the_command_runs(command: Command, broker: Cluster, tmp_path: Path) -> None:
    command("topics", "create")
    log = tmp_path / "log.jsonl"
    lines = [
        orjson.dumps({"type": "message", "tenant_id": "log", "user_id": f"u{n % 3}", "content": f"line {n}"})
        for n in range(20)
    ]
    log.write_bytes(b"\n".join([*lines[:10], b"{broken", *lines[10:]]) + b"\n")
    before = len(values(broker, "memory.events"))
    first, again = command("replay", log), command("replay", log)
    assert first.returncode == 0, first.stderr
    assert "20 events sent to memory.events; 1 refused" in first.stdout
    assert "0 events sent to memory.events, 21 before were sent by an earlier run" in again.stdout
    sent = values(broker, "memory.events")[before:]
    assert len(values(broker, "memory.events")) - before == 20
    mine = [(key, orjson.loads(value)) for key, value in values(broker, "memory.events") if key.startswith(b"log/")]
    assert len(sent) == 20
    assert sorted(event["content"] for _, event in mine) == sorted(f"line {n}" for n in range(20))
    assert all(key == f"log/{event['user_id']}".encode() for key, event in mine)
    assert len({event["id"] for _, event in mine}) == 20  # what is sent again after a kill applies once
    (reject,) = map(orjson.loads, (tmp_path / "log.jsonl.rejects.jsonl").read_bytes().splitlines())
    assert (reject["line"], reject["record"]) == (11, "{broken")


def test_a_missing_broker_is_one_clear_line(command: Command, tmp_path: Path) -> None:
    done = command("run", "--bootstrap-servers", "127.0.0.1:1", "--state-dir", tmp_path / "s")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot reach Kafka at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_guarantees_rest_on_cannot_be_set(command: Command, tmp_path: Path) -> None:
    done = command("run", "--state-dir", tmp_path / "s", "-X", "acks=1")
    assert (done.returncode, done.stdout) == (1, "") or done.returncode == 2
    assert "acks cannot be set" in done.stderr
