"""What is under way between callers and a dataflow in their process."""

import pytest

from recallflow.connectors import calls
from recallflow.connectors.calls import Calls
from recallflow.errors import SourceError

TOPICS = ("events", "queries")


@pytest.mark.parametrize("topic", TOPICS)
def test_callers_that_give_up_leave_no_endless_queue_before_a_dataflow_that_stands(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(calls, "QUEUED_MAX", 5)
    put = Calls(*TOPICS, clock_ms=lambda: 1)
    put.begin(dict.fromkeys(TOPICS, 0))

    def give_up() -> None:
        with put.put(topic, b"{}", ()):
            pass

    for _ in range(5):
        give_up()
    with pytest.raises(SourceError, match="the engine is behind: 5 wait for it"):
        give_up()
    # An event was given its place, and is applied; a question that nobody waits for is not asked.
    assert len(put.take()) == (5 if topic == "events" else 0)
    give_up()
