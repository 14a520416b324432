"""The source on a real broker: what wakes it, when it is ready, how far behind it is."""

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.source import KafkaSource
from recallflow.operators.async_call import Completion, Completions
from recallflow.operators.async_call.source import WithCompletions
from tests.kafka.harness import until

Names = Callable[[str], str]

GIVE_UP_S = 30.0
PART = "00000"


@pytest.fixture
def wake() -> threading.Event:
    return threading.Event()


@pytest.fixture
def source(broker: Cluster, topics: Names, wake: threading.Event) -> KafkaSource:
    """Of two partitions, which hold five memories."""
    memories, queries = topics("memory.events"), topics("query.events")
    broker.create_topics({memories: 2, queries: 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(5):
        producer.produce(memories, b"%d" % number, partition=1)
    assert producer.flush(GIVE_UP_S) == 0
    options = KafkaOptions(broker.bootstrap_servers)
    return KafkaSource(options, memories, queries, parts=2, wake=wake)


def test_it_is_ready_once_every_part_is_there(source: KafkaSource) -> None:
    ready = [source.ready()]
    parts = []
    for name in source.list_parts():
        parts.append(source.build_part("records", name, None))
        ready.append(source.ready())
    source.stopping.set()
    ready.append(source.ready())
    for part in parts:
        part.close()
    assert ready == [False, False, True, False]


def test_the_lag_is_what_was_not_taken_yet(source: KafkaSource, topics: Names) -> None:
    first, second = (source.build_part("records", name, None) for name in source.list_parts())
    memories = topics("memory.events")
    lags: list[dict[tuple[str, int], int]] = []

    def seen(wanted: int) -> bool:
        lags.append({part: lag for reader in source.readers() for part, lag in reader.lag().items()})
        return lags[-1].get((memories, 1)) == wanted

    until(lambda: seen(5))
    taken: list[bytes] = []

    def all_taken() -> bool:
        taken.extend(record.value for part in (first, second) for record in part.next_batch())
        return len(taken) == 5

    until(all_taken)
    assert seen(0)
    until(lambda: seen(0) and set(lags[-1].values()) == {0} and len(lags[-1]) == 3)
    first.close()
    second.close()
    assert taken == [b"0", b"1", b"2", b"3", b"4"]


def test_a_completion_wakes_the_source_and_comes_out_of_it(source: KafkaSource, wake: threading.Event) -> None:
    completions = Completions(wake)
    part = WithCompletions(source, completions).build_part("records", PART, None)
    finished = Completion(step=0, key="000", call=7)
    completions.put(finished)
    assert part.next_batch() == [finished]
    assert not wake.is_set()  # the source waited for the event that the completion set, and cleared it
    part.close()
