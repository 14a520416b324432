"""An output never stops the flow: whatever its size, it is sent, cut and said to be, or it becomes an error."""

import hashlib
from collections.abc import Callable

import pytest

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Output, Reader
from benchmarks.torture.topics import OUTPUTS, Topics

SMALL_BYTES = 20_000
LARGE_BYTES = 900_000  # less than an input topic takes


def size(output: Output) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in output.headers)
    return len(output.value or b"") + len(output.key or b"") + headers


@pytest.fixture
def topics(bare: Topics) -> Topics:
    """Output topics that take less than others."""
    bare.make(config={kind: {"max.message.bytes": str(LARGE_BYTES)} for kind in OUTPUTS})
    return bare


def test_outputs_beyond_a_record_s_bound_are_cut_and_say_so(engine: Engine, log: Log, reader: Reader) -> None:
    engine.up()
    giant = "walnut " * 142_800
    told = log.tell("ann", content=giant)
    others = [log.tell("ann", content=f"walnut number {number}") for number in range(9)]
    long = log.tell("bob", content="0 " + "harbour " * 3_700)
    for number in range(1, 40):
        log.tell("bob", "memory.update", memory_id=long.query_id, content=f"{number} " + "harbour " * 3_700)
    wordy = log.tell(
        "kim", content="a violin", summary="violin " * 70_000, tags=[f"tag {n} " + "x" * 400 for n in range(60)]
    )
    wordy.wants = [frozenset({"receipt"}), frozenset({"dead-letter"})]
    log.flush()
    assert reader.until(lambda: settled(log, reader))
    got = log.ask("ann", "memory.get", memory_id=told.query_id)
    history = log.ask("bob", "memory.history", memory_id=long.query_id)
    recalled = log.ask("ann", "recall", query="walnut", k=10)
    context = log.ask("ann", "recall", query="walnut", k=50, max_tokens=1_000_000)
    summary = log.ask("kim", "recall", query="violin", max_tokens=1_000_000)
    log.flush()

    (version,) = reader.answer(got.query_id)["versions"]
    assert version["truncated"] is True
    assert giant.startswith(version["content"].rstrip("…").rstrip())
    assert len(version["content"]) > 500_000

    answer = reader.answer(history.query_id)
    if answer["status"] == "error":
        assert answer["error"]["code"] == "too_large"
    else:
        assert len(answer["versions"]) == 40
        assert any(item.get("truncated") for item in answer["versions"])

    items = {item["id"]: item for item in reader.answer(recalled.query_id)["memories"]}
    assert len(items) == 10
    assert items[told.query_id].get("truncated") is True
    assert all(items[sent.query_id]["content"] == (sent.event or {})["content"] for sent in others)
    assert not any(items[sent.query_id].get("truncated") for sent in others)
    for asked in (context, summary):
        assert reader.answer(asked.query_id)["status"] in ("ok", "degraded", "error")

    value = b"{" + b"x" * 1_040_000
    refused = log.raw("memory", value)
    headed = log.raw("memory", b"{", headers=[(f"name{n}", b"y" * 10_000) for n in range(100)])
    asked = log.raw("query", b"[" + b"x" * 1_040_000)
    log.flush()
    letter = reader.letter(refused.position)
    assert letter.header("error.size") == str(len(value))
    assert letter.header("error.sha256") == hashlib.sha256(value).hexdigest()
    assert value.startswith(letter.value or b"-")
    assert reader.letter(headed.position).value == b"{"
    assert reader.letter(asked.position).header("error.code")
    assert all(size(output) < LARGE_BYTES for output in reader.outputs)
    found = check(log)
    assert found.clean(), found
    assert engine.stop().code == 0


def test_the_bound_is_the_topic_s_own(bare: Topics, make_engine: Callable[..., Engine]) -> None:
    """Output topics that take less than others."""
    bare.make(config={kind: {"max.message.bytes": str(SMALL_BYTES)} for kind in OUTPUTS})
    log, reader = Log(bare), Reader(bare)
    engine = make_engine(bare)
    reader.alive = engine.running
    engine.up()
    told = log.tell("ann", content="walnut " * 20_000, receipt=True, id="i" * 128)
    log.raw("memory", b"{" + b"x" * 100_000, headers=[("h" * 200, b"y" * 30_000)])
    for number in range(60):
        log.tell("ann", content=f"harbour {number} " + "x" * 700)
    log.flush()
    reader.receipt(told.position)
    assert reader.until(lambda: settled(log, reader))
    for fields in (
        {"event_type": "memory.get", "memory_id": told.query_id},
        {"event_type": "memory.history", "memory_id": told.query_id},
        {"event_type": "recall", "query": "harbour", "k": 50, "max_tokens": 100_000, "explain": True},
        {"event_type": "graph.explore", "hops": 3},
        {"event_type": "episodes.list"},
        {"event_type": "recall", "query": "walnut " * 10_000},
    ):
        sent = log.ask("ann", **fields)
        log.flush()
        assert reader.answer(sent.query_id)["status"] in ("ok", "degraded", "error")
    assert all(size(output) < SMALL_BYTES for output in reader.outputs)
    reader.close()
    found = check(log)
    assert found.clean(), found
    assert engine.stop().code == 0
