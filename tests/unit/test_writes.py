"""A client's memory of its own writes."""

from contextlib import closing
from typing import cast

import pytest

from recallflow import RecallClient
from recallflow.brokers import exchange
from recallflow.client import kafka
from recallflow.client.kafka import KafkaVerbs, OwnWrites
from recallflow.records import Position
from recallflow.verbs.results import new_future


def at(offset: int, partition: int = 0) -> Position:
    return Position("memory.events", partition, offset)


def test_last_write_is_known_in_any_acknowledgement_order() -> None:
    known = OwnWrites()
    assert known.last("ann") is None
    for offset in (3, 5, 4):
        known.note("ann", at(offset))
    known.note("bob", at(9))
    assert (known.last("ann"), known.last("bob")) == (at(5), at(9))
    known.note("ann", at(1, partition=2))  # the topic was made anew, or has grown
    assert known.last("ann") == at(1, partition=2)


def test_only_the_latest_users_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "USERS_MAX", 2)
    known = OwnWrites()
    for number, user in enumerate(["ann", "bob", "ann", "cid"]):
        known.note(user, at(number))
    assert [known.last(user) for user in ("ann", "bob", "cid")] == [at(2), None, at(3)]


def test_a_write_is_known_before_its_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, is_on = new_future(), list[bool]()
    monkeypatch.setattr(exchange, "METADATA_S", 0.01)  # no broker is there
    with closing(RecallClient("127.0.0.1:1", "acme")) as client:
        verbs = cast(KafkaVerbs, client._verbs)
        monkeypatch.setattr(verbs, "_send", lambda *_: sent)
        note = OwnWrites.note

        def looked(known: OwnWrites, user: str, position: Position) -> Position:
            is_on.append(put.done())
            return note(known, user, position)

        monkeypatch.setattr(OwnWrites, "note", looked)
        put = verbs.forget("m1", user="ann")
        sent.set_result(at(3))
        assert (is_on, put.result(), verbs._written("ann")) == ([False], at(3), at(3))
