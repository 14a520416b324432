"""An engine that knows half says so: in its answers, and to whoever asks whether it is ready."""

import shutil
from collections.abc import Callable

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics

MANY = 4_000


def test_answers_say_catching_up_until_what_lay_there_is_applied(engine: Engine, log: Log, reader: Reader) -> None:
    engine.up()
    assert engine.stop().code == 0
    for number in range(MANY):
        log.tell(f"user{number % 20}", content=f"walnut number {number}", receipt=False).wants = [frozenset()]
    early = [log.ask(f"user{number}", "user.stats") for number in range(20)]
    recall = log.ask("user1", "recall", query="walnut")
    log.flush()
    statuses = []
    engine.start()
    engine.until(lambda: statuses.append(engine.probe("/readyz")) or statuses[-1] == 200, "ready")  # type: ignore[func-returns-value]
    assert 503 in statuses
    late = log.ask("user1", "user.stats")
    log.flush()
    for sent in (*early, recall):
        body = reader.answer(sent.query_id)
        if body.get("stats", {}).get("memories") == MANY // 20:
            continue  # it was through with this one's
        assert body["status"] == "degraded", body
        (warning,) = [warning for warning in body["warnings"] if warning["code"] == "catching_up"]
        assert any(word.replace(",", "").isdigit() for word in warning["detail"].split()), warning
    assert any(reader.answer(sent.query_id)["status"] == "degraded" for sent in (*early, recall))
    body = reader.answer(late.query_id)
    assert (body["status"], body["stats"]["memories"]) == ("ok", MANY // 20)
    found = check(log)
    assert found.clean(), found


def test_who_lost_its_state_catches_up_and_says_so(
    topics: Topics, log: Log, reader: Reader, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(topics, "--serve-while-catching-up")
    reader.alive = engine.running
    engine.up()
    for number in range(MANY):
        log.tell(f"user{number % 20}", content=f"walnut number {number}", receipt=number % 500 == 0)
        log.sent[-1].wants = [frozenset({"receipt"})] if number % 500 == 0 else [frozenset()]
    log.flush()
    last = log.tell("user1", content="the last one")
    log.flush()
    reader.receipt(last.position)
    assert reader.until(lambda: settled(log, reader))
    assert engine.stop().code == 0
    for folder in engine.state_dir.glob("p[0-9]*"):
        shutil.rmtree(folder)
    log.ask("user1", "user.stats")
    log.flush()
    engine.up()
    body = reader.answer(log.sent[-1].query_id)
    half = body["stats"]["memories"] < len(log.minds.of("user1").memories)
    assert not half or body["status"] == "degraded", body
    found = check(log)
    assert found.clean(), found
