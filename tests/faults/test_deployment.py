"""Engines that share a deployment: joins, pauses beyond the session, lost machines, leaves."""

import re
import shutil

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics
from tests.faults.conftest import MakeEngine

OWNERS = 9
TALK = 15
SESSION_OVER_S = 8


def test_partitions_move_without_loss_or_repetition(
    engine: Engine, make_engine: MakeEngine, log: Log, reader: Reader, topics: Topics
) -> None:
    """A pause beyond the session, alone and beside a second engine; a kill with the disk; a leave."""

    def talk() -> None:
        log.talk(TALK, owners=OWNERS)
        assert reader.until(lambda: settled(log, reader))

    engine.up()
    talk()
    engine.pause()
    assert not reader.until(lambda: False, timeout_s=SESSION_OVER_S)
    log.talk(TALK, owners=OWNERS)
    engine.go_on()
    talk()

    second = make_engine(topics, name="second")
    second.up()
    second.until(lambda: re.search("(is|are) ours", second.said()) is not None, "given its share")
    reader.alive = second.running
    log.talk(TALK, owners=OWNERS)
    engine.pause()
    talk()
    engine.go_on()
    engine.until(lambda: "joining anew" in engine.said(), "joining anew")
    talk()

    engine.kill()
    shutil.rmtree(engine.state_dir)
    talk()
    engine.up()
    talk()
    log.talk(TALK, owners=OWNERS)
    assert second.stop().code == 0
    reader.alive = engine.running
    talk()
    found = check(log, reader)
    assert found.clean(), found
    assert engine.stop().code == 0


def test_a_killed_static_member_restarts_before_its_session_ends(
    make_engine: MakeEngine, log: Log, reader: Reader, topics: Topics
) -> None:
    engine = make_engine(topics, "--instance-id", "one", "--session-timeout-s", "1800")
    engine.up()
    log.talk(TALK, owners=OWNERS)
    engine.kill()
    engine.start()
    assert reader.until(lambda: settled(log, reader))
    found = check(log)
    assert found.clean(), found
