"""Conditions that end an engine with one line, and the start after them."""

from tests.fleet.checker import settled
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


def test_recreated_input_topic_ends_a_running_engine_and_its_restart(
    engine: Engine, log: Log, reader: Reader, topics: Topics
) -> None:
    engine.up()
    work(log, reader)
    topics.remake("query", 2)
    for ended in (engine.ended(), engine.ends()):
        assert (ended.code, ended.plain) == (1, True), ended
        assert topics.of("query") in ended.said
    assert f"{topics.of('query')} was deleted and recreated" in ended.error
