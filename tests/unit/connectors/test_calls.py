"""What is under way between callers and a dataflow in their process."""

from contextlib import ExitStack

import pytest

from recallflow.connectors import calls
from recallflow.connectors.calls import Calls
from recallflow.errors import SourceError

TOPICS = ("events", "queries")


@pytest.mark.parametrize("topic", TOPICS)
def test_abandoned_calls_keep_the_queue_bounded(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    monkeypatch.setattr(calls, "QUEUED_MAX", 5)
    put = Calls(*TOPICS, clock_ms=lambda: 1)
    put.begin(dict.fromkeys(TOPICS, 0))

    def give_up() -> None:
        with put.put(topic, "acme", b"{}", ()):
            pass

    for _ in range(5):
        give_up()
    with pytest.raises(SourceError, match="the engine is behind: 5 wait for it"):
        give_up()
    # An event was given its place, and is applied; a question that nobody waits for is not asked.
    taken = sum(len(put.take()) for _ in range(3))
    assert taken == (5 if topic == "events" else 0)
    give_up()


def test_tenant_with_few_records_is_next_among_many() -> None:
    put = Calls(*TOPICS, clock_ms=lambda: 1)
    put.begin(dict.fromkeys(TOPICS, 0))
    with ExitStack() as open_calls:
        noisy = [open_calls.enter_context(put.put("queries", "noisy", b"%d" % n, ())) for n in range(10)]
        assert [record.value for record in put.take()] == [b"0"]
        quiet = open_calls.enter_context(put.put("queries", "quiet", b"q", ()))
        assert [record.value for record in put.take()] == [b"q"]
        assert [record.value for record in put.take()] == [b"1"]
    positions = [call.record.position.offset for call in (noisy[0], quiet, noisy[1])]
    assert positions == [0, 1, 2]  # of the log, in which no record comes before one that was taken


def test_full_line_of_a_tenant_refuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "QUEUED_MAX", 2)
    put = Calls(*TOPICS, clock_ms=lambda: 1)
    put.begin(dict.fromkeys(TOPICS, 0))
    with ExitStack() as open_calls:
        for _ in range(2):
            open_calls.enter_context(put.put("events", "noisy", b"{}", ()))
        with pytest.raises(SourceError), put.put("events", "noisy", b"{}", ()):
            pass
        open_calls.enter_context(put.put("events", "quiet", b"{}", ()))
