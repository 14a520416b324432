"""Round robin of tenants: every record once, each tenant's in order, with bounded waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka.order import RoundRobinQueue
from tests.unit.connectors.fake_consumer import Message

TENANTS = st.sampled_from((b"a/x", b"a/y", b"b/x", b"", b"c", None))


def message(offset: int, key: bytes | None) -> Message:
    return Message("queries", 0, offset, b"", key)


def tenant(key: bytes | None) -> bytes:
    return (key or b"").split(b"/")[0]


@given(steps=st.lists(TENANTS.map(lambda key: (key,)) | st.none(), max_size=60))
def test_each_record_is_given_once_and_each_tenants_in_order(steps: list[tuple[bytes | None] | None]) -> None:
    turns, log, given_, next_offset = RoundRobinQueue(), list[Message](), list[Message](), 0
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            log.append(message(len(log), *step))
            turns.append(log[-1])
        elif turns:
            given_.append(turns.popleft())
            next_offset += len([*turns.passed()])
        assert len(turns) == len(log) - len(given_)
        offsets = {one.offset() for one in given_}
        assert offsets >= set(range(next_offset))
        assert next_offset not in offsets
        assert turns.ahead == offsets - set(range(next_offset))
    assert sorted(one.offset() for one in given_) == [*range(len(log))]
    for name in {tenant(one.key()) for one in log}:
        own = [one.offset() for one in given_ if tenant(one.key()) == name]
        assert own == sorted(own)


@given(counts=st.dictionaries(st.sampled_from((b"a", b"b", b"c", b"d")), st.integers(1, 20), min_size=1))
def test_each_tenant_has_one_turn_before_a_second(counts: dict[bytes, int]) -> None:
    turns = RoundRobinQueue()
    for offset, key in enumerate(key for key, count in counts.items() for _ in range(count)):
        turns.append(message(offset, key + b"/ann"))
    taken = [tenant(turns.popleft().key()) for _ in range(sum(counts.values()))]
    rounds = [sorted(key for key, count in counts.items() if count > turn) for turn in range(max(counts.values()))]
    at = 0
    for expected in rounds:
        assert sorted(taken[at : at + len(expected)]) == expected
        at += len(expected)


def test_early_records_stay_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.connectors.kafka.order.AHEAD_MAX", 30)
    turns, log, given_, most = RoundRobinQueue(), list[Message](), list[int](), 0
    while len(given_) < 1_000:
        while len(turns) < 50 and len(log) < 1_000:
            log.append(message(len(log), b"waits/ann" if len(log) < 50 else b"%d/ann" % len(log)))
            turns.append(log[-1])
        given_.append(turns.popleft().offset())
        for _ in turns.passed():
            pass
        most = max(most, len(turns.ahead))
    assert sorted(given_) == [*range(1_000)]
    assert [offset for offset in given_ if offset < 50] == [*range(50)]
    assert (most, turns.ahead) == (30, set())
