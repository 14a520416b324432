"""Conditions that end an engine with one line, and the start after them."""

import resource
import shutil

from tests.fleet.checker import check, settled
from tests.fleet.engine import Engine, Topics
from tests.fleet.records import Log, Reader


def work(log: Log, reader: Reader, count: int = 10) -> None:
    for number in range(count):
        log.tell(f"user{number % 5}", content=f"walnut {log.number()} " + "x" * 300)
        log.ask(f"user{number % 5}", "recall", query="walnut")
    log.flush()
    assert reader.until(lambda: settled(log, reader))


def test_a_deleted_output_topic_and_lost_partitions_end_the_engine(
    engine: Engine, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    work(log, reader)
    topics.remove("response")
    log.ask("user1", "user.stats")
    log.flush()
    for ended in (engine.ended(), engine.ends()):
        assert (ended.code, ended.plain) == (1, True), ended
        assert topics.of("response") in ended.error
    topics.make_one("response", 2)
    topics.remake("memory", 1)
    ended = engine.ends()
    assert (ended.code, ended.plain) == (2, True), ended
    assert topics.of("memory") in ended.error


def test_an_older_partition_folder_is_caught_up(engine: Engine, log: Log, reader: Reader) -> None:
    """A full disk under it ends the engine with one line; with room it goes on."""
    engine.up()
    work(log, reader)
    assert engine.stop().code == 0
    old = engine.state_dir.with_name("old")
    shutil.copytree(engine.state_dir, old)
    engine.up()
    work(log, reader)
    assert engine.stop().code == 0
    shutil.rmtree(engine.state_dir / "p000")
    shutil.copytree(old / "p000", engine.state_dir / "p000")
    engine.up()
    work(log, reader)

    resource.prlimit(engine.pid(), resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
    for number in range(200):
        log.tell("ann", content=f"violin {number} " + "x" * 2_000)
    log.flush()
    ended = engine.ended()
    assert (ended.code, ended.plain) == (1, True), ended
    engine.up()
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found
