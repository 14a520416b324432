"""The order of memory records of different partitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka import order as module
from recallflow.connectors.kafka.order import Lane, Order
from tests.unit.connectors.fake_consumer import Message

TOPIC = "memory.events"


class Flow:
    """An order over some lanes, and what became of what was released."""

    def __init__(self, lanes: int) -> None:
        self.through = 0
        self.order = Order(lambda: self.through)
        self.lanes = [Lane(TOPIC, number, 0, 0) for number in range(lanes)]
        for lane in self.lanes:
            self.order.add(lane)
        self.order.begin()

    def read(self, number: int, append_ms: int, key: bytes | None, *, logged: bool = True) -> None:
        lane = self.lanes[number]
        lane.read.append(Message(TOPIC, number, lane.reached, b"", key, append_ms, logged))
        lane.reached += 1
        lane.end = max(lane.end, lane.reached)

    def released(self) -> list[tuple[int, int]]:
        """What may be taken now, and was not before: (lane, offset), as it comes through the state."""
        self.order.release()
        taken = []
        for number, lane in enumerate(self.lanes):
            while lane.queue:
                taken.append((number, lane.queue.popleft().offset()))
        return taken

    def all_through(self, records: int) -> None:
        self.through += records


def test_lanes_at_their_end_hold_nobody_up() -> None:
    flow = Flow(3)
    flow.read(1, 500, b"a")
    assert flow.released() == [(1, 0)]


def test_what_is_behind_is_waited_for() -> None:
    flow = Flow(2)
    flow.lanes[0].end = 2  # a broker has two, which nobody has read yet
    flow.read(1, 500, b"a")
    assert flow.released() == []
    flow.read(0, 400, b"b")
    assert flow.released() == [(0, 0)]  # the next one may be as old
    flow.read(0, 600, b"b")
    assert flow.released() == [(0, 1), (1, 0)]


def test_a_lane_runs_on_up_to_what_is_known_of_the_others() -> None:
    flow = Flow(2)
    for append_ms in (100, 200, 300):
        flow.read(0, append_ms, b"a")
    flow.read(1, 250, b"b")
    flow.lanes[1].end = 2
    assert flow.released() == [(0, 0), (0, 1), (1, 0)]


def test_an_owner_who_changes_partition_waits_until_the_old_one_is_through() -> None:
    flow = Flow(2)
    flow.read(0, 100, b"mover")
    flow.read(1, 150, b"other")
    flow.read(1, 200, b"mover")
    flow.read(0, 300, b"stays")
    assert flow.released() == [(0, 0), (1, 0)]
    assert flow.order.draining
    assert flow.released() == []
    flow.all_through(1)
    assert flow.released() == []
    flow.all_through(1)
    assert flow.released() == [(0, 1), (1, 1)]


def test_the_owner_is_waited_for_in_the_order_of_the_log_whichever_lane_comes_first() -> None:
    flow = Flow(2)
    flow.read(0, 200, b"mover")  # back in lane 0 after a time in lane 1
    flow.read(1, 100, b"mover")
    assert flow.released() == [(1, 0)]
    flow.all_through(1)
    assert flow.released() == [(0, 0)]


def test_nothing_is_released_before_all_lanes_are_known() -> None:
    order, lane = Order(lambda: 0), Lane(TOPIC, 0, 0, 0)
    order.add(lane)
    lane.read.append(Message(TOPIC, 0, 0))
    order.release()
    assert not lane.queue
    order.begin()
    order.release()
    assert lane.queue


def test_a_producers_own_time_holds_nobody_up_and_keyless_records_none() -> None:
    flow = Flow(2)
    flow.read(0, 9_000_000_000_000, b"a", logged=False)
    flow.read(0, 1, b"a", logged=False)
    flow.read(1, 100, None)
    flow.read(0, 200, None)
    flow.lanes[1].end = 2
    assert flow.released() == [(0, 0), (0, 1), (1, 0)]
    assert not flow.order.draining


def test_so_many_owners_are_remembered_and_then_everything_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 3)
    flow = Flow(1)
    for number in range(5):
        flow.read(0, number + 1, b"%d" % number)
    assert flow.released() == [(0, 0), (0, 1), (0, 2)]
    flow.all_through(3)
    assert flow.released() == [(0, 3), (0, 4)]


def test_an_open_transaction_holds_up_its_own_partition_only() -> None:
    flow = Flow(2)
    stuck = flow.lanes[0]
    stuck.note(5)
    flow.read(1, 100, b"a")
    assert flow.released() == []  # five records might be on their way
    stuck.ended = stuck.reached  # Kafka says that nothing can be read
    stuck.note(5)
    stuck.pass_markers()
    assert flow.released() == [(1, 0)]
    stuck.note(7)  # two more behind it: perhaps it is done
    flow.read(1, 200, b"a")
    assert flow.released() == []
    stuck.pass_markers()
    assert flow.released() == []  # they were there only after the last look
    stuck.note(7)
    stuck.pass_markers()
    assert flow.released() == [(1, 1)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=40),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40),
)
def test_each_owner_is_applied_in_the_order_of_the_log(
    log: list[tuple[int, int]], reads: list[tuple[int, int]]
) -> None:
    """Whatever partition each record went to, and however the partitions are read."""
    flow = Flow(3)
    waiting: list[list[tuple[int, bytes]]] = [[], [], []]
    for at, (partition, owner) in enumerate(log):
        waiting[partition].append((at + 1, b"%d" % owner))
    for lane, records in zip(flow.lanes, waiting, strict=True):
        lane.end = len(records)
    applied: list[tuple[int, bytes]] = []
    for partition, count in [*reads, *[(0, 40), (1, 40), (2, 40)] * 2]:
        for append_ms, key in waiting[partition][:count]:
            flow.read(partition, append_ms, key)
        del waiting[partition][:count]
        while True:
            flow.order.release()
            # The last lane first: an order between lanes is only kept by what is not released.
            taken = [message for lane in reversed(flow.lanes) for message in lane.queue]
            if not taken:
                break
            for lane in flow.lanes:
                lane.queue.clear()
            applied += [(message.append_ms, message.keyed) for message in taken]
            flow.all_through(len(taken))
    assert len(applied) == len(log)
    for name in {of for _, of in applied}:
        times = [append_ms for append_ms, of in applied if of == name]
        assert times == sorted(times)
