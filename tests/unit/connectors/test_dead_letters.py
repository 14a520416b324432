"""What counts as a dead letter of ours, whoever else writes into the topic."""

from typing import Any

import pytest

from recallflow.connectors.kafka.dead_letters import Letter
from recallflow.records import Position

OURS = [("error.code", b"invalid_event"), ("error.detail", b"no content"), ("error.source", b"memory.events:3:7")]


class Message:
    """A record of the dead-letter topic."""

    def __init__(self, headers: list[tuple[str, bytes]]) -> None:
        self._headers = headers

    def headers(self) -> Any:
        return self._headers

    def topic(self) -> str:
        return "dead.letters"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 5

    def key(self) -> bytes:
        return b"acme/ann"

    def value(self) -> bytes:
        return b"{"


def test_a_record_s_own_headers_stay_apart_whatever_their_names() -> None:
    own = [("error.code", b"of somebody else"), ("error.source", b"elsewhere:0:1")]
    letter = Letter.of(Message([*own, *OURS]))
    assert letter is not None
    assert letter.headers == tuple(own)
    assert letter.error["code"] == "invalid_event"
    assert letter.source == Position("memory.events", 3, 7)
    assert letter.missing == []


@pytest.mark.parametrize("source", [[], [("error.source", b"")], [("error.source", b"somewhere")]])
def test_a_foreign_record_with_an_error_code_is_no_letter(source: list[tuple[str, bytes]]) -> None:
    assert Letter.of(Message([("error.code", b"500"), *source])) is None
    assert Letter.of(Message([])) is None
