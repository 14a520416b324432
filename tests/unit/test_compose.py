"""docker-compose.kafka.yml is what the code and the README expect; checked without a Docker engine."""

import argparse
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.broker import KAFKA_VERSION
from recallflow.cli import main
from recallflow.connectors.kafka import admin
from recallflow.flows.config import LOCAL
from recallflow.flows.settings import TopicNames

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.kafka.yml"
KAFKA_TOPICS = "/opt/kafka/bin/kafka-topics.sh"

Made = dict[str, tuple[int, dict[str, str]]]  # topic → partitions and settings


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return {name: service for name, service in found.items() if name != "engine"}


def commands(service: Mapping[str, Any]) -> list[str]:
    """Everything a service hands to bash, as bash sees it: Compose makes `$$` a `$`."""
    words = [*service.get("entrypoint", []), *service.get("command", [])]
    check = service.get("healthcheck", {}).get("test", ["CMD"])[1:]
    return [argv[2].replace("$$", "$") for argv in (words, check) if argv]


def address(listeners: str, name: str) -> str:
    """`host:port` of one listener of a list."""
    return dict(listener.split("://") for listener in listeners.split(","))[name]


def created_by_compose(services: dict[str, Any], folder: Path) -> Made:
    """Return the topics that the script creates, by a kafka-topics.sh that records its arguments."""
    (script,) = commands(services["topics"])
    assert KAFKA_TOPICS in script
    notes = folder / "calls"
    stand_in = folder / "kafka-topics.sh"
    stand_in.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "${{*@Q}}" >> {shlex.quote(str(notes))}\n')
    stand_in.chmod(0o755)
    subprocess.run([*services["topics"]["entrypoint"], script.replace(KAFKA_TOPICS, str(stand_in))], check=True)
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in ("--create", "--if-not-exists"):
        parser.add_argument(flag, action="store_true", required=True)
    for option in ("--bootstrap-server", "--topic", "--replication-factor"):
        parser.add_argument(option, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--config", action="append", default=[])
    calls = [parser.parse_args(shlex.split(line)) for line in notes.read_text().splitlines()]
    inside = address(services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"], "INSIDE")
    assert {(call.bootstrap_server, call.replication_factor) for call in calls} == {(inside, "1")}
    own = {"message.timestamp.type": services["kafka"]["environment"]["KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE"]}
    return {call.topic: (call.partitions, own | dict(c.split("=") for c in call.config)) for call in calls}


def created_by_command(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The topics that `recallflow topics create` makes."""
    made: Made = {}

    def note(_: object, partitions: Mapping[str, int], config: Mapping[str, Mapping[str, str]], *__: object) -> Any:
        made.update({topic: (count, dict(config[topic])) for topic, count in partitions.items()})
        return dict.fromkeys(partitions, True)

    monkeypatch.setattr(admin, "create_topics", note)
    assert main(["topics", "create"]) == 0
    return made


def test_topics_equal_those_of_topics_create(
    services: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created_by_compose(services, tmp_path)
    assert made == created_by_command(monkeypatch)
    assert made.keys() == {name for field, name in asdict(TopicNames()).items() if field not in ("replies", "audit")}


def test_kafka_listens_at_the_default_address(services: dict[str, Any]) -> None:
    environment, port = services["kafka"]["environment"], LOCAL.rpartition(":")[2]
    assert address(environment["KAFKA_ADVERTISED_LISTENERS"], "HOST") == LOCAL
    assert address(environment["KAFKA_LISTENERS"], "HOST") == f":{port}"
    assert services["kafka"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_compose_commands_are_valid_bash(services: dict[str, Any]) -> None:
    handed = [command for service in services.values() for command in commands(service)]
    assert len(handed) == 2
    for command in handed:
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_compose_uses_the_tested_kafka_version(services: dict[str, Any]) -> None:
    assert {service["image"] for service in services.values()} == {f"apache/kafka:{KAFKA_VERSION}"}
