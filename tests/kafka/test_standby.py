"""Standby: the partitions of a killed member go to one that kept them warm, which continues at the end of the log."""

import re
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.broker import Cluster
from recallflow.connectors.kafka.group import Shares
from recallflow.connectors.kafka.group_consumer import SHARING
from recallflow.flows.standby import without
from tests.fleet import checker
from tests.fleet.checker import settled
from tests.fleet.engine import SHORT_SESSION, Engine, Topics
from tests.fleet.members import Fleet, Ownership
from tests.fleet.records import Log, Reader
from tests.kafka.harness import until

PARTITIONS = 4
OWNERS = 16
TOLD, MORE = 60, 20
OURS = re.compile(r"partition (\d+) is assigned[,;] .*:\d+ resumes at offset (\d+)")
HELD = re.compile(r"partition (\d+) is assigned, with (\d+) memories of")


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
    return member.metrics()["recallflow_memories"]


def test_a_standby_takes_over_at_the_end_of_the_log(topics: Topics, fleet: Fleet) -> None:
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


class Member:
    """A consumer of a group that shares as members of a deployment do; it reads nothing."""

    def __init__(self, broker: Cluster, topic: str) -> None:
        self.name, self.share = "", frozenset[int]()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers, "group.id": topic,
                "partition.assignment.strategy": SHARING, "heartbeat.interval.ms": 300,
            }
        )  # fmt: skip
        self._consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke)

    def _assign(self, consumer: Consumer, came: list[TopicPartition]) -> None:
        self.name, self.share = consumer.memberid() or "", self.share | {one.partition for one in came}
        consumer.incremental_assign(came)

    def _revoke(self, consumer: Consumer, gone: list[TopicPartition]) -> None:
        self.share -= {one.partition for one in gone}
        consumer.incremental_unassign(gone)

    def poll(self) -> None:
        self._consumer.poll(0.02)

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize(("count", "partitions"), [(3, 8), (5, 16)])
def test_lost_partitions_are_shared_out_as_predicted(broker: Cluster, count: int, partitions: int) -> None:
    topic = f"shared-{uuid.uuid4().hex}"
    broker.create_topics({topic: partitions})
    with ExitStack() as stack:
        members = [stack.enter_context(closing(Member(broker, topic))) for _ in range(count)]

        def shared() -> Shares | None:
            for one in members:
                one.poll()
            sizes = [len(one.share) for one in members]
            even = sum(sizes) == partitions and max(sizes) - min(sizes) <= 1
            return {one.name: one.share for one in members} if even else None

        until(lambda: shared() is not None)
        while len(members) > 1:
            before = shared()
            assert before is not None
            lost = members.pop()
            lost.close()
            until(lambda: shared() is not None)
            assert shared() == without(before, lost.name)
