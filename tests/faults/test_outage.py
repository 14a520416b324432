"""Brokers that stop."""

import time

import pytest

from benchmarks.broker import Broker
from tests.faults.conftest import MakeEngine
from tests.fleet.checker import check, settled
from tests.fleet.engine import Engine, Topics
from tests.fleet.records import Log, Reader

STOP_S = 10  # a stop without brokers; a slow machine adds to it
COUNTERS = ("recallflow_dead_letters_total", "recallflow_responses_total", "recallflow_misrouted_records_total")


@pytest.fixture
def topics(own_broker: Broker) -> Topics:
    made = Topics(own_broker)
    made.make()
    return made


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
