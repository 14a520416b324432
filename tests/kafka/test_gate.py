"""A quality gate over all state partitions, on a real broker: its verdict outlives the process and the state."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.broker import Cluster
from recallflow.control import DEFAULT, GateVerdict, Rollout
from recallflow.operators.graph.quality_gate import Window
from recallflow.owner import state_partition
from recallflow.parsing import parse_control
from recallflow.state.folders import partition_folder
from tests.kafka.harness import Deployment, Names, deployed, produce, read_topic, until

Cli = Callable[..., subprocess.CompletedProcess[str]]

USERS = [f"user{n}" for n in range(12)]
ASKED = 4  # times by each user: what no state partition could judge by
PARTITIONS = 8


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    return deployed(broker, topics, tmp_path / "s", PARTITIONS, epoch_ms=10)


def tell(deployment: Deployment) -> dict[str, str]:
    last: dict[str, str] = {}
    for number, text in enumerate(("Rollout alarms page us", "Grafana turns pale")):
        for user in USERS:
            fields = {"type": "memory", "id": f"m{number}", "content": text, "topics": ["dashboard"], "receipt": True}
            owner = {"user_id": user}
            (last[user],) = produce(deployment.broker, deployment.topics.memory, owner | fields)
            deployment.sent += 1
    return last


def ask(deployment: Deployment, user: str, **fields: Any) -> None:
    asked = {"type": "recall", "id": f"q{deployment.asked}", "query": "rollout alarms", "k": 1}
    graph = {"user_id": user, "strategy": "hybrid_graph"}
    produce(deployment.broker, deployment.topics.queries, asked | graph | fields)
    deployment.asked += 1


def fallbacks(deployment: Deployment) -> list[str | None]:
    deployment.check_outputs()
    answers = [orjson.loads(one.value()) for one in read_topic(deployment.broker, deployment.topics.responses)]
    return [one["fallback"] for one in sorted(answers, key=lambda one: int(one["query_id"][1:]))]


def verdicts(deployment: Deployment) -> list[GateVerdict]:
    events = [parse_control(one.value()) for one in read_topic(deployment.broker, deployment.topics.control)]
    return [event for event in events if isinstance(event, GateVerdict)]


def test_gate_verdict_survives_a_restart_and_a_lost_state(deployment: Deployment, cli: Cli) -> None:
    of_partition = [state_partition("acme", user, PARTITIONS) for user in USERS]
    assert max(map(of_partition.count, of_partition)) * ASKED < Window().answers
    where = ["--bootstrap-servers", deployment.broker.bootstrap_servers, "--control-topic", deployment.topics.control]
    decided = cli("graph", "rollout", "acme", "canary", "--by", "ops", "--why", "try it", *where)
    assert decided.returncode == 0, decided.stderr
    assert decided.stdout == f"rollout acme canary: {deployment.topics.control}:0:0\n"
    (event,) = (parse_control(one.value()) for one in read_topic(deployment.broker, deployment.topics.control))
    assert isinstance(event, Rollout)
    assert (event.name, event.mode, event.by, event.why) == (DEFAULT, "canary", "ops", "try it")

    last = tell(deployment)
    with deployment.running():
        deployment.check_outputs()
        for number in range(ASKED * len(USERS)):  # without time for the graph, half of them
            ask(deployment, USERS[number % len(USERS)], **({"sla_target_ms": 0.000001} if number % 2 else {}))
        assert "rollout_guardrail" in fallbacks(deployment)
        until(lambda: len(verdicts(deployment)) == 1)
    (verdict,) = verdicts(deployment)
    assert (verdict.name, verdict.blocked) == (DEFAULT, True)
    assert verdict.windows["answers"] >= Window().answers
    before = deployment.hash()

    # Started again: the windows are empty, and the verdict holds.
    blocked_from = deployment.asked
    for user in USERS:
        ask(deployment, user)
    with deployment.running():
        assert set(fallbacks(deployment)[blocked_from:]) == {"quality_gate_blocked"}
    assert deployment.hash() == before

    # All of the state is lost, and read again from the log.
    for number in set(of_partition):
        shutil.rmtree(partition_folder(deployment.state_dir, number))
    with deployment.running():
        for user in USERS:
            ask(deployment, user, wait_for=last[user], wait_timeout_ms=60_000)
        assert set(fallbacks(deployment)[blocked_from:]) == {"quality_gate_blocked"}
    assert deployment.hash() == before
    assert len(verdicts(deployment)) == 1  # what was answered before is not judged again
