"""Engines share a deployment: one that comes takes its share, one that goes leaves it to the others, and who was paused
too long sends nothing of what is another's."""

import shutil
from collections.abc import Callable

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics

Make = Callable[..., Engine]


def test_a_second_engine_shares_and_takes_over(
    engine: Engine, make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    log.talk(owners=9)
    second = make_engine(topics, name="second")
    second.up()
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    log.talk(owners=9)
    assert engine.stop().code == 0
    reader.alive = second.running
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found
    assert second.stop().code == 0


def test_a_machine_that_is_lost_with_its_disk_is_made_up_for(
    engine: Engine, make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    second = make_engine(topics, name="second")
    second.up()
    engine.up()
    log.talk(owners=9)
    engine.kill()
    reader.alive = second.running
    shutil.rmtree(engine.state_dir)
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found
    assert second.stop().code == 0


def test_one_that_was_paused_beyond_its_session_sends_nothing_of_what_is_another_s(
    make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    first, second = make_engine(topics, name="first"), make_engine(topics, name="second")
    reader.alive = second.running
    second.up()
    first.up()
    first.until(lambda: "is ours" in first.said(), "given its share")
    log.talk(owners=9)
    first.pause()
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    log.talk(owners=9)
    first.go_on()
    first.until(lambda: "joining anew" in first.said(), "told of it")
    log.talk(owners=9)
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found
    assert first.stop().code == 0
    assert second.stop().code == 0


def test_a_pause_beyond_the_session_with_nobody_else_costs_nothing(
    make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    engine = make_engine(topics)
    engine.up()
    reader.alive = engine.running
    log.talk(owners=9)
    engine.pause()
    assert not reader.until(lambda: False, timeout_s=9)
    log.talk(owners=9)
    engine.go_on()
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
    assert engine.stop().code == 0
