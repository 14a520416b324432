"""Where output topics end, as brokers say it."""

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import Cluster
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.tails import Ends
from tests.kafka.harness import GIVE_UP_S, Names, until


def test_partitions_that_were_added_since_are_looked_at(broker: Cluster, topics: Names) -> None:
    """A member that started later sends to them; who takes its partitions over looks there as well."""
    name = topics("responses")
    broker.create_topics({name: 1})
    ends = Ends(KafkaOptions(broker.bootstrap_servers), {name: 1})
    until(lambda: ends.ask() == {name: {0: 0}})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})  # which has to live until it has answered
    admin.create_partitions([NewPartitions(name, 2)])[name].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(name, b"{}", partition=1)
    assert producer.flush(GIVE_UP_S) == 0
    until(lambda: ends.ask() == {name: {0: 0, 1: 1}})
    assert ends.latest()[0] == {name: {0: 0, 1: 1}}
