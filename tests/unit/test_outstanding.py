"""Pending queries of a Kafka client."""

import pytest

from recallflow import CatchingUp, UsageError
from recallflow.client.kafka import Outstanding, Pending
from recallflow.responses import ErrorBody, Response
from recallflow.verbs.results import new_future, resolve


def test_second_query_with_pending_id_is_refused() -> None:
    outstanding = Outstanding()
    first = Pending("q", b"acme/ann", 1.0, 0.0)
    outstanding.add(first)
    with pytest.raises(UsageError):
        outstanding.add(Pending("q", b"acme/ann", 1.0, 0.0))
    outstanding.add(Pending("q", b"acme/bob", 1.0, 0.0))  # another user's query
    assert outstanding.pop(b"acme/ann", "q") is first
    outstanding.add(Pending("q", b"acme/ann", 1.0, 0.0))  # answered, so the id is free


def test_catching_up_error_is_an_exception_of_its_own() -> None:
    asked = new_future()
    resolve(asked, Response(query_id="q", status="error", error=ErrorBody(code="catching_up", message="ask again")))
    with pytest.raises(CatchingUp):
        asked.result()
