"""How far a partition is said to be: whatever is open is never done, and nothing goes back, however often it changes
hands."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.delivery import Sent
from recallflow.connectors.kafka.group_consumer import Committed
from recallflow.connectors.kafka.messages import Identity
from recallflow.connectors.kafka.order import Lane, RoundRobinQueue
from recallflow.connectors.kafka.owned import Given, OwnedSource, lane_at, reached
from recallflow.connectors.kafka.place import Place, Reached, Tails
from recallflow.flows import ownership
from recallflow.flows.ownership import Ownership
from recallflow.flows.topics import Topics
from recallflow.outputs import Marked
from tests.unit.connectors.fake_consumer import Message

TOPICS = Topics()
MEMORIES, QUERIES = f"{TOPICS.memory}:0", f"{TOPICS.queries}:0"
BEGIN: Tails = {"responses": {0: 3}}


class Life:
    """One process that has the partition, from a place on."""

    def __init__(self, place: Place, memories: int, tenants: Sequence[int], sent: set[Identity] | None = None) -> None:
        self.memories = lane_at(TOPICS.memory, 0, place.memory, memories)
        self.queries = lane_at(TOPICS.queries, 0, place.queries, len(tenants))
        self.queries.queue = RoundRobinQueue(place.queries.ahead)
        _read(self.memories, [0] * memories)
        _read(self.queries, tenants)
        self.open: set[int] = set()
        self.tails: Tails = BEGIN
        self.committed: dict[int, Committed] = {}
        self.marks = 0
        self.folders = Mock(first_offset=lambda _, place: place.memory.first, open=lambda _: "")
        self.sent = Sent()
        self.sent.learn(0, sent or set())
        self.source = Mock(spec=OwnedSource, stopping=threading.Event(), given=lambda *_: self._given)
        made = Ownership(
            KafkaOptions("nowhere:1"),
            (TOPICS.memory, TOPICS.queries),
            self.folders,
            self.source,
            self.sent,
            Mock(),
            self._commit,
            lambda _: next(self.accepted),
            first_places=lambda _: {0: place},
            deployment="d",
        )
        made._places[0], made._tails[0] = place, place.tails
        made._handed[0] = threading.Event()
        self.ownership = made
        self.accepted: Iterator[bool] = iter(())

    def ask(self, count: int) -> None:
        """So many queries are given; those that an earlier life was through with are silent."""
        while count and self.queries.queue:
            offset = self.queries.take().offset()
            if not self.queries.was_given(offset):
                self.open.add(offset)
            count -= 1

    def remember(self, count: int) -> None:
        while count and self.memories.queue:
            self.memories.take()
            count -= 1

    def mark(self, held: int = 0, *, last: bool = False) -> Place:
        """A mark at which the last memories given are `held`."""
        self._given = Given(reached(self.memories), reached(self.queries), self.tails, 70)
        first = max(self.memories.next_offset - held, 0)
        still = {MEMORIES: tuple(range(first, self.memories.next_offset)), QUERIES: tuple(sorted(self.open))}
        self.sent.pass_mark(0, self.marks)
        self.ownership.marked([Marked(0, self.marks, still, last, lambda: True)])
        self.marks += 1
        return self.ownership._places[0]

    def _commit(self, places: Mapping[int, Committed]) -> None:
        self.committed |= places


def _read(lane: Lane, tenants: Sequence[int]) -> None:
    for offset in range(lane.next_offset, len(tenants)):
        lane.queue.append(Message(lane.topic, 0, offset, keyed=b"%d/ann" % tenants[offset], append_ms=offset + 1))


STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=12)


@given(st.lists(st.integers(0, 3), max_size=14), st.integers(0, 14), STEPS, st.randoms(use_true_random=False))
def test_whatever_is_open_is_never_done_and_nothing_goes_back(
    tenants: list[int], memories: int, steps: list[tuple[int, int, int, bool]], draw: Random
) -> None:
    place = Place(Reached(0), Reached(0), 1, BEGIN)
    life = Life(place, memories, tenants)
    answered: set[int] = set()
    done: set[int] = set()
    for asked, remembered, held, dies in steps:
        life.ask(asked)
        life.remember(remembered)
        through = {offset for offset in sorted(life.open) if draw.random() < 0.6}
        life.open -= through
        answered |= through
        applied_before = place.memory.next_offset
        place = life.mark(min(held, remembered))
        found = {offset for offset in range(len(tenants)) if place.queries.is_done(offset)}
        assert found == answered
        assert done <= found
        done = found
        assert place.memory.next_offset >= applied_before
        assert place.memory.next_offset <= life.memories.next_offset
        assert Place.decode(life.committed[0].text) == place
        if dies:  # with whatever it did since the mark, which the tails tell
            life.ask(2)
            life = Life(Place.decode(life.committed[0].text), memories, tenants)


def test_what_is_held_is_not_applied_and_is_read_again() -> None:
    life = Life(Place(Reached(0), Reached(0), 1), 5, [])
    life.remember(5)
    assert life.mark(held=2).memory == Reached(3, 5)
    assert life.mark().memory.next_offset == 5


def test_a_partition_that_is_given_up_whole_is_clean() -> None:
    life = Life(Place(Reached(0), Reached(0), 1, BEGIN), 2, [0, 0])
    life.remember(2)
    life.ask(2)
    place = life.mark(last=True)
    assert place.clean
    assert place.queries.open == (0, 1)  # which nothing was sent for
    assert life.committed == {}  # the membership commits it as it lets go
    assert life.ownership._handed[0].is_set()


def test_queries_are_counted_from_where_the_group_was_told_before_any_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed before the group keeps the first place leaves nobody that would know of queries asked meanwhile."""
    place = Place(Reached(0), Reached(0), 1)
    life = Life(place, 0, [])
    del life.ownership._places[0]
    monkeypatch.setattr(ownership, "TopicReader", MagicMock())
    monkeypatch.setattr(life.ownership, "_known", lambda *_: None)
    monkeypatch.setattr(life.ownership, "_open", lambda *_: opened.append("open"))
    monkeypatch.setattr(life.ownership, "_sent_before", lambda *_: {})
    opened: list[str] = []

    def accepted() -> Iterator[bool]:
        for taken in (False, False, True):
            opened.append("asked")
            assert life.committed.keys() == {0}
            yield taken

    life.accepted = accepted()
    life.ownership.gain({0: None})
    life.ownership._moving.shutdown()
    assert opened == ["asked", "asked", "asked", "open"]
    assert life.ownership.failure() is None


def test_a_partition_is_not_given_up_while_anything_of_it_is_under_way() -> None:
    life = Life(Place(Reached(0), Reached(0), 1, BEGIN), 0, [])
    life.ownership._handed[0] = slow = Mock(spec=threading.Event, **{"wait.side_effect": [False, False, True]})
    assert life.ownership.give_up([0]).keys() == {0}
    assert slow.wait.call_count == 3


def test_tails_stay_where_what_was_sent_before_is_still_to_come() -> None:
    """Whoever comes next looks for it as well."""
    life = Life(Place(Reached(0), Reached(0), 1, BEGIN, at_ms=5), 0, [0, 0], {(b"%s:1" % QUERIES.encode(), b"0")})
    life.tails = {"responses": {0: 9}}
    life.ask(2)
    assert (life.mark().tails, life.mark().at_ms) == (BEGIN, 5)
    assert not life.mark(last=True).clean
    assert life.sent.claim((f"{QUERIES}:1".encode(), b"0"))
    life.open.clear()
    place = life.mark()
    assert (place.tails, place.at_ms) == ({"responses": {0: 9}}, 70)


def test_empty_partitions_that_come_together_are_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = MagicMock()
    reader.return_value.__enter__.return_value.span = lambda _, number: (0, 5 if number == 3 else 0)
    monkeypatch.setattr(ownership, "TopicReader", reader)
    life = Life(Place(Reached(0), Reached(0), 1, BEGIN), 0, [])
    monkeypatch.setattr(life.ownership, "_known", lambda *_: Place(Reached(0), Reached(0), 1, BEGIN))
    monkeypatch.setattr(life.ownership, "_sent_before", lambda *_: {})
    with caplog.at_level(logging.INFO):
        life.ownership.gain(dict.fromkeys(range(16)))
        life.ownership._moving.shutdown()
    assert life.ownership.failure() is None
    assert life.source.own.call_count == 16
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0] for line in lines] == [
        "partition 3 is ours",
        "15 partitions are ours, and empty: 0-2,4-15",
    ]
