"""`recallflow doctor` before a real broker: topics, their settings, clocks and control events."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.flows.settings import TopicNames
from tests.kafka.harness import FLAGS, Names, own_topics

Cli = Callable[..., subprocess.CompletedProcess[str]]
Diagnosis = Callable[..., dict[str, tuple[str, str]]]

SETTINGS = {
    "control": ({"cleanup.policy": "compact"}, "FAIL", "cleanup.policy=delete"),
    "memory": ({"retention.ms": "1000000", "max.message.bytes": "100000"}, "WARN", "max.message.bytes=2097152"),
    "responses": ({"max.message.bytes": "9000"}, "FAIL", "max.message.bytes=16384"),
    "queries": ({"message.timestamp.type": "CreateTime"}, "WARN", "LogAppendTime"),
}


@pytest.fixture
def named(topics: Names) -> TopicNames:
    return own_topics(topics)


@pytest.fixture
def diagnose(named: TopicNames, broker: Cluster, cli: Cli) -> Diagnosis:
    """Return a function that runs the command: check → status, finding and remedy."""

    def run(*more: str | Path) -> dict[str, tuple[str, str]]:
        words = [word for flag, name in FLAGS.items() for word in (flag, getattr(named, name))]
        done = cli("doctor", "--json", "--bootstrap-servers", broker.bootstrap_servers, *words, *more)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == any(one["status"] == "FAIL" for one in found)
        return {one["check"]: (one["status"], f"{one['what']} → {one['todo']}") for one in found}

    return run


def make_topics(broker: Cluster, topics: TopicNames, **settings: Mapping[str, str]) -> None:
    """Create the topics as `recallflow topics create` does, but for some settings."""
    chosen = {getattr(topics, topic): changed for topic, changed in settings.items()}
    keeps = {"retention.ms": "-1", "retention.bytes": "-1"}
    for name in (*topics.read(), *topics.outputs()):
        base = {"max.message.bytes": "2097152"} | (keeps if name in (topics.memory, topics.control) else {})
        broker.create_topics({name: 2}, base | dict(chosen.get(name, {})))


def failed(found: Mapping[str, tuple[str, str]]) -> set[str]:
    return {check for check, (status, _) in found.items() if status == "FAIL"}


def test_sound_deployment_passes_with_readable_lines(
    diagnose: Diagnosis, cli: Cli, named: TopicNames, broker: Cluster, tmp_path: Path
) -> None:
    make_topics(broker, named)
    found = diagnose("--state-dir", tmp_path / "s")
    assert {check for check, (status, _) in found.items() if status != "OK"} == {"auth"}  # there is no key
    assert found[f"topic {named.memory}"][1].startswith("2 partitions")
    assert not (tmp_path / "s").exists()
    shown = cli("doctor", "--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", "nowhere")
    assert shown.returncode == 1
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("OK    broker: ")
    (at,) = (number for number, line in enumerate(lines) if line.startswith("FAIL  topic nowhere"))
    assert "recallflow topics create" in lines[at + 1]


def test_wrong_topic_settings_are_named(
    diagnose: Diagnosis, named: TopicNames, broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(broker, named, **{topic: changed for topic, (changed, _, _) in SETTINGS.items()})
    found = diagnose()
    for topic, (_, status, todo) in SETTINGS.items():
        check = f"settings {getattr(named, topic)}"
        assert found[check][0] == status
        assert todo in found[check][1]
    assert failed(found) == {f"settings {named.control}", f"settings {named.responses}"}
    monkeypatch.setenv("RECALLFLOW_AUTH_MODE", "required")  # credentials are judged by the append time
    assert f"settings {named.queries}" in failed(diagnose())


def test_missing_topic_clock_and_stray_control_event_are_named(
    diagnose: Diagnosis, named: TopicNames, broker: Cluster
) -> None:
    present = [name for name in (*named.read(), *named.outputs()) if name != named.receipts]
    broker.create_topics(dict.fromkeys(present, 1), {"message.timestamp.type": "CreateTime"})
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(named.memory, b"{}", timestamp=int(time.time() * 1000) + 600_000)
    producer.produce(named.control, b"nonsense", b"acme")
    assert producer.flush(10) == 0
    found = diagnose()
    assert failed(found) == {f"topic {named.receipts}", "clock"}
    assert found["control events"][0] == "WARN"
    assert "no_event" in found["control events"][1]
