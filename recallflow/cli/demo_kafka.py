"""Engine of the demo on a broker: temporary topics and a process, which are removed at the end."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from recallflow.brokers.options import KafkaOptions
from recallflow.client import RecallClient
from recallflow.connectors.kafka.admin import delete_topics
from recallflow.errors import QueryTimeout, SourceError
from recallflow.flows.config import PREFIX
from recallflow.flows.settings import TopicNames

START_S, PROBE_S, END_S = 60.0, 1.0, 20.0


@contextmanager
def engine_behind(kafka: KafkaOptions, tenant: str) -> Iterator[RecallClient]:
    """Yield a client of an engine that is started for it. Raise SourceError where the broker cannot be used."""
    name = f"recallflow-demo-{uuid.uuid4().hex[:8]}"
    plain = {field: topic for field, topic in asdict(TopicNames()).items() if isinstance(topic, str)}
    named: dict[str, Any] = {field: f"{name}.{topic}" for field, topic in plain.items()}
    topics = replace(TopicNames(), **named)
    with TemporaryDirectory(prefix=f"{name}-") as folder:
        config, log = Path(folder, "config.toml"), Path(folder, "log")
        config.write_text(_toml(kafka, named))
        config.chmod(0o600)
        try:
            _finish(["topics", "create", "--partitions", "1", "--config", str(config)], log)
            run = ["run", "--config", str(config), "--state-dir", str(Path(folder, "state")), "--create"]
            with _running(run, log) as engine, _client(kafka, tenant, topics) as client:
                _wait_until_up(engine, client, log)
                yield client
        finally:
            delete_topics(kafka, [*named.values()])


def _wait_until_up(engine: "subprocess.Popen[bytes]", client: RecallClient, log: Path) -> None:
    """Wait for the engine: it answers no question from before its first start."""
    given_up_s = time.monotonic() + START_S
    while time.monotonic() < given_up_s and engine.poll() is None:
        with suppress(QueryTimeout):
            client.stats(user="maya", timeout_s=PROBE_S)
            return
    said = log.read_text(errors="replace").strip().splitlines()
    raise SourceError(f"the demo's engine did not start: {said[-1] if said else 'it says nothing'}")


def _client(kafka: KafkaOptions, tenant: str, topics: TopicNames) -> RecallClient:
    return RecallClient(
        kafka.bootstrap_servers,
        tenant,
        memory_topic=topics.memory,
        query_topic=topics.queries,
        response_topic=topics.responses,
        control_topic=topics.control,
        options=kafka.librdkafka,
        timeout_s=START_S,
    )


def _toml(kafka: KafkaOptions, topics: Mapping[str, str]) -> str:
    """Return the settings of the demo's engine for a file, because passwords do not belong on a command line."""
    sections = {
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "kafka.librdkafka": {json.dumps(name): str(value) for name, value in kafka.librdkafka.items()},
        "topics": topics,
    }
    lines = [
        line
        for section, values in sections.items()
        for line in (f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()))
    ]
    return "\n".join(lines) + "\n"


def _started(words: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a recallflow command without the settings in this process's environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with log.open("wb") as written:
        return subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "recallflow", *words], env=environment, stdout=subprocess.DEVNULL, stderr=written
        )


def _finish(words: list[str], log: Path) -> None:
    if _started(words, log).wait():
        raise SourceError(log.read_text(errors="replace").strip().removeprefix("recallflow: "))


@contextmanager
def _running(words: list[str], log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run an engine process within the block."""
    process = _started(words, log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()
