"""Records that no producer should send: each becomes a dead letter that names what is wrong, and the rest goes on."""

from collections.abc import Callable

import orjson

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import LETTER, RECEIPT, Log
from benchmarks.torture.raw_header import produce
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics
from recallflow.partitioning import partition_of

GOOD = {"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "A walnut.", "receipt": True}
KEY = b"acme/ann"
YEAR_287168_MS = 9_000_000_000_000_000


def test_odd_headers_and_times_stop_nothing(bare: Topics, make_engine: Callable[..., Engine]) -> None:
    """On a topic of CreateTime, where producers say what time it is."""
    create_time = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
    bare.make(1, config={"memory": create_time, "query": create_time})
    servers = bare.cluster.bootstrap_servers
    log, reader = Log(bare), Reader(bare)
    engine = make_engine(bare)
    reader.alive = engine.running
    engine.up()
    produce(servers, bare.of("memory"), 0, KEY, orjson.dumps(GOOD), (b"bad\xff\xfe", b"x"))
    produce(servers, bare.of("query"), 0, KEY, orjson.dumps(GOOD | {"type": "user.stats", "id": "q"}), (b"\xff", b"x"))
    for number, at_ms in enumerate((YEAR_287168_MS, 253_402_300_800_000, 1, 2**62)):
        log.event("memory", GOOD | {"id": f"t{number}"}, [RECEIPT, LETTER], timestamp=at_ms, key=KEY)
        log.event("query", GOOD | {"type": "user.stats", "id": f"tq{number}"}, (), timestamp=at_ms, key=KEY)
    log.flush()
    log.sent = [sent for sent in log.sent if sent.kind == "memory"]
    told = log.tell("ann", content="after it")
    log.flush()
    assert reader.until(lambda: settled(log, reader))
    assert reader.receipt(told.position)["outcome"] == "created"
    position = f"{bare.of('memory')}:0:0"
    assert reader.until(lambda: {("receipt", position), ("dead-letter", position)} & reader.seen != set())
    assert "LogAppendTime" in engine.said()
    assert engine.stop().code == 0
    engine.up()
    asked = log.ask("ann", "user.stats")
    log.flush()
    assert reader.answer(asked.query_id)["status"] == "ok"
    outputs = [(output.kind, output.answers) for output in reader.drain()]
    assert len(outputs) == len(set(outputs))
    reader.close()


def test_a_record_may_be_passed_over_by_order(engine: Engine, log: Log, reader: Reader) -> None:
    before = log.tell("ann", content="before")
    over = [log.event("memory", GOOD | {"id": f"over{number}"}, [LETTER]) for number in range(2)]
    after = log.tell("ann", content="after")
    log.flush()
    engine.up(*(word for sent in over for word in ("--skip", sent.position)))
    for sent in over:
        letter = reader.letter(sent.position)
        assert letter.header("error.code") == "skipped"
        assert orjson.loads(letter.value or b"null") == sent.event
    for sent in (before, after):
        assert reader.receipt(sent.position)["outcome"] == "created"
    assert engine.stop().code == 0
    engine.up()
    query = log.ask("ann", "memory.get", memory_id="over0")
    log.flush()
    assert reader.answer(query.query_id)["error"]["code"] == "not_found"
    found = check(log, reader)
    assert found.clean(), found


def test_what_a_producer_got_wrong_is_named(engine: Engine, log: Log, reader: Reader) -> None:
    engine.up()
    seconds = log.event("memory", GOOD | {"id": "s", "timestamp": 1_700_000_000}, [LETTER, RECEIPT])
    mark = log.raw("memory", b"\xef\xbb\xbf" + orjson.dumps(GOOD | {"id": "bom"}), (RECEIPT, LETTER), key=KEY)
    wide = log.raw("memory", orjson.dumps(GOOD).decode().encode("utf-16"), key=KEY)
    framed = log.raw("memory", b"\x00\x00\x00\x00\x07" + orjson.dumps(GOOD), key=KEY)
    nothing = log.raw("memory", None, key=KEY)
    empty = log.raw("memory", b"", key=KEY)
    log.flush()
    assert reader.until(lambda: settled(log, reader))
    assert "UTF-16" in reader.letter(wide.position).header("error.detail")
    assert "schema" in reader.letter(framed.position).header("error.detail").lower()
    assert reader.letter(nothing.position).value is None
    assert reader.letter(empty.position).value == b""
    if ("dead-letter", seconds.position) in reader.seen:
        assert "second" in reader.letter(seconds.position).header("error.detail")
    else:
        warned = log.ask("ann", "memory.get", memory_id="s")
        log.flush()
        assert reader.answer(warned.query_id)["versions"][0]["created_at"].startswith("2023-11-14")
    if ("dead-letter", mark.position) in reader.seen:
        assert "byte order mark" in reader.letter(mark.position).header("error.detail").lower()
    found = check(log)
    assert found.clean(), found


def test_records_that_lie_elsewhere_go_home_and_are_counted(
    engine: Engine, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    for number in range(10):
        log.tell(f"user{number}", content="in its place")
    log.flush()
    assert reader.until(lambda: settled(log, reader))
    assert misplaced(engine) == {}
    elsewhere = 1 - partition_of(KEY, 2)
    for name, key in (("null-key", None), ("wrong-key", b"somebody/else"), ("own-key", KEY)):
        log.event("memory", GOOD | {"id": name}, [RECEIPT], key=key, partition=elsewhere)
    log.flush()
    assert reader.until(lambda: settled(log, reader))
    engine.until(lambda: sum(misplaced(engine).values()) == 3, "counting")
    assert len(misplaced(engine)) == 3
    answers = [log.ask("ann", "memory.get", memory_id=name) for name in ("null-key", "wrong-key", "own-key")]
    log.flush()
    assert [reader.answer(sent.query_id)["status"] for sent in answers] == ["ok"] * 3
    warned = [line for line in engine.said().splitlines() if "sent on to its owner's partition" in line]
    assert len(warned) == 1, warned
    assert topics.of("memory") in warned[0]


def misplaced(engine: Engine) -> dict[str, float]:
    name = "recallflow_misplaced_records_total"
    return {sample: value for sample, value in engine.metrics().items() if sample.startswith(name) and value}
