"""Records whose order nobody can promise are counted by reason, and told of once."""

import logging
import zlib

import pytest

from recallflow.connectors.kafka.admin import Described
from recallflow.connectors.kafka.misplaced import Misplaced
from recallflow.partitioning import partition_of
from recallflow.records import Position, Record

TOPIC = "memory.events"


def record(key: bytes | None, partition: int) -> Record:
    return Record(Position(TOPIC, partition, 7), b"{}", 0, key)


@pytest.fixture
def misplaced() -> Misplaced:
    made = Misplaced()
    made.learn({TOPIC: Described("id", 8)})
    return made


def test_keys_of_a_java_producer_are_in_their_place(misplaced: Misplaced) -> None:
    for user in range(200):
        key = f"acme/u{user}".encode()
        misplaced.check(record(key, partition_of(key, 8)), key)
    assert misplaced.counts == {}


def test_keys_by_crc32_are_noticed(misplaced: Misplaced) -> None:
    """That is where librdkafka puts them unless it is told otherwise."""
    keys = [f"acme/u{user}".encode() for user in range(200)]
    for key in keys:
        misplaced.check(record(key, zlib.crc32(key) % 8), key)
    assert 50 < misplaced.counts["other_partition"] < 200
    assert set(misplaced.counts) == {"other_partition"}


def test_no_key_and_another_ones_are_told_once(misplaced: Misplaced, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    misplaced.check(record(None, 0), b"acme/ann")
    misplaced.check(record(b"acme", 0), b"acme/ann")
    misplaced.check(record(b"", 0), b"acme/ann")
    assert misplaced.counts == {"no_key": 1, "other_key": 2}
    (line,) = [entry.getMessage() for entry in caplog.records]
    assert line.startswith("memory.events:0:7: no key: the order of an owner's records across partitions is undefined")
    assert "partitioner=murmur2_random" in line


@pytest.mark.parametrize("before", range(1, 8))
def test_a_topic_that_grew_makes_no_record_wrong_that_was_right(misplaced: Misplaced, before: int) -> None:
    for user in range(100):
        key = f"acme/u{user}".encode()
        misplaced.check(record(key, partition_of(key, before)), key)
    misplaced.check(record(b"acme/ann", 8), b"acme/ann")  # added a moment ago
    assert misplaced.counts == {}
