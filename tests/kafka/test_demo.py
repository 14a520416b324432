"""The demo through a broker: the answers of the one without, and nothing is left behind."""

import subprocess
import sys

import orjson
from confluent_kafka.admin import AdminClient

from benchmarks.broker import Cluster
from tests.conftest import GIVE_UP_S


def answers(*words: str) -> list[list[str]]:
    """The ids of each answer's memories."""
    done = subprocess.run(
        [sys.executable, "-m", "recallflow", "demo", "--json", *words],
        capture_output=True,
        timeout=GIVE_UP_S,
        check=True,
    )
    return [[memory["id"] for memory in answer["memories"]] for answer in map(orjson.loads, done.stdout.splitlines())]


def topics(broker: Cluster) -> set[str]:
    found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=GIVE_UP_S).topics
    return {name for name in found if "demo" in name}


def test_the_demo_answers_the_same_through_a_broker_and_leaves_nothing(broker: Cluster) -> None:
    before = topics(broker)
    assert answers("--kafka", "--bootstrap-servers", broker.bootstrap_servers) == answers()
    assert topics(broker) == before
