"""A key's partition is the one that producers of Java and librdkafka choose, and an owner's state partition is its."""

import ctypes
from collections.abc import Callable
from functools import partial

from confluent_kafka import cimpl
from hypothesis import given
from hypothesis import strategies as st

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.operators.events import Refused, by_partition, partition_hashed
from recallflow.owner import Owner, partition_of, state_partition
from recallflow.records import Position, Record


def librdkafka() -> Callable[[bytes, int], int]:
    """The partitioner `murmur2` of the librdkafka that producers here are made with."""
    found = ctypes.CDLL(cimpl.__file__).rd_kafka_msg_partitioner_murmur2
    found.restype = ctypes.c_int32
    found.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, *[ctypes.c_void_p] * 2]
    return lambda key, partitions: int(found(None, key, len(key), partitions, None, None))


@given(st.binary(max_size=64), st.integers(1, 1_000))
def test_a_key_is_where_librdkafka_puts_it(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == librdkafka()(key, partitions)


@given(st.text(min_size=1), st.text(min_size=1), st.text(), st.integers(1, 64))
def test_an_owner_is_in_the_partition_of_its_records(tenant: str, user: str, environment: str, partitions: int) -> None:
    key = Owner(tenant, environment, user).record_key
    assert state_partition(tenant, user, partitions) == librdkafka()(key, partitions)


@given(st.none() | st.binary(max_size=64), st.integers(1, 64))
def test_a_refused_record_goes_where_its_key_says(key: bytes | None, partitions: int) -> None:
    record = Record(Position("memory.events", 0, 7), b"{", 0, key)
    refused = Refused(record, InvalidRecord("invalid_json", [FieldProblem("", "is no JSON")]), "decode")
    ((_, batch),) = by_partition([refused], partial(partition_hashed, partitions=partitions))
    assert batch.partition == librdkafka()(key or b"", partitions)
