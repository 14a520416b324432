"""Killed at any moment, it goes on where it stopped."""

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader


def test_killed_again_and_again_it_answers_everything_once(engine: Engine, log: Log, reader: Reader) -> None:
    engine.up()
    for number in range(200):
        user = f"user{number % 7}"
        told = log.tell(user, content=f"fact {number}")
        if number % 5 == 0:
            log.tell(user, "memory.update", memory_id=told.query_id, content=f"better fact {number}")
        if number % 11 == 0:
            log.tell(user, "memory.forget", memory_id=told.query_id)
        log.ask(user, "recall", query=f"fact {number}")
        if number % 50 == 49:
            log.flush()
            engine.kill()
            engine.start()
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found
    assert found.audited > 150
    assert engine.stop().code == 0
