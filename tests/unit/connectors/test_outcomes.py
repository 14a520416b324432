"""Outcomes find whoever waits for them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors import calls
from recallflow.connectors.calls import LocalCalls
from recallflow.connectors.kafka.messages import SOURCE_HEADER
from recallflow.connectors.kafka.service import EARLY_MOST, Expected, ExpectedOutcomes
from recallflow.errors import SourceError
from recallflow.records import Position

KEYS = (b"acme/ann", b"acme/bob")
OURS, OTHERS = 4, 3


class Output(NamedTuple):
    """An output of the engine's, of a record at a position; the sender of that gave it a header of the same name."""

    of: bytes
    position: Position

    def key(self) -> bytes:
        return self.of

    def headers(self) -> Any:
        return [(SOURCE_HEADER, b"forged"), (SOURCE_HEADER, str(self.position).encode())]


def at(number: int) -> Position:
    return Position("query.events", 0, number)


class Caller:
    def __init__(self, outcomes: ExpectedOutcomes, number: int) -> None:
        self.key, self.position = KEYS[number % len(KEYS)], at(number)
        self.got: list[object] = []
        self.expected = Expected(self.key, self.got.append)
        self._outcomes = outcomes
        outcomes.expect(self.expected)

    @property
    def output(self) -> Output:
        return Output(self.key, self.position)

    def place(self) -> None:
        self._outcomes.place(self.expected, self.position)

    def drop(self) -> None:
        self._outcomes.drop(self.expected)


@given(st.permutations([*range(2 * OURS + OTHERS)]))
def test_news_may_come_in_any_order(order: list[int]) -> None:
    outcomes = ExpectedOutcomes()
    callers = [Caller(outcomes, number) for number in range(OURS)]
    outputs = [*(caller.output for caller in callers), *(Output(KEYS[0], at(100 + n)) for n in range(OTHERS))]
    for step in order:
        if step < OURS:
            callers[step].place()
        else:
            outcomes.receive(outputs[step - OURS])
    assert [caller.got for caller in callers] == [[caller.output] for caller in callers]
    for caller in callers:
        caller.drop()
    assert outcomes._by_key == {}


@given(st.permutations([*range(4)]))
def test_cancelled_waiter_leaves_nothing(order: list[int]) -> None:
    outcomes = ExpectedOutcomes()
    gone, there = Caller(outcomes, 0), Caller(outcomes, 2)
    gone.drop()
    steps: list[Callable[[], None]] = [
        gone.place,
        lambda: outcomes.receive(gone.output),
        there.place,
        lambda: outcomes.receive(there.output),
    ]
    for step in order:
        steps[step]()
    assert (gone.got, there.got) == ([], [there.output])
    there.drop()
    assert outcomes._by_key == {}


def test_early_outputs_are_kept_up_to_a_bound() -> None:
    outcomes = ExpectedOutcomes()
    caller = Caller(outcomes, 0)
    for number in range(10 * EARLY_MOST):
        outcomes.receive(Output(caller.key, at(1_000 + number)))
    outcomes.receive(caller.output)
    [of_key] = outcomes._by_key.values()
    assert len(of_key.early) == EARLY_MOST
    caller.place()
    assert caller.got == [caller.output]


@pytest.mark.parametrize("placed", [True, False])
def test_failed_reader_fails_placed_records(placed: bool) -> None:
    outcomes, error = ExpectedOutcomes(), RuntimeError("gone")
    caller = Caller(outcomes, 0)
    if placed:
        caller.place()
    outcomes.fail_all(error)
    assert caller.got == ([error] if placed else [])
    caller.drop()
    assert outcomes._by_key == {}


TOPICS = ("events", "queries")


@pytest.mark.parametrize("topic", TOPICS)
def test_abandoned_calls_keep_the_queue_bounded(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    monkeypatch.setattr(calls, "QUEUED_MAX", 5)
    put = LocalCalls(*TOPICS, clock_ms=lambda: 1)
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
    put = LocalCalls(*TOPICS, clock_ms=lambda: 1)
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
    put = LocalCalls(*TOPICS, clock_ms=lambda: 1)
    put.begin(dict.fromkeys(TOPICS, 0))
    with ExitStack() as open_calls:
        for _ in range(2):
            open_calls.enter_context(put.put("events", "noisy", b"{}", ()))
        with pytest.raises(SourceError), put.put("events", "noisy", b"{}", ()):
            pass
        open_calls.enter_context(put.put("events", "quiet", b"{}", ()))
