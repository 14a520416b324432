"""A network that is cut while engine and brokers live: who was cut off sends nothing more, and says what it missed."""

from collections.abc import Callable, Iterator

import pytest

from benchmarks.broker import Broker
from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics
from benchmarks.torture.wire import Wire

MANY = 6_000
Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def own() -> Iterator[Broker]:
    """A broker with a wire that may be cut."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def wire(own: Broker) -> Iterator[Wire]:
    with Wire(own) as wire:
        yield wire


@pytest.fixture
def topics(own: Broker) -> Topics:
    made = Topics(own)
    made.make()
    return made


def test_one_that_was_cut_off_beyond_its_session_sends_nothing_of_what_is_another_s(
    wire: Wire, topics: Topics, log: Log, reader: Reader, make_engine: Make
) -> None:
    first, second = make_engine(wire.through(topics), name="first"), make_engine(topics, name="second")
    reader.alive = second.running
    second.up()
    first.up()
    first.until(lambda: "is ours" in first.said(), "given its share")
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    seen = len(reader.outputs)
    log.talk(MANY // 4, owners=9)
    assert reader.until(lambda: len(reader.outputs) > seen)
    wire.cut()  # in the middle of its work: some outputs are with the client, not with the broker
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    wire.mend()
    while first.running() and "joining anew" not in first.said():
        reader.read()
    first.await_ready()
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
    ended = first.stop()
    assert (ended.code, ended.plain) == (0, True), ended
    assert second.stop().code == 0


def test_after_a_cut_answers_say_that_they_catch_up(
    wire: Wire, topics: Topics, log: Log, reader: Reader, make_engine: Make
) -> None:
    engine = make_engine(wire.through(topics))
    reader.alive = engine.running
    engine.up()
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    wire.cut()
    engine.until(lambda: engine.probe("/readyz") == 503, "seen to be cut off")
    for number in range(MANY):
        log.tell(f"user{number % 5}", content=f"harbour {number}", receipt=False).wants = [frozenset()]
    early = [log.ask(f"user{number}", "user.stats") for number in range(5)]
    log.flush()
    wire.mend()
    engine.await_ready()
    late = log.ask("user1", "user.stats")
    log.flush()
    whole = len(log.minds.of("user1").memories)
    for sent in early:
        body = reader.answer(sent.query_id)
        assert body["stats"]["memories"] == whole or "catching_up" in [w["code"] for w in body["warnings"]], body
    assert any(reader.answer(sent.query_id)["status"] == "degraded" for sent in early)
    body = reader.answer(late.query_id)
    assert (body["status"], body["stats"]["memories"]) == ("ok", whole)
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
