"""The group coordinator of the simulation against that of a real broker."""

from contextlib import closing

import pytest
from confluent_kafka import Consumer

from recallflow.kafka_options import KafkaOptions
from tests.kafka.harness import Names
from tests.simulation.coordinator import SCENARIOS, Group, Scenario
from tests.simulation.schedule import PARTITIONS
from tools.broker import Cluster


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_coordinator_gives_the_results_of_the_model(broker: Cluster, topics: Names, scenario: Scenario) -> None:
    topic = topics("memory.events")
    broker.create_topics({topic: PARTITIONS})
    with closing(Group(Consumer, KafkaOptions(broker.bootstrap_servers).consumer(), topics("group"), topic)) as group:
        assert scenario(group) == SCENARIOS[scenario]
