"""Engines, flows and clients on a real broker, as commands in processes of their own, and readers of their topics."""

import contextlib
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from recallflow.client import RecallClient
from recallflow.connectors.kafka.messages import NUMBER_HEADER, SOURCE_HEADER
from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from tests.event_log import hash_of
from tests.fleet.engine import SHORT_SESSION
from tests.process import Process
from tools.broker import HOST, Cluster

Names = Callable[[str], str]
Command = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

GIVE_UP_S = 60.0
ANN = {"tenant_id": "acme", "user_id": "ann"}
FLAGS = {
    "--memory-topic": "memory", "--query-topic": "queries", "--control-topic": "control",
    "--response-topic": "responses", "--receipt-topic": "receipts", "--dead-letter-topic": "dead_letters",
}  # fmt: skip
REQUESTS = {"--enrichment-topic": "enrichment"}
FLOW_FLAGS = {
    "run": FLAGS | REQUESTS,
    "enrich": {flag: name for flag, name in FLAGS.items() if name not in ("queries", "responses")}
    | REQUESTS
    | {"--result-topic": "results"},
    "serve": FLAGS,
}
CLIENT_TOPICS = {"memory": "memory", "query": "queries", "response": "responses", "control": "control"}

# The real command. Epochs and batches are small, so that a kill falls between two of them; it comes with the n-th
# record that the state is given. A new directory compares few outputs with those that were sent, and knows of the rest.
SETUP = """
import os, signal
from recallflow.connectors.kafka import input_scheduler
from recallflow.flows import initial_progress
from recallflow.operators.events import Batch
from recallflow.operators.step import PartitionLogic

input_scheduler.BATCH_MAX = 5
initial_progress.COMPARED = 30
on_batch = PartitionLogic.on_batch

def mortal(self, values):
    global left
    left -= sum(len(value.items) for value in values if isinstance(value, Batch))
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return on_batch(self, values)

if left:
    PartitionLogic.on_batch = mortal
"""


@dataclass
class OnTopics:
    broker: Cluster
    topics: TopicNames

    @property
    def named(self) -> dict[str, str]:
        return {f"{name}_topic": getattr(self.topics, topic) for name, topic in CLIENT_TOPICS.items()}

    def client(self, tenant: str = "acme", **chosen: Any) -> RecallClient:
        given = {"timeout_s": GIVE_UP_S, **self.named, **chosen}
        return RecallClient(self.broker.bootstrap_servers, tenant, **given)

    def options(self, flags: Mapping[str, str] = FLAGS) -> list[str]:
        """Options of a command: the broker, and the topics with these flags."""
        names = [word for flag, name in flags.items() for word in (flag, getattr(self.topics, name))]
        return ["--bootstrap-servers", self.broker.bootstrap_servers, *names]

    def read(self, topic: str) -> list[dict[str, Any]]:
        return [orjson.loads(message.value()) for message in read_topic(self.broker, topic)]

    @contextlib.contextmanager
    def command(self, folder: Path, *words: str, environment: Mapping[str, str]) -> Iterator[Process]:
        """Run a command, and stop it as an operator does."""
        with Process(folder / f"{words[0]}.log", *words, environment=environment) as process:
            process.start()
            yield process
            assert (ended := process.stop()).code == 0, ended


@dataclass
class Deployment(OnTopics):
    """A main flow with its topics and its state directory. `sent` and `asked` count its memory events and queries."""

    state_dir: Path
    sent: int = 0
    asked: int = 0
    sync_ms: int = 50
    flags: tuple[str, ...] = ()
    errors: list[str] = field(default_factory=list)  # standard error of each run

    def start(self, kill_after: int = 0) -> Process:
        words = ["--state-dir", str(self.state_dir), "--sync-ms", str(self.sync_ms), *SHORT_SESSION, *self.flags]
        process = Process(self.state_dir.with_suffix(".log"), "run", *words, *self.options())
        process.setup = f"left = {kill_after}\n{SETUP}"
        process.start()
        return process

    def ends(self, kill_after: int = 0) -> tuple[int, str]:
        ended = self.start(kill_after).ended()
        return ended.code, ended.said

    @contextlib.contextmanager
    def running(self, kill_after: int = 0) -> Iterator[Process]:
        with self.start(kill_after) as process:
            yield process
            ended = process.ended() if kill_after else process.stop()
            self.errors.append(ended.said)
            assert ended.code == (-signal.SIGKILL if kill_after else 0), ended

    def outputs(self, topic: str, at_least: int = 0) -> Counter[tuple[Any, ...]]:
        until(lambda: len(read_topic(self.broker, topic)) >= at_least)
        headers = [dict(message.headers()) for message in read_topic(self.broker, topic)]
        return Counter((found[SOURCE_HEADER], found[NUMBER_HEADER]) for found in headers)

    def check_outputs(self, answers: int | None = None) -> None:
        """Waits for all receipts and responses; each is there once."""
        expected = {self.topics.receipts: self.sent, self.topics.responses: self.asked if answers is None else answers}
        for topic, count in expected.items():
            outputs = self.outputs(topic, count)
            repeated = {identity: times for identity, times in outputs.items() if times > 1}
            assert (len(outputs), repeated) == (count, {}), f"{topic}: {len(outputs)} of {count}, repeated {repeated}"
        assert not read_topic(self.broker, self.topics.dead_letters)

    def hash(self) -> str:
        return hash_of(self.state_dir)


def until(true: Callable[[], bool]) -> None:
    """Returns once something is true; fails where it does not come true in time."""
    deadline_s = time.monotonic() + GIVE_UP_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)  # leaves the processor to what is waited for


def is_ready(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=5) as answer:
        return bool(answer.status == HTTPStatus.OK)
    return False


def read_topic(broker: Cluster, topic: str) -> list[Any]:
    with TopicReader(KafkaOptions(broker.bootstrap_servers), {"fetch.wait.max.ms": 10, **UNCOMMITTED}) as reader:
        spans = reader.spans([topic])
        return [one for (_, number), (low, _) in spans.items() for one in reader.read_to_end(topic, number, low)]


def produce(broker: Cluster, topic: str, *events: Mapping[str, Any] | bytes, key: str = "") -> list[str]:
    """Produce events, and return their positions. An event is of acme/ann and has its owner's key unless given."""
    positions: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        positions.append(f"{message.topic()}:{message.partition()}:{message.offset()}")

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for event in events:
        owned = ANN if isinstance(event, bytes) else ANN | dict(event)
        value = event if isinstance(event, bytes) else orjson.dumps(owned)
        producer.produce(topic, value, key or f"{owned['tenant_id']}/{owned['user_id']}", on_delivery=delivered)
    assert producer.flush(GIVE_UP_S) == 0
    return positions


def deployed(broker: Cluster, topics: Names, state_dir: Path, partitions: int = 1, **chosen: Any) -> Deployment:
    """Return a deployment on topics of this test's own; its inputs have so many partitions, its outputs one."""
    own = own_topics(topics)
    broker.create_topics({own.memory: partitions, own.queries: partitions, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 1))
    return Deployment(broker, own, state_dir, **chosen)


def enriched_topics(broker: Cluster, topics: Names) -> TopicNames:
    """Create topics of this test's own for a main flow and an enrichment flow, with two partitions each."""
    named = {name: topics(getattr(TopicNames, name)) for flags in FLOW_FLAGS.values() for name in flags.values()}
    broker.create_topics(dict.fromkeys(named.values(), 2))
    return TopicNames(replies=(), **named)


def own_topics(topics: Names) -> TopicNames:
    return other_outputs(TopicNames(memory=topics("memory.events"), control=topics("control.events")), topics)


def other_outputs(like: TopicNames, topics: Names, prefix: str = "") -> TopicNames:
    """The same topics of memories and control events, and others of queries and outputs."""
    return replace(
        like, queries=topics(f"{prefix}queries"), responses=topics(f"{prefix}responses"),
        receipts=topics(f"{prefix}receipts"), dead_letters=topics(f"{prefix}dead.letters"),
    )  # fmt: skip


def flags(topics: Names, *wanted: str) -> list[str]:
    """Options that give each topic a name of this test's own; `wanted`: those only."""
    return [word for flag in wanted or FLAGS for word in (flag, topics(getattr(TopicNames, FLAGS[flag])))]
