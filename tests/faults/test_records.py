"""Records that no producer should send, and outputs larger than their topics take: nothing stops the flow."""

from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from recallflow.owner import partition_of
from tests.faults.conftest import MakeEngine
from tests.faults.raw_header import produce
from tests.fleet.checker import settled
from tests.fleet.engine import Topics
from tests.fleet.records import ANSWER, LETTER, RECEIPT, REFUSED_ANSWER, Log, Reader

GOOD = {"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "A walnut.", "receipt": True}
KEY = b"acme/ann"
YEAR_287168_MS = 9_000_000_000_000_000
CREATE_TIME = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
ABORT_S = 60.0


@pytest.fixture
def topics(bare: Topics) -> Topics:
    """Topics whose producers set the time of records."""
    bare.make(2, config={"memory": CREATE_TIME, "query": CREATE_TIME})
    return bare


def test_malformed_records_become_dead_letters_once(
    make_engine: MakeEngine, topics: Topics, log: Log, reader: Reader
) -> None:
    """After the kill the engine reads all of them again: it takes no snapshot before."""
    engine = make_engine(topics, "--sync-ms", "60000")
    reader.alive = engine.running
    engine.up()
    home = partition_of(KEY, 2)
    servers = topics.cluster.bootstrap_servers
    foreign = {("receipt", f"{topics.of('memory')}:{home}:0"), ("response", "raw")}
    produce(servers, topics.of("memory"), home, KEY, orjson.dumps(GOOD), (b"bad\xff\xfe", b"x"))
    produce(
        servers, topics.of("query"), home, KEY, orjson.dumps(GOOD | {"type": "user.stats", "id": "raw"}),
        (b"\xff", b"x"),
    )  # fmt: skip
    assert reader.until(lambda: foreign <= reader.seen)
    reader.outputs.clear()  # the log does not know of these two
    for number, at_ms in enumerate((YEAR_287168_MS, 253_402_300_800_000, 1, 2**62)):
        log.event("memory", GOOD | {"id": f"t{number}"}, [RECEIPT, LETTER], timestamp=at_ms, key=KEY)
    for number, key in enumerate((b"\xff\x00\xfe", b"", b"\xff" * 5_000)):
        how: dict[str, Any] = {
            "key": key, "headers": [("\u202e\x7f", b"\xff\x00"), ("", None)], "partition": number % 2,
        }  # fmt: skip
        log.event("memory", GOOD | {"id": f"k{number}"}, [RECEIPT], **how)
        log.event("query", GOOD | {"type": "user.stats", "id": f"kq{number}"}, [ANSWER], **how)
        log.raw("memory", b"{broken", **how)
        log.event("query", GOOD | {"type": "recall", "id": f"bad{number}"}, [REFUSED_ANSWER, ANSWER], **how)
    seconds = log.event("memory", GOOD | {"id": "s", "timestamp": 1_700_000_000}, [LETTER, RECEIPT], key=KEY)
    bom = log.raw("memory", b"\xef\xbb\xbf" + orjson.dumps(GOOD | {"id": "bom"}), (RECEIPT, LETTER), key=KEY)
    wide = log.raw("memory", orjson.dumps(GOOD).decode().encode("utf-16"), key=KEY)
    framed = log.raw("memory", b"\x00\x00\x00\x00\x07" + orjson.dumps(GOOD), key=KEY)
    nothing, empty = log.raw("memory", None, key=KEY), log.raw("memory", b"", key=KEY)
    log.flush()
    assert reader.until(lambda: settled(log, reader)), engine.said()
    assert "UTF-16" in reader.letter(wide.position).header("error.detail")
    assert "schema" in reader.letter(framed.position).header("error.detail").lower()
    assert (reader.letter(nothing.position).value, reader.letter(empty.position).value) == (None, b"")
    if ("dead-letter", seconds.position) in reader.seen:
        assert "second" in reader.letter(seconds.position).header("error.detail")
    if ("dead-letter", bom.position) in reader.seen:
        assert "byte order mark" in reader.letter(bom.position).header("error.detail").lower()
    assert "LogAppendTime" in engine.said()  # the remedy for topics with CreateTime
    engine.kill()
    engine.up()
    log.ask("ann", "user.stats")
    log.flush()
    assert reader.until(lambda: settled(log, reader))
    outputs = [(output.kind, output.answers) for output in reader.drain()]
    assert len(outputs) == len(set(outputs))
    assert engine.stop().code == 0


def test_aborted_records_delay_no_readiness(make_engine: MakeEngine, topics: Topics, log: Log) -> None:
    """The log ends with an aborted transaction and its marker. The engine may serve before it has caught up."""
    for number in range(3):
        log.tell("ann", content=f"walnut {number}")
    log.flush()
    ids = {"bootstrap.servers": topics.cluster.bootstrap_servers, "transactional.id": topics.suffix}
    aborting = Producer(ids)
    aborting.init_transactions(ABORT_S)
    aborting.begin_transaction()
    for number in range(5):
        aborting.produce(topics.of("memory"), orjson.dumps(GOOD | {"id": f"a{number}"}), KEY, partition_of(KEY, 2))
    assert aborting.flush(ABORT_S) == 0
    aborting.abort_transaction(ABORT_S)
    engine = make_engine(topics, "--serve-while-catching-up")
    engine.up()
    lag = f'recallflow_consumer_lag_records{{partition="{partition_of(KEY, 2)}",topic="{topics.of("memory")}"}}'
    engine.until(lambda: engine.metrics().get(lag) == 0, "at the end of the log")  # the metric lags by a second
    assert (engine.metrics()["recallflow_connected"], engine.metrics()["recallflow_memories"]) == (1, 3)
