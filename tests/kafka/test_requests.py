"""Requests to the enrichment flow on a real broker: each is sent once and in order."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from recallflow.enrichment import EnrichmentRequest
from recallflow.flows.topics import Topics
from tests.kafka.harness import Deployment, Names, own_topics, produce, read_topic

Command = Callable[..., subprocess.CompletedProcess[str]]

USERS = [f"user{n}" for n in range(5)]


@dataclass(kw_only=True)
class Asking(Deployment):
    """A main flow that asks the enrichment flow."""

    def send(self, count: int) -> None:
        told = [
            {"type": "message", "id": f"m{number}", "content": f"I walked to shop {number} today", "session_id": "s"}
            | {"user_id": USERS[number % len(USERS)], "role": "user", "receipt": True}
            for number in range(self.sent, self.sent + count)
        ]
        produce(self.broker, self.topics.memory, *told)
        self.sent += count

    def requested(self) -> list[EnrichmentRequest]:
        found = read_topic(self.broker, self.topics.enrichment)
        return [EnrichmentRequest.model_validate_json(message.value()) for message in found]


@pytest.fixture
def asking(broker: Cluster, topics: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asking:
    monkeypatch.setenv("RECALLFLOW_ENRICHMENT_FACTS", "true")
    own = own_topics(topics)
    own = Topics(**{**own.__dict__, "enrichment": topics("enrichment.requests")})
    names = (own.memory, own.queries, own.control, own.responses, own.receipts, own.dead_letters)
    broker.create_topics(dict.fromkeys(names, 1) | {own.memory: 2, own.queries: 2, own.enrichment: 3})
    return Asking(broker, own, tmp_path / "s", flags=("--enrichment-topic", own.enrichment))


def test_each_memory_is_asked_about_once_and_in_order(asking: Asking, tmp_path: Path) -> None:
    """Another directory that reads the same log repeats nothing."""
    asking.send(30)
    with asking.running():
        outputs = asking.outputs(asking.topics.enrichment, asking.sent)
        asking.check_outputs()
    assert [*outputs.values()] == [1] * asking.sent
    asked: dict[str, list[tuple[int, int]]] = {user: [] for user in USERS}
    for message in read_topic(asking.broker, asking.topics.enrichment):
        request = EnrichmentRequest.model_validate_json(message.value())
        assert message.key() == f"acme/{request.user_id}".encode()
        asked[request.user_id].append((message.partition(), int(request.memories[0].memory_id[1:])))
    for own in asked.values():
        assert len({partition for partition, _ in own}) == 1
        assert own == sorted(own)
    assert sorted(number for own in asked.values() for _, number in own) == [*range(asking.sent)]

    asking.state_dir = tmp_path / "other"
    with asking.running():
        asking.send(1)
        asking.outputs(asking.topics.enrichment, asking.sent)
    assert [*asking.outputs(asking.topics.enrichment).values()] == [1] * asking.sent


def test_a_missing_enrichment_topic_is_named_at_start(asking: Asking) -> None:
    asking.flags = ("--enrichment-topic", "there.is.none")
    code, errors = asking.ends()
    assert code == 1
    assert "there.is.none" in errors


def test_categories_are_kept_in_the_control_topic(broker: Cluster, topics: Names, command: Command) -> None:
    topic = topics("control.events")
    broker.create_topics({topic: 1})
    where = ("--control-topic", topic, "--bootstrap-servers", broker.bootstrap_servers)
    for name, description in (("food", "Meals."), ("food", "Meals and drinks.")):
        assert command("categories", "set", "acme", name, "--description", description, *where).returncode == 0
    _, *listed = command("categories", "list", "acme", *where).stdout.splitlines()
    assert [line.split(maxsplit=1) for line in listed] == [["food", "Meals and drinks."]]
