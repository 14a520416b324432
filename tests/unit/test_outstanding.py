"""Pending queries of a Kafka client."""

import pytest

from recallflow import UsageError
from recallflow.client.outstanding import Outstanding, Pending


def test_second_query_with_pending_id_is_refused() -> None:
    outstanding = Outstanding()
    first = Pending("q", b"acme/ann", 1.0, 0.0)
    outstanding.add(first)
    with pytest.raises(UsageError):
        outstanding.add(Pending("q", b"acme/ann", 1.0, 0.0))
    outstanding.add(Pending("q", b"acme/bob", 1.0, 0.0))  # another user's query
    assert outstanding.pop(b"acme/ann", "q") is first
    outstanding.add(Pending("q", b"acme/ann", 1.0, 0.0))  # answered, so the id is free
