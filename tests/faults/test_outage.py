"""Brokers that go away: it says so, waits, ends when it is told to, and goes on."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import orjson
import pytest

from benchmarks.broker import Broker
from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics

PROMISED_S = 10  # a stop without a broker; the machine's own slowness comes on top
COUNTERS = ("recallflow_dead_letters_total", "recallflow_responses_total", "recallflow_misplaced_records_total")


@pytest.fixture
def own() -> Iterator[Broker]:
    """A broker that may be stopped."""
    with Broker() as broker:
        yield broker


def test_an_outage_shows_and_passes(own: Broker, make_engine: Callable[..., Engine]) -> None:
    topics = Topics(own)
    topics.make()
    log, engine = Log(topics), make_engine(topics)
    with closing(Reader(topics)) as reader:
        engine.up()
        begun = engine.metrics()
        assert begun["recallflow_connected"] == 1
        for name in COUNTERS:
            assert any(sample.startswith(name) for sample in begun), f"{name} is not there from the start"
        log.tell("ann", content="before")
        log.flush()
        assert reader.until(lambda: settled(log, reader))
        own.stop(hard=True)
        engine.until(lambda: engine.metrics()["recallflow_connected"] == 0, "seen to be cut off")
        engine.until(lambda: engine.probe("/readyz") == 503, "not ready")
        assert engine.probe("/livez") == 200
        log.tell("ann", content="meanwhile")
        log.ask("ann", "user.stats")
        own.start()
        log.flush()
        engine.await_ready()
        assert engine.metrics()["recallflow_connected"] == 1
        assert reader.until(lambda: settled(log, reader))

        own.stop(hard=True)
        engine.until(lambda: engine.probe("/readyz") == 503, "not ready")
        began = time.monotonic()
        ended = engine.stop()
        assert ended.code in (0, 1), ended
        assert ended.plain, ended
        assert time.monotonic() - began < 3 * PROMISED_S
        started = engine.ends()
        assert started.code == 1, started
        assert started.plain, started
        assert own.bootstrap_servers in started.error
        own.start()
        log.tell("ann", content="after")
        log.flush()
        engine.up()
        assert reader.until(lambda: settled(log, reader))
        found = check(log, reader)
        assert found.clean(), found


def test_a_start_says_what_it_found_and_a_log_can_be_read_by_machines(
    topics: Topics, log: Log, reader: Reader, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(topics, "--log-format", "json")
    for _ in range(2):
        engine.up()
        log.tell("ann", content="a walnut")
        log.flush()
        assert reader.until(lambda: settled(log, reader))
        assert engine.stop().code == 0
    lines = [orjson.loads(line) for line in engine.said().splitlines()]
    assert lines
    assert all(line.get("time") and line.get("level") for line in lines), lines
    said = " ".join(map(str, lines))
    for word in (topics.of("memory"), topics.of("query"), "owners", "memories", "ready"):
        assert word in said, f"the start does not say {word}"
