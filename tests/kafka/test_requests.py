"""Requests to the enrichment flow on a real broker: each once, however often the engine is killed; and categories."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.enrichment import EnrichmentRequest
from recallflow.flows.topics import Topics
from tests.kafka.harness import Deployment, Names, own_topics, read_topic

Command = Callable[..., subprocess.CompletedProcess[str]]

USERS = [f"user{n}" for n in range(5)]


@dataclass(kw_only=True)
class Asking(Deployment):
    """A main flow that asks the enrichment flow."""

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for number in range(self.sent, self.sent + count):
            user = USERS[number % len(USERS)]
            known = {"tenant_id": "acme", "user_id": user, "id": f"m{number}", "session_id": "s", "role": "user"}
            event = known | {"type": "message", "content": f"I walked to shop {number} today", "receipt": True}
            producer.produce(self.topics.memory, orjson.dumps(event), f"acme/{user}".encode())
        assert producer.flush(10) == 0
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


def test_each_memory_is_asked_about_once_whatever_is_killed(asking: Asking, tmp_path: Path) -> None:
    asking.send(60)
    for kill_after in (25, 7, 13):
        with asking.running(kill_after):
            asking.send(10)
    with asking.running():
        outputs = asking.outputs(asking.topics.enrichment, asking.sent)
        asking.check_outputs()
    assert [*outputs.values()] == [1] * asking.sent
    requested = asking.requested()
    assert sorted(one.memories[0].memory_id for one in requested) == sorted(f"m{n}" for n in range(asking.sent))
    # Another directory, which reads the same log anew, knows what was sent.
    asking.state_dir = tmp_path / "other"
    with asking.running():
        asking.send(1)
        asking.outputs(asking.topics.enrichment, asking.sent)
    assert [*asking.outputs(asking.topics.enrichment).values()] == [1] * asking.sent


def test_one_person_is_asked_about_in_order(asking: Asking) -> None:
    with asking.running():
        asking.send(30)
        asking.outputs(asking.topics.enrichment, asking.sent)
    for user in USERS:
        own = [message for message in read_topic(asking.broker, asking.topics.enrichment)
               if message.key() == f"acme/{user}".encode()]  # fmt: skip
        assert len({message.partition() for message in own}) == 1
        numbers = [int(orjson.loads(message.value())["memories"][0]["memory_id"][1:]) for message in own]
        assert numbers == sorted(numbers)


def test_without_settings_nothing_is_asked_and_no_topic_needed(broker: Cluster, topics: Names, tmp_path: Path) -> None:
    own = own_topics(topics)
    names = (own.memory, own.queries, own.control, own.responses, own.receipts, own.dead_letters)
    broker.create_topics(dict.fromkeys(names, 1))
    plain = Asking(broker, own, tmp_path / "s", flags=("--enrichment-topic", topics("there.is.none")))
    with plain.running():
        plain.send(5)
        plain.outputs(own.receipts, 5)
    plain.check_outputs()


def test_with_settings_and_without_the_topic_the_start_says_so(asking: Asking) -> None:
    asking.flags = ("--enrichment-topic", "there.is.none")
    code, errors = asking.ends()
    assert code == 1
    assert "no topic there.is.none: create it (recallflow topics create)" in errors


def test_categories_stand_in_the_control_topic(broker: Cluster, topics: Names, command: Command) -> None:
    topic = topics("control.events")
    broker.create_topics({topic: 1})
    where = ("--control-topic", topic, "--bootstrap-servers", broker.bootstrap_servers)
    for name, description in (("food", "Meals."), ("family", "Kin."), ("food", "Meals and drinks.")):
        done = command("categories", "set", "acme", name, "--description", description, *where)
        assert done.stdout.startswith(f"categories set acme {name}: {topic}:0:"), done.stderr
    assert command("categories", "remove", "acme", "family", *where).returncode == 0
    listed = command("categories", "list", "acme", *where).stdout
    assert listed == "category  what belongs there\nfood      Meals and drinks.\n"
    assert command("categories", "list", "other", *where).stdout == ""
