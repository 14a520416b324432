"""The access record on a real broker: each query and each refusal is in it once, whatever is killed."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.credentials import KEY_HEADER
from recallflow.flows.topics import Topics
from recallflow.operators.audit import NUMBER
from tests.kafka.harness import Command, Deployment, Names, own_topics, read_topic, until

ANN = {"tenant_id": "acme", "user_id": "ann"}
TEXT, QUESTION = "The vault opens at nine", "When does the vault open?"
KEY, UP = b"acme/ann", "up"


def created(command: Command, broker: Cluster, topics: Topics) -> list[str]:
    """Makes the topics, as operators do. Returns what the command says."""
    flags = {
        "memory": topics.memory,
        "query": topics.queries,
        "control": topics.control,
        "response": topics.responses,
        "receipt": topics.receipts,
        "dead-letter": topics.dead_letters,
        "enrichment": topics.enrichment,
        "result": topics.results,
        "audit": str(topics.audit),
    }
    named = [word for flag, name in flags.items() for word in (f"--{flag}-topic", name)]
    done = command("topics", "create", "--partitions", 2, "--bootstrap-servers", broker.bootstrap_servers, *named)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def deployment(broker: Cluster, topics: Names, command: Command, tmp_path: Path) -> Deployment:
    own = replace(
        own_topics(topics),
        audit=topics("audit.log"),
        enrichment=topics("enrichment.requests"),
        results=topics("enrichment.results"),
    )
    assert f"{own.audit}: created" in created(command, broker, own)
    flags = ("--audit-topic", str(own.audit))
    return Deployment(broker, own, tmp_path / "state", flags=flags)


class Sender:
    """Sends events with credentials, or without."""

    def __init__(self, deployment: Deployment, key: str | None = None) -> None:
        self._topics = deployment.topics
        self._producer = Producer(
            {"bootstrap.servers": deployment.broker.bootstrap_servers, "partitioner": "murmur2_random"}
        )
        self._headers: list[tuple[str, str | bytes | None]] = [] if key is None else [(KEY_HEADER, key.encode())]

    def send(self, topic: str, *events: dict[str, Any]) -> None:
        for event in events:
            self._producer.produce(topic, orjson.dumps(ANN | event), KEY, headers=self._headers)
        assert self._producer.flush(30) == 0

    def tell(self, *events: dict[str, Any]) -> None:
        self.send(self._topics.memory, *events)

    def ask(self, *events: dict[str, Any]) -> None:
        self.send(self._topics.queries, *events)


def until_up(deployment: Deployment, sender: Sender) -> None:
    """Queries from before the first start are not answered: asks until one is."""

    def is_answered() -> bool:
        sender.ask({"type": "user.stats", "id": UP})
        return bool(read_topic(deployment.broker, deployment.topics.responses))

    until(is_answered)


def records(deployment: Deployment, at_least: int) -> list[dict[str, Any]]:
    """The access record, once it has so many; each identity is there once."""
    topic = str(deployment.topics.audit)
    messages: list[Any] = []

    def are_there() -> bool:
        messages[:] = [one for one in read_topic(deployment.broker, topic) if orjson.loads(one.value())["id"] != UP]
        return len(messages) >= at_least

    until(are_there)
    assert [*deployment.outputs(topic).values()].count(1) == len(deployment.outputs(topic))
    assert {number for _, number in deployment.outputs(topic)} == {str(NUMBER).encode()}
    assert {message.key() for message in messages} == {KEY}
    assert not any(word in message.value() for message in messages for word in (b"vault", b"rfk_"))
    return [orjson.loads(message.value()) for message in messages]


def test_each_query_and_refusal_is_recorded_once_whatever_is_killed(deployment: Deployment) -> None:
    anybody = Sender(deployment)
    with deployment.running():
        until_up(deployment, anybody)
    anybody.tell({"type": "memory", "id": "m", "content": TEXT})
    anybody.ask(*({"type": "recall", "id": f"q{number}", "query": QUESTION} for number in range(40)))
    for kill_after in (12, 25):
        with deployment.running(kill_after):
            pass  # until it is killed
    with deployment.running():
        anybody.tell({"type": "user.erase", "id": "gone"})
        anybody.ask({"type": "recall", "id": "later", "query": QUESTION}, {"type": "recall", "id": "wrong"})
        found = records(deployment, 43)
    assert Counter(one["id"] for one in found) == Counter(["gone", "later", "wrong", *(f"q{n}" for n in range(40))])
    by_id = {one["id"]: one for one in found}
    assert (by_id["wrong"]["status"], by_id["wrong"]["code"]) == ("error", "invalid_event")
    assert by_id["gone"] | {"time": "", "position": ""} == {
        "type": "user.erase",
        "time": "",
        "principal": None,
        "tenant_id": "acme",
        "user_id": "ann",
        "environment": None,
        "id": "gone",
        "position": "",
        "status": "ok",
        "code": None,
        "memories": None,
    }


def test_senders_are_recorded_by_the_name_of_their_key(
    deployment: Deployment, command: Command, tmp_path: Path
) -> None:
    where = ["--bootstrap-servers", deployment.broker.bootstrap_servers, "--control-topic", deployment.topics.control]
    made = command("keys", "create", "acme", "--project", "p", *where)
    assert made.returncode == 0, made.stderr
    key = next(word for word in made.stdout.split() if word.startswith("rfk_"))
    name = key.split("_")[1]
    own, stranger = Sender(deployment, key), Sender(deployment)
    config = tmp_path / "recallflow.toml"
    config.write_text('[auth]\nmode = "required"\n')
    required = replace(deployment, flags=(*deployment.flags, "--config", str(config)))
    with required.running():
        until_up(required, own)
        own.tell({"type": "memory", "id": "m", "content": TEXT, "project_id": "p"})
        own.tell({"type": "memory", "id": "n", "content": TEXT, "project_id": "q"})
        stranger.tell({"type": "memory", "id": "o", "content": TEXT, "project_id": "p"})
        records(deployment, 2)  # what is told is refused or applied by then
        own.ask({"type": "recall", "id": "mine", "query": QUESTION})
        stranger.ask({"type": "recall", "id": "theirs", "query": QUESTION})
        found = {one["id"]: one for one in records(deployment, 4)}
    said = {record_id: (one["principal"], one["code"], one["memories"]) for record_id, one in found.items()}
    assert said == {
        "n": (name, "forbidden", None),
        "o": (None, "unauthenticated", None),
        "mine": (name, None, 1),
        "theirs": (None, "unauthenticated", None),
    }
