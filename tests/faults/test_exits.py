"""However it ends, a person is told in one line what is wrong and what to do."""

import resource
import shutil

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine
from benchmarks.torture.log import ANSWER, NOTHING, Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics


def work(log: Log, reader: Reader, count: int = 20) -> None:
    for number in range(count):
        log.tell(f"user{number % 5}", content=f"walnut {log.number()} " + "x" * 300)
        log.ask(f"user{number % 5}", "recall", query="walnut")
    log.flush()
    assert reader.until(lambda: settled(log, reader))


def test_a_delivery_that_fails_ends_it_with_one_line(engine: Engine, log: Log, reader: Reader, topics: Topics) -> None:
    """The response topic is deleted under it; made again, everything open is answered."""
    engine.up()
    work(log, reader)
    topics.remove("response")
    log.ask("user1", "user.stats")
    log.flush()
    ended = engine.ended()
    assert ended.code == 1, ended
    assert ended.plain, ended
    assert topics.of("response") in ended.error
    again = engine.ends()
    assert again.code == 1, again
    assert again.plain, again
    assert topics.of("response") in again.error


def test_a_topic_with_fewer_partitions_is_named(engine: Engine, log: Log, reader: Reader, topics: Topics) -> None:
    engine.up()
    work(log, reader)
    assert engine.stop().code == 0
    topics.remake("memory", 1)
    ended = engine.ends()
    assert ended.code == 2, ended
    assert ended.plain, ended
    assert topics.of("memory") in ended.error


def test_a_partition_of_another_time_is_read_on(engine: Engine, log: Log, reader: Reader) -> None:
    """Half a restore by hand: one partition's folder is older than the rest."""
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
    found = check(log, reader)
    assert found.clean(), found


def test_a_full_disk_ends_it_with_one_line_and_it_goes_on_once_there_is_room(
    engine: Engine, log: Log, reader: Reader
) -> None:
    engine.up()
    work(log, reader)
    resource.prlimit(engine.pid(), resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
    for number in range(200):
        log.tell("ann", content=f"violin {number} " + "x" * 2_000)
    log.flush()
    ended = engine.ended()
    assert ended.code == 1, ended
    assert ended.plain, ended
    engine.up()
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found


def test_queries_that_retention_removed_are_given_up_by_order(
    engine: Engine, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    work(log, reader)
    assert engine.stop().code == 0
    for _ in range(7):
        log.ask("user1", "user.stats").wants = [NOTHING]
    log.flush()
    topics.forget_records("query")
    later = log.ask("user2", "user.stats")
    log.flush()
    ended = engine.ends()
    assert ended.code == 1, ended
    assert ended.plain, ended
    assert "--give-up-unanswered" in ended.error
    engine.up("--give-up-unanswered")
    assert "7 queries" in engine.said()
    later.wants = [ANSWER, NOTHING]
    work(log, reader)
    found = check(log, reader)
    assert found.clean(), found
