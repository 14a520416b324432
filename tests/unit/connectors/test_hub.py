"""The order of service, and what ends a rest."""

import threading
from collections.abc import Callable, Iterator

import pytest

from recallflow.connectors.kafka.hub import Hub
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.connectors.kafka.order import Order
from recallflow.errors import SourceError
from recallflow.operators.async_call import Completion, Completions

NOWHERE = KafkaOptions("127.0.0.1:1", {"log_level": "0"})


class Told(threading.Event):
    """An event that remembers what each wait for it came to: True where it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(super().wait(timeout))
        return self.waits[-1]


@pytest.fixture
def make_hub() -> Iterator[Callable[..., Hub]]:
    """A hub of one part, whose readers read nothing."""
    made: list[Hub] = []

    def make(*arguments: object) -> Hub:
        made.append(Hub(NOWHERE, lambda: 0, Order(lambda: 0), *arguments))  # type: ignore[arg-type]
        made[-1].join()
        return made[-1]

    yield make
    for hub in made:
        hub.leave()


def test_a_completion_ends_the_rest(make_hub: Callable[..., Hub]) -> None:
    wake = Told()
    completions = Completions(wake)
    hub = make_hub(wake)
    finished = Completion(step=0, key="000", call=7)
    completions.put(finished)
    hub.begin("00000")
    hub.rest("00000")
    assert wake.waits == [True]  # it waited for this very event, and found it set
    assert not wake.is_set()  # cleared before anybody looks, so that the next completion wakes again
    assert completions.take() == [finished]


def test_without_news_a_rest_is_short(make_hub: Callable[..., Hub]) -> None:
    wake = Told()
    hub = make_hub(wake)
    hub.begin("00000")
    hub.rest("00000")
    assert wake.waits == [False]


def test_what_is_queued_is_not_rested_on(make_hub: Callable[..., Hub]) -> None:
    wake = Told()
    hub = make_hub(wake)
    hub.queries.add(("query.events", 0), 0, 0).queue.append("a record")
    hub.begin("00000")
    hub.rest("00000")
    assert wake.waits == []


def test_what_else_has_failed_stops_the_source(make_hub: Callable[..., Hub]) -> None:
    failed: list[SourceError] = []
    hub = make_hub(None, lambda: failed[0] if failed else None)
    hub.begin("00000")
    failed.append(SourceError("the control topic is gone"))
    with pytest.raises(SourceError, match="the control topic is gone"):
        hub.begin("00000")
