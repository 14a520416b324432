"""Brokers that stop, and a network that is cut between an engine and its brokers."""

import time
from collections.abc import Iterator

import pytest

from benchmarks.broker import Broker
from tests.faults.conftest import MakeEngine
from tests.faults.wire import Wire
from tests.fleet.checker import check, settled
from tests.fleet.engine import Engine, Topics
from tests.fleet.records import Log, Reader

STOP_S = 10  # a stop without brokers; a slow machine adds to it
COUNTERS = ("recallflow_dead_letters_total", "recallflow_responses_total", "recallflow_misrouted_records_total")
MANY = 2_000


@pytest.fixture
def topics(own_broker: Broker) -> Topics:
    made = Topics(own_broker)
    made.make()
    return made


@pytest.fixture
def wire(own_broker: Broker) -> Iterator[Wire]:
    with Wire(own_broker) as wire:
        yield wire


def test_an_outage_is_reported_and_survived(
    own_broker: Broker, engine: Engine, log: Log, reader: Reader, make_engine: MakeEngine
) -> None:
    """Another engine is stopped during the outage, and cannot be started."""
    others = Topics(own_broker)
    others.make(1)
    other = make_engine(others, name="other")
    engine.start()
    other.up()
    engine.await_ready()
    begun = engine.metrics()
    assert begun["recallflow_connected"] == 1
    for name in COUNTERS:
        assert any(sample.startswith(name) for sample in begun), name
    log.talk(5)
    assert reader.until(lambda: settled(log, reader))

    own_broker.stop(hard=True)
    engine.until(lambda: engine.metrics()["recallflow_connected"] == 0, "disconnected")
    engine.until(lambda: engine.probe("/readyz") == 503, "not ready")
    assert engine.probe("/livez") == 200
    log.tell("ann", content="meanwhile")
    log.ask("ann", "user.stats")
    other.until(lambda: other.probe("/readyz") == 503, "not ready")
    began_s = time.monotonic()
    ended = other.stop()
    assert (ended.code in (0, 1), ended.plain) == (True, True), ended
    assert len(ended.said.splitlines()) < 30, ended.said
    assert time.monotonic() - began_s < 3 * STOP_S
    started = other.ends()
    assert (started.code, started.plain) == (1, True), started
    assert own_broker.bootstrap_servers in started.error

    own_broker.start()
    log.flush()
    engine.await_ready()
    assert engine.metrics()["recallflow_connected"] == 1
    log.talk(5)
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found
    assert engine.stop().code == 0


def test_answers_after_a_cut_warn_until_caught_up(
    wire: Wire, topics: Topics, log: Log, reader: Reader, make_engine: MakeEngine
) -> None:
    engine = make_engine(wire.through(topics))
    reader.alive = engine.running
    engine.up()
    log.talk(10, owners=5)
    assert reader.until(lambda: settled(log, reader))
    wire.cut()
    engine.until(lambda: engine.probe("/readyz") == 503, "cut off")
    for number in range(MANY):
        log.tell(f"user{number % 5}", content=f"harbour {number}", receipt=False).wants = [frozenset()]
    early = [log.ask(f"user{number}", "user.stats") for number in range(5)]
    log.flush()
    wire.mend()
    engine.await_ready()
    late = log.ask("user1", "user.stats")
    log.flush()
    whole = len(log.minds.of("user1").memories)
    warned = 0
    for sent in early:
        body = reader.answer(sent.query_id)
        codes = [warning["code"] for warning in body["warnings"]]
        assert body["stats"]["memories"] == whole or "catching_up" in codes, body
        warned += "catching_up" in codes
    assert warned
    body = reader.answer(late.query_id)
    assert (body["status"], body["stats"]["memories"]) == ("ok", whole)
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
