"""Readiness and answers of an engine that has not applied all of the log yet."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from benchmarks.fleet.engine import Engine, Topics
from benchmarks.fleet.records import Log, Reader

GIVE_UP_S = 60.0
MANY = 2_000


@pytest.fixture
def topics(broker: Cluster) -> Topics:
    made = Topics(broker)
    made.make(1)
    return made


@pytest.fixture
def engine(topics: Topics, tmp_path: Path) -> Iterator[Engine]:
    with Engine(topics, tmp_path, "--epoch-ms", "100") as made:
        yield made


def remember(topics: Topics, numbers: range, **options: str) -> Producer:
    """Send memories, in a transaction if the options name one; the caller ends it."""
    producer = Producer({"bootstrap.servers": topics.cluster.bootstrap_servers, **options})
    if options:
        producer.init_transactions(GIVE_UP_S)
        producer.begin_transaction()
    for number in numbers:
        event = {"type": "memory", "tenant_id": "acme", "user_id": "ann", "id": f"m{number}", "content": "a bike"}
        producer.produce(topics.of("memory"), orjson.dumps(event), b"acme/ann")
        producer.poll(0)
    assert producer.flush(GIVE_UP_S) == 0
    return producer


def codes(answer: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in answer.get("warnings", [])]


def ready(engine: Engine, statuses: set[int]) -> bool:
    statuses.add(engine.probe("/readyz"))
    return 200 in statuses


def test_answers_warn_until_the_engine_is_ready(engine: Engine, topics: Topics) -> None:
    engine.up()
    assert engine.stop().code == 0
    remember(topics, range(MANY))
    log = Log(topics)
    early = [log.ask("ann", "memory.get", memory_id=name) for name in (f"m{MANY - 1}", "m0")]
    log.flush()
    statuses: set[int] = set()
    engine.start()
    with closing(Reader(topics)) as reader:
        engine.until(lambda: ready(engine, statuses), "ready")
        assert 503 in statuses
        for sent in early:
            answer = reader.answer(sent.query_id)
            if answer["status"] == "error" or codes(answer):
                assert codes(answer) == ["catching_up"]
                assert answer["status"] in ("error", "degraded")
        late = log.ask("ann", "memory.get", memory_id=f"m{MANY - 1}")
        log.flush()
        answer = reader.answer(late.query_id)
        assert (answer["status"], codes(answer)) == ("ok", [])
    engine.until(lambda: f"{MANY:,} records caught up" in engine.said(), "reporting the records")
    assert engine.stop().code == 0


def test_aborted_records_delay_no_readiness(engine: Engine, topics: Topics) -> None:
    """The log ends with an aborted transaction and its marker. The engine may serve before it has caught up."""
    remember(topics, range(3))
    remember(topics, range(3, 8), **{"transactional.id": uuid.uuid4().hex}).abort_transaction(GIVE_UP_S)
    engine.up("--serve-while-catching-up")
    lag = f'recallflow_consumer_lag_records{{partition="0",topic="{topics.of("memory")}"}}'
    engine.until(lambda: engine.metrics().get(lag) == 0, "at the end of the log")  # the metric lags by a second
    assert engine.metrics()["recallflow_connected"] == 1
    assert engine.metrics()["recallflow_memories"] == 3
