"""The access record on a real broker: each query and refusal is recorded once, despite kills."""

import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.broker import Cluster
from recallflow.flows.settings import TopicNames
from recallflow.operators.audit import NUMBER
from tests.kafka.harness import Deployment, Names, own_topics, produce, read_topic, until

Cli = Callable[..., subprocess.CompletedProcess[str]]

ANN = {"tenant_id": "acme", "user_id": "ann"}
TEXT, QUESTION = "The vault opens at nine", "When does the vault open?"
KEY, UP = b"acme/ann", "up"


def created(cli: Cli, broker: Cluster, topics: TopicNames) -> list[str]:
    """Create the topics as operators do, and return the output of the command."""
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
    done = cli("topics", "create", "--partitions", 2, "--bootstrap-servers", broker.bootstrap_servers, *named)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def deployment(broker: Cluster, topics: Names, cli: Cli, tmp_path: Path) -> Deployment:
    own = replace(
        own_topics(topics),
        audit=topics("audit.log"),
        enrichment=topics("enrichment.requests"),
        results=topics("enrichment.results"),
    )
    assert f"{own.audit}: created" in created(cli, broker, own)
    flags = ("--audit-topic", str(own.audit))
    return Deployment(broker, own, tmp_path / "state", flags=flags)


def until_up(deployment: Deployment) -> None:
    """Queries from before the first start are not answered: asks until one is."""

    def is_answered() -> bool:
        produce(deployment.broker, deployment.topics.queries, {"type": "user.stats", "id": UP})
        return bool(read_topic(deployment.broker, deployment.topics.responses))

    until(is_answered)


def records(deployment: Deployment, at_least: int) -> list[dict[str, Any]]:
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


def test_queries_and_refusals_are_recorded_once_despite_a_kill(deployment: Deployment) -> None:
    broker, own = deployment.broker, deployment.topics
    with deployment.running():
        until_up(deployment)
    produce(broker, own.memory, {"type": "memory", "id": "m", "content": TEXT})
    produce(broker, own.queries, *({"type": "recall", "id": f"q{number}", "query": QUESTION} for number in range(40)))
    with deployment.running(kill_after=25):
        pass  # until it is killed
    with deployment.running():
        produce(broker, own.memory, {"type": "user.erase", "id": "gone"})
        produce(
            broker, own.queries, {"type": "recall", "id": "later", "query": QUESTION}, {"type": "recall", "id": "wrong"}
        )
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
