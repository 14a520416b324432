"""What a client remembers of its own writes."""

import pytest

from recallflow.client import writes
from recallflow.client.writes import Writes
from recallflow.errors import DeliveryFailed
from recallflow.records import Position
from recallflow.verbs.futures import new_future


def at(offset: int, partition: int = 0) -> Position:
    return Position("memory.events", partition, offset)


def noted(known: Writes, user: str, outcome: Position | DeliveryFailed) -> None:
    sent = new_future()
    if isinstance(outcome, Position):
        sent.set_result(outcome)
    else:
        sent.set_exception(outcome)
    known.note(user, sent)


def test_the_last_write_of_a_user_is_known_in_whatever_order_they_are_acknowledged() -> None:
    known = Writes()
    assert known.last("ann") is None
    for offset in (3, 5, 4):
        noted(known, "ann", at(offset))
    noted(known, "bob", at(9))
    noted(known, "ann", DeliveryFailed("gone"))
    assert (known.last("ann"), known.last("bob")) == (at(5), at(9))
    noted(known, "ann", at(1, partition=2))  # the topic was made anew, or has grown
    assert known.last("ann") == at(1, partition=2)


def test_only_the_latest_users_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "USERS_MAX", 2)
    known = Writes()
    for number, user in enumerate(["ann", "bob", "ann", "cid"]):
        noted(known, user, at(number))
    assert [known.last(user) for user in ("ann", "bob", "cid")] == [at(2), None, at(3)]
