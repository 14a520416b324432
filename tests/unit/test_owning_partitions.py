"""The partition of a record, and the report about one that lies elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.flows.router import OwningPartitions
from recallflow.operators.events import Misrouted, decode
from recallflow.owner import state_partition
from recallflow.records import MOVED_HEADER, Position, Record

PARTITIONS = 16


def record(tenant: str, user: str, partition: int, key: bytes | None) -> Record:
    value = f'{{"type":"message","tenant_id":"{tenant}","user_id":"{user}","content":"tea"}}'.encode()
    return Record(Position("memory.events", partition, 7), value, 0, key)


@pytest.mark.parametrize(
    ("key", "shift", "reason"),
    [(b"acme/ann", 0, None), (None, 0, None), (b"x", 0, None), (None, 1, "no_key"), (b"x", 1, "other_key"),
     (b"acme/ann", 1, "other_partition")],
)  # fmt: skip
def test_a_record_is_misplaced_where_its_owner_is_not(key: bytes | None, shift: int, reason: str | None) -> None:
    homes, home = OwningPartitions(PARTITIONS), state_partition("acme", "ann", PARTITIONS)
    item = homes.judge(decode(record("acme", "ann", (home + shift) % PARTITIONS, key)))
    assert isinstance(item, Misrouted) == (reason is not None)
    assert homes.counts == ({} if reason is None else {reason: 1})
    if isinstance(item, Misrouted):
        assert (item.home, item.owner.user_id) == (home, "ann")


def test_first_misrouted_record_alone_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    homes, home = OwningPartitions(PARTITIONS), state_partition("acme", "ann", PARTITIONS)
    lost = record("acme", "ann", (home + 1) % PARTITIONS, None)
    homes.judge(decode(lost._replace(silent=True)))
    assert (caplog.messages, homes.counts) == ([], {})
    for _ in range(3):
        homes.judge(decode(lost))
    assert (len(caplog.messages), homes.counts["no_key"]) == (1, 3)


def test_unreadable_record_is_refused_in_its_partition() -> None:
    broken = Record(Position("memory.events", 3, 0), b"{", 0, b"acme/ann")
    assert not isinstance(OwningPartitions(PARTITIONS).judge(decode(broken)), Misrouted)


@given(st.binary(max_size=60), st.integers(0, 20))
def test_origin_is_another_partition_or_unknown(said: bytes, partition: int) -> None:
    one = Record(Position("memory.events", partition, 7), b"", 0, headers=((MOVED_HEADER, said),))
    assert one.moved_from is None or (one.moved_from.topic, one.moved_from.partition) != one.position[:2]
    assert one.known_as == (one.moved_from or one.position)
