"""The same program on `Memory` and on `RecallClient`, before a real broker and a running main flow."""

from benchmarks.broker import Cluster
from benchmarks.kafka_flow import create, own_topics, running_flow
from recallflow import Memory, RecallClient
from tests import programme

TENANT = "acme"


def test_embedded_program_works_on_kafka_after_a_one_line_change(broker: Cluster) -> None:
    topics = own_topics()
    create(broker, topics, partitions=2)
    with Memory(tenant=TENANT) as memory:
        embedded = programme.run(memory, "ann")
    with (
        running_flow(broker, topics, TENANT),
        RecallClient(
            broker.bootstrap_servers,
            tenant=TENANT,
            memory_topic=topics.memory,
            query_topic=topics.queries,
            response_topic=topics.responses,
            control_topic=topics.control,
            timeout_s=30.0,
        ) as client,
    ):
        on_kafka = programme.run(client, "ann")
    assert {name: (on_kafka[name], embedded[name]) for name in embedded if on_kafka[name] != embedded[name]} == {}
