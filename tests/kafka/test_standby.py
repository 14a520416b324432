"""A member that is killed leaves its partitions to one that has kept them warm: it goes on at the end of the log."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from benchmarks.fleet import checker
from benchmarks.fleet.members import Fleet
from benchmarks.fleet.ownership import Ownership
from benchmarks.torture.checker import settled
from benchmarks.torture.engine import SHORT_SESSION, Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics

PARTITIONS = 4
OWNERS = 16
TOLD, MORE = 200, 50
OURS = re.compile(r"partition (\d+) is ours, from offset (\d+) on")
HELD = re.compile(r"partition (\d+) holds (\d+) memories of")


@pytest.fixture
def topics(broker: Cluster) -> Topics:
    made = Topics(broker)
    made.make(PARTITIONS)
    return made


@pytest.fixture
def fleet(topics: Topics, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(topics, tmp_path, 2, "--epoch-ms", "100", "--standby", "1", *SHORT_SESSION) as fleet:
        yield fleet


def memories(member: Engine) -> float:
    """How many it holds: of its own partitions, and of those that it keeps warm."""
    return member.metrics()["recallflow_memories"]


def test_what_a_killed_member_had_goes_on_at_the_end_of_the_log(topics: Topics, fleet: Fleet) -> None:
    log, group, left = Log(topics), Ownership(topics, fleet.deployment), fleet.members[1]
    with closing(Reader(topics)) as reader:
        fleet.up()
        left.until(lambda: [*Counter(group.look().values()).values()] == [PARTITIONS // 2] * 2, "one of two")
        log.talk(TOLD, owners=OWNERS)
        assert reader.until(lambda: settled(log, reader)), fleet.said()
        left.until(lambda: [memories(one) for one in fleet.members] == [TOLD] * 2, "warm")
        before, ends = len(left.said()), topics.bounds("memory")
        fleet.kill(0)
        left.until(lambda: len(OURS.findall(left.said()[before:])) == PARTITIONS // 2, "alone")
        came = {int(part): int(offset) for part, offset in OURS.findall(left.said()[before:])}
        assert came == {part: ends[part][1] for part in came}
        assert sum(int(held) for _, held in HELD.findall(left.said()[before:])) > 0
        log.talk(MORE, owners=OWNERS)
        assert reader.until(lambda: settled(log, reader)), fleet.said()
        findings = checker.judge(log, reader)
        assert findings.clean(), findings
    assert left.stop().code == 0, left.said()
