"""Members of a group share its partitions, one owner each: processes on a real broker that log when they may send."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import Cluster
from tests.kafka.toy_member import Line, read, silences
from tests.starts import fork_server

SESSION_S = 6.0  # the shortest that a broker takes by default
PARTITIONS = 8
GIVE_UP_S = 60.0

TOY_MEMBER = "from tests.kafka.toy_member import main; main()"

Member = subprocess.Popen[str]


class Site:
    def __init__(self, broker: Cluster, topics: Callable[[str], str], directory: Path) -> None:
        self.memory, self.queries, self.group = topics("memory.events"), topics("queries"), topics("group")
        self.broker = broker
        self.path = directory / "lines"
        self.path.touch()
        self._directory = directory
        self._members: list[Member] = []

    def make(self, memory: int = PARTITIONS, queries: int = PARTITIONS) -> "Site":
        self.broker.create_topics({self.memory: memory, self.queries: queries})
        return self

    def start(self, directory: str, *more: str) -> Member:
        where = [self.broker.bootstrap_servers, self.group, self.memory, self.queries]
        words = [*where, str(SESSION_S), str(self._directory / directory), str(self.path), *more]
        self._members.append(fork_server().start(TOY_MEMBER, words, text=True))
        return self._members[-1]

    def close(self) -> None:
        for member in self._members:
            member.kill()
            member.communicate()

    def lines(self) -> list[Line]:
        return read(self.path)

    def owners(self) -> dict[int, int]:
        now: dict[int, int] = {}
        for line in self.lines():
            if line.event == "give":
                now.pop(line.partition, None)
            else:
                now[line.partition] = int(line.tenure.partition(".")[0])
        return now

    def shares(self, *members: Member) -> dict[int, int]:
        owners = [*self.owners().values()]
        return {member.pid: owners.count(member.pid) for member in members}

    def until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + GIVE_UP_S
        while not true():
            assert time.monotonic() < deadline_s, self.owners()

    def all_send(self, *members: Member, partitions: int = PARTITIONS) -> None:
        """Returns once each partition is sent of by one of the members, and all have their share."""
        each, every = {member.pid for member in members}, {*range(partitions)}

        def shared() -> bool:
            assert [member.returncode for member in members if member.poll() is not None] == []
            return self.owners().keys() == every and {*self.owners().values()} == each

        self.until(shared)
        since_s = self.lines()[-1].at_s
        self.until(lambda: {line.partition for line in self.lines() if line.at_s > since_s} == every)

    def grow(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for grown in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            grown.result()

    def check_nothing_again(self) -> None:
        sent: dict[int, list[int]] = {}
        for line in self.lines():
            if line.event == "send":
                sent.setdefault(line.partition, []).append(line.sent)
        assert all(found == [*range(1, len(found) + 1)] for found in sent.values())

    def check_one_owner(self) -> None:
        assert [silence for found in silences(self.lines()).values() for _, silence in found if silence < 0] == []


@pytest.fixture
def site(broker: Cluster, topics: Callable[[str], str], tmp_path: Path) -> Iterator[Site]:
    made = Site(broker, topics, tmp_path)
    yield made
    made.close()


def stop(member: Member) -> None:
    assert member.stdin is not None
    member.stdin.write("\n")
    member.stdin.flush()
    assert member.wait(GIVE_UP_S) == 0


def test_members_share_partitions_and_added_ones(site: Site) -> None:
    site.make()
    members = []
    for number in range(3):
        members.append(site.start(str(number)))
        site.all_send(*members)
    assert sorted(site.shares(*members).values()) == [2, 3, 3]
    stop(members.pop(0))
    site.all_send(*members)
    site.grow(site.memory, 2 * PARTITIONS)
    site.grow(site.queries, 2 * PARTITIONS)
    site.all_send(*members, partitions=2 * PARTITIONS)
    assert "has members whose partitions the group assigns: stop them first" in ended(site.start("all", "--own", "0-7"))
    site.check_one_owner()
    site.check_nothing_again()


def test_the_last_process_of_a_static_name_works_alone(site: Site) -> None:
    site.make()
    first = site.start("one", "--instance-id", "a")
    site.all_send(first)
    second = site.start("two", "--instance-id", "a")
    assert "DeploymentLost" in ended(first)
    site.all_send(second)
    second.send_signal(signal.SIGSTOP)
    third = site.start("three", "--instance-id", "a")
    site.all_send(third)
    second.send_signal(signal.SIGCONT)
    assert "DeploymentLost" in ended(second)
    site.all_send(third)
    site.check_one_owner()


def test_partitions_may_be_assigned_by_hand(site: Site) -> None:
    site.make()
    low, high = site.start("low", "--own", "0-3"), site.start("high", "--own", "4-7")
    site.all_send(low, high)
    assert {part for part, owner in site.owners().items() if owner == low.pid} == {0, 1, 2, 3}
    other = site.start("other", "--own", "2-5,7")
    assert re.search(r"UsageError: .* another process owns partitions (0-3|4-7): .* --own 2-5,7", ended(other))
    shares = site.start("shares")
    assert "has members that own theirs by --own: stop them first" in ended(shares)
    again = site.start("low again", "--own", "0-3")
    assert "DeploymentLost: another process has joined deployment" in ended(low)
    site.all_send(again, high)
    site.check_one_owner()


def test_topics_that_do_not_fit_are_refused(site: Site) -> None:
    site.make(queries=PARTITIONS // 2)
    assert f"add partitions to {site.queries}" in ended(site.start("one"))
    site.grow(site.queries, PARTITIONS)
    assert "has no partition 8-9" in ended(site.start("two", "--own", "6-9"))


def ended(member: Member) -> str:
    assert member.wait(GIVE_UP_S) == 1
    assert member.stderr is not None
    return member.stderr.read()
