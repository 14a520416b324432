"""Quotas on a real broker: the same records are refused, whatever is killed, each is told once, and can come back."""

import signal
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.connectors.kafka.messages import SOURCE_HEADER
from recallflow.control import SETTLED_MS, Quota
from recallflow.quota_names import EVENTS_PER_S, MEMORIES_PER_USER, QUERIES_PER_S
from tests.kafka import harness
from tests.kafka.harness import GIVE_UP_S, Command, Names, other_outputs, own_topics, read_topic, until

LOUD, QUIET = "loud", "quiet"
LIMIT = 5
BURSTS, PAUSE_MS = 3, 400


@dataclass
class Deployment(harness.Deployment):
    """A main flow with one partition of each topic. `limited_from_ms`: when the loud tenant's quotas begin to hold."""

    limited_from_ms: int = 0
    appended_ms: int = 0
    producer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "linger.ms": 0})

    def limit(self) -> None:
        for name in (EVENTS_PER_S, QUERIES_PER_S):
            event = Quota(type="quota", tenant_id=LOUD, name=name, limit=LIMIT)
            self.produce(self.topics.control, event.record_key, event.model_dump(exclude_none=True))
        self.flush()
        self.limited_from_ms = self.appended_ms + SETTLED_MS

    def flood(self) -> None:
        """Sends events and queries of both tenants, some before the quotas hold, and the others over several
        seconds."""
        self.burst()
        for _ in range(BURSTS):
            self.await_append(max(self.limited_from_ms, self.appended_ms + PAUSE_MS))
            self.burst()

    def burst(self) -> None:
        for tenant in (*[LOUD] * 2 * LIMIT, QUIET, LOUD, QUIET):
            self.send(tenant)
            self.ask(tenant)
        self.flush()

    def await_append(self, at_ms: int) -> None:
        """Returns once the broker's clock shows a time."""
        while self.appended_ms < at_ms:
            self.produce(self.topics.results, b"tick", {})
            self.flush()

    def send(self, tenant: str) -> None:
        fields = {"type": "message", "content": f"walnut {self.sent}", "receipt": True}
        self.produce(self.topics.memory, f"{tenant}/ann".encode(), self._event(tenant, fields))
        self.sent += 1

    def ask(self, tenant: str) -> None:
        fields = {"type": "user.stats", "id": f"q{self.asked}"}
        self.produce(self.topics.queries, f"{tenant}/ann".encode(), self._event(tenant, fields))
        self.asked += 1

    def first(self) -> None:
        self.send(QUIET)
        self.flush()

    def expected(self, topic: str) -> set[int]:
        """The offsets of what is over the quota, by the times of the log."""
        before: Counter[int] = Counter()
        refused = set()
        for message in read_topic(self.broker, topic):
            at_ms = message.timestamp()[1]
            if message.key().startswith(LOUD.encode()) and at_ms >= self.limited_from_ms:
                second = at_ms // 1_000
                if before[second] >= LIMIT:
                    refused.add(message.offset())
                before[second] += 1
        return refused

    def letters(self) -> Counter[str]:
        """How often each record is among the dead letters."""
        found = [dict(one.headers()) for one in read_topic(self.broker, self.topics.dead_letters)]
        return Counter(headers[SOURCE_HEADER].decode() for headers in found)

    def answers(self) -> dict[str, list[str]]:
        """What came for each query: `ok`, or the code of an error."""
        found: dict[str, list[str]] = {}
        for message in read_topic(self.broker, self.topics.responses):
            said = orjson.loads(message.value())
            code = said["error"]["code"] if "error" in said else "ok"
            found.setdefault(said["query_id"], []).append(code)
        return found

    def _event(self, tenant: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {"tenant_id": tenant, "user_id": "ann", **fields}

    def produce(self, topic: str, key: bytes, event: dict[str, Any]) -> None:
        def delivered(error: Any, message: Any) -> None:
            assert error is None
            self.appended_ms = max(self.appended_ms, message.timestamp()[1])

        self.producer.produce(topic, orjson.dumps(event), key, 0, on_delivery=delivered)

    def flush(self) -> None:
        assert self.producer.flush(GIVE_UP_S) == 0


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    """Reads, and is stopped: what is asked from now on is answered."""
    own = own_topics(topics)
    own = replace(own, results=topics("ticks"))
    broker.create_topics(dict.fromkeys((own.memory, own.queries, own.control, own.results, *own.outputs()), 1))
    made = Deployment(broker, own, tmp_path / "s", epoch_ms=20)
    made.first()
    with made.running():
        made.outputs(own.receipts, 1)
    return made


def test_records_over_quota_are_refused_once_despite_a_kill(
    deployment: Deployment, topics: Names, tmp_path: Path
) -> None:
    deployment.limit()
    deployment.flood()
    assert deployment.ends(kill_after=30)[0] == -signal.SIGKILL
    memories, queries = deployment.expected(deployment.topics.memory), deployment.expected(deployment.topics.queries)
    assert memories
    assert queries
    with deployment.running():
        until(lambda: len(deployment.answers()) >= deployment.asked)
        until(lambda: deployment.letters().total() >= len(memories) + len(queries))
    answered = deployment.answers()
    assert {len(one) for one in answered.values()} == {1}
    assert {name for name, (code,) in answered.items() if code == "over_quota"} == {f"q{one}" for one in queries}
    assert {code for (code,) in answered.values()} == {"ok", "over_quota"}
    refused = [f"{deployment.topics.memory}:0:{one}" for one in memories]
    assert deployment.letters() == Counter([*refused, *(f"{deployment.topics.queries}:0:{one}" for one in queries)])
    assert deployment.hash() == rebuilt(deployment, topics, tmp_path / "other")


def rebuilt(deployment: Deployment, topics: Names, path: Path) -> str:
    """The state hash of another deployment that reads the same memories from their beginning."""
    own = other_outputs(deployment.topics, topics, "other.")
    deployment.broker.create_topics(dict.fromkeys((own.queries, *own.outputs()), 1))
    other = Deployment(deployment.broker, own, path, epoch_ms=20, flags=("--deployment", own.queries))
    taken = deployment.sent - len(deployment.expected(deployment.topics.memory))
    with other.running():
        other.outputs(own.receipts, taken)
    return other.hash()


def test_record_over_a_user_quota_can_be_replayed_later(deployment: Deployment, command: Command) -> None:
    def limit(most: int) -> None:
        event = Quota(type="quota", tenant_id=LOUD, name=MEMORIES_PER_USER, limit=most)
        deployment.produce(deployment.topics.control, event.record_key, event.model_dump(exclude_none=True))
        deployment.flush()
        deployment.await_append(deployment.appended_ms + SETTLED_MS + 1)

    topics = deployment.topics
    with deployment.running():
        limit(1)
        for _ in range(2):
            deployment.send(LOUD)
        deployment.flush()
        until(lambda: deployment.letters().total() == 1)
        limit(2)
        where = ["--bootstrap-servers", deployment.broker.bootstrap_servers]
        named = ["--dead-letter-topic", topics.dead_letters, "--memory-topic", topics.memory]
        done = command("dlq", "replay", "--code", "over_quota", *where, *named)
        assert done.returncode == 0, done.stderr
        assert len(deployment.outputs(topics.receipts, 3)) == 3
    assert deployment.letters().total() == 1
