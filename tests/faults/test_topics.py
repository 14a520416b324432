"""Topics that grow, are made anew, forget, or that others write into."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import LETTER, NOTHING, RECEIPT, Log
from benchmarks.torture.reader import FOREIGN, Reader
from benchmarks.torture.topics import OUTPUTS, Topics


def work(log: Log, reader: Reader, count: int = 30) -> None:
    for number in range(count):
        told = log.tell(f"user{number % 9}", content=f"walnut {log.number()}")
        log.tell(f"user{number % 9}", "memory.update", memory_id=told.query_id, content=f"harbour {log.number()}")
        log.ask(f"user{number % 9}", "recall", query="walnut")
    log.flush()
    assert reader.until(lambda: settled(log, reader))


def test_partitions_added_while_it_runs_are_read_from_their_beginning(
    engine: Engine, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    work(log, reader)
    for partitions in (3, 5):
        topics.grow("memory", partitions)
        topics.grow("query", partitions)
        log.renew()
        work(log, reader)
    told = {sent.position.rsplit(":", 1)[0] for sent in log.sent}
    assert {f"{topics.of(kind)}:{n}" for kind in ("memory", "query") for n in range(5)} <= told
    found = check(log, reader)
    assert found.clean(), found
    assert any("partition" in line for line in engine.said().splitlines())
    assert any("partition" in name and value for name, value in engine.metrics().items() if "added" in name)
    assert engine.stop().code == 0
    engine.up()
    work(log, reader)
    assert check(log, reader).clean()


def make_anew(topics: Topics, kind: str, log: Log) -> None:
    """Deletes a topic, makes it again, and writes into it what nobody is owed an answer to."""
    topics.remake(kind, 2)
    log.renew()
    for number in range(60):
        event = {"type": "message", "tenant_id": "acme", "user_id": f"u{number}", "content": "anew", "id": f"n{number}"}
        log.event(kind, event, [NOTHING, RECEIPT, LETTER])
    log.flush()


@pytest.mark.parametrize("kind", ["memory", "query"])
def test_a_topic_made_anew_is_not_read_on(engine: Engine, log: Log, reader: Reader, topics: Topics, kind: str) -> None:
    engine.up()
    work(log, reader, 10)
    assert engine.stop().code == 0
    make_anew(topics, kind, log)
    ended = engine.ends()
    assert ended.code == 1, ended
    assert ended.plain, ended
    assert topics.of(kind) in ended.error


@pytest.mark.parametrize("kind", ["memory", "query"])
def test_a_topic_made_anew_under_a_running_engine_is_not_read_on(
    engine: Engine, log: Log, reader: Reader, topics: Topics, kind: str
) -> None:
    engine.up()
    work(log, reader, 10)
    make_anew(topics, kind, log)
    ended = engine.ended()
    assert ended.code == 1, ended
    assert ended.plain, ended
    assert topics.of(kind) in ended.error
    asked = {output.answers for output in reader.drain() if output.kind == "response"}
    assert asked <= {sent.query_id for sent in log.of(["query"])}


def test_a_checkpoint_from_before_what_the_outputs_hold_repeats_nothing(
    engine: Engine, log: Log, reader: Reader, topics: Topics, tmp_path: Path
) -> None:
    engine.up()
    work(log, reader, 10)
    assert engine.stop().code == 0
    assert engine.state("checkpoint", tmp_path / "checkpoint").code == 0
    engine.up()
    work(log, reader, 10)
    assert engine.stop().code == 0
    for kind in OUTPUTS:
        topics.forget_records(kind)
    engine.state_dir.rename(tmp_path / "lost")
    restored = engine.state("restore", tmp_path / "checkpoint")
    assert restored.code == 0, restored
    engine.up()
    asked = log.ask("user1", "user.stats")
    log.flush()
    assert reader.answer(asked.query_id)["stats"]["memories"] == len(log.minds.of("user1").memories)
    work(log, reader, 10)
    outputs = [(output.kind, output.answers) for output in reader.drain()]
    assert len(outputs) == len(set(outputs))


def test_somebody_s_open_transaction_hides_nothing_that_was_sent(
    engine: Engine, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    settings = {"bootstrap.servers": topics.cluster.bootstrap_servers, "transactional.id": topics.suffix}
    foreign = Producer(settings | {"transaction.timeout.ms": 60_000})
    foreign.init_transactions(30)
    foreign.begin_transaction()
    for kind in OUTPUTS:
        for number in topics.bounds(kind):
            foreign.produce(topics.of(kind), b"not ours", FOREIGN, number)
    foreign.flush(30)
    work(log, reader, 10)
    engine.kill()
    engine.up()
    work(log, reader, 10)
    foreign.abort_transaction(30)
    found = check(log, reader)
    assert found.clean(), found


def test_what_the_guarantees_rest_on_cannot_be_set(bare: Topics, make_engine: Callable[..., Engine]) -> None:
    for option in ("isolation.level=read_committed", "delivery.timeout.ms=1000", "group.instance.id=mine"):
        ended = make_engine(bare).ends("-X", option)
        assert ended.code == 2, ended
        assert option.partition("=")[0] in ended.error
