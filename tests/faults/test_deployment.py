"""One engine works for a deployment: a second one is refused, and who was paused too long sends nothing more."""

import shutil
import socket
from collections.abc import Callable

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import SHORT_SESSION, Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics

Make = Callable[..., Engine]


def test_a_second_engine_is_told_who_holds_the_deployment(
    engine: Engine, make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    second = make_engine(topics, name="second")
    ended = second.ends()
    assert ended.code == 1, ended
    assert ended.plain, ended
    assert str(engine.state_dir) in ended.error
    assert socket.gethostname() in ended.error
    assert not second.state_dir.exists()
    log.talk()
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
    assert engine.stop().code == 0


def test_one_that_stands_by_takes_the_volume_over(
    engine: Engine, make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    """The volume moves with it: same directory, and the first one has ended."""
    engine.up()
    log.talk()
    assert reader.until(lambda: settled(log, reader))
    second = make_engine(topics, "--wait", name="second")
    second.start()
    log.talk()
    assert engine.stop().code == 0
    reader.alive = second.running
    second.await_ready()
    third = [log.ask("user1", "user.stats") for _ in range(3)]
    log.flush()
    for sent in third:
        assert reader.answer(sent.query_id)["status"] in ("ok", "degraded")
    by_query = [output.answers for output in reader.drain() if output.kind == "response"]
    assert len(by_query) == len(set(by_query))
    assert second.stop().code == 0


def test_one_that_was_paused_beyond_its_session_sends_nothing_while_another_works(
    make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    first = make_engine(topics, *SHORT_SESSION, name="first")
    first.up()
    reader.alive = first.running
    log.talk()
    assert reader.until(lambda: settled(log, reader))
    assert first.stop().code == 0
    second = make_engine(topics, *SHORT_SESSION, "--wait", name="second")
    shutil.copytree(first.state_dir, second.state_dir)
    first.up()
    second.start()
    log.talk()
    first.pause()
    log.talk()
    reader.alive = second.running
    second.await_ready()
    log.talk()
    first.go_on()
    ended = first.ended()
    assert ended.code == 1, ended
    assert ended.plain, ended
    assert "deployment" in ended.error
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
    assert second.stop().code == 0


def test_a_pause_beyond_the_session_with_nobody_else_costs_nothing(
    make_engine: Make, log: Log, reader: Reader, topics: Topics
) -> None:
    engine = make_engine(topics, *SHORT_SESSION)
    engine.up()
    reader.alive = engine.running
    log.talk()
    engine.pause()
    assert not reader.until(lambda: False, timeout_s=9)
    log.talk()
    engine.go_on()
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
    assert engine.stop().code == 0
