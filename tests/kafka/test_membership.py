"""Members of a deployment's group share its partitions: one owner each, whatever happens to them. On a real broker,
with processes that write down when they could have sent."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from benchmarks.toy_member import Line, read, silences
from recallflow.connectors.kafka.lease import outage_s

SESSION_S = 6.0  # the shortest that a broker takes by default
PARTITIONS = 8
GIVE_UP_S = 60.0

Member = subprocess.Popen[str]


class Site:
    """A deployment's topics, its members, and what these wrote."""

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
        words = ["-m", "benchmarks.toy_member", *where, str(SESSION_S), str(self._directory / directory)]
        command = [sys.executable, *words, str(self.path), *more]
        pipe = subprocess.PIPE
        self._members.append(subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True))
        return self._members[-1]

    def close(self) -> None:
        for member in self._members:
            member.kill()
            member.communicate()

    def lines(self) -> list[Line]:
        return read(self.path)

    def owners(self) -> dict[int, int]:
        """Partition → the process that owns it now, of those that are not given up."""
        now: dict[int, int] = {}
        for line in self.lines():
            if line.event == "give":
                now.pop(line.partition, None)
            else:
                now[line.partition] = int(line.tenure.partition(".")[0])
        return now

    def shares(self, *members: Member) -> dict[int, int]:
        """How many partitions each of the members owns."""
        owners = [*self.owners().values()]
        return {member.pid: owners.count(member.pid) for member in members}

    def until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + GIVE_UP_S
        while not true():
            assert time.monotonic() < deadline_s, self.owners()
            assert [one.stderr.read() for one in self._members if one.stderr and one.poll() == 1] == []

    def all_send(self, *members: Member) -> None:
        """Returns once each partition is sent of by one of the members, and all have their share."""
        each = {member.pid for member in members}
        self.until(lambda: {*self.owners()} == {*range(PARTITIONS)} and {*self.owners().values()} == each)
        since_s = self.lines()[-1].at_s
        self.until(
            lambda: (
                {line.partition for line in self.lines() if line.event == "send" and line.at_s > since_s}
                == {*range(PARTITIONS)}
            )
        )

    def check_one_owner(self) -> None:
        """Of no partition two have sent at a time."""
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


def test_partitions_are_shared_among_those_who_are_there(site: Site) -> None:
    site.make()
    members = []
    for number in range(4):
        members.append(site.start(str(number)))
        site.all_send(*members)
    assert [*site.shares(*members).values()] == [2] * 4
    stop(members.pop(0))
    site.all_send(*members)
    site.check_one_owner()
    # What was handed over went on where it had ended: nothing before it is sent again.
    counts: dict[int, list[int]] = {}
    for line in site.lines():
        if line.event == "send":
            counts.setdefault(line.partition, []).append(line.sent)
    assert all(found == [*range(1, len(found) + 1)] for found in counts.values())


def test_what_does_not_move_is_worked_on_meanwhile(site: Site, tmp_path: Path) -> None:
    """Also where it takes longer than one renewal lets send, until what moves is through."""
    site.make()
    first = site.start("one", "--hold", str(tmp_path / "go on"))
    site.all_send(first)
    second = site.start("two")
    site.until(lambda: len(site.owners()) == PARTITIONS // 2)
    stays = {*site.owners()}
    lets_send_s = SESSION_S - outage_s(SESSION_S)
    given_s = max(line.at_s for line in site.lines() if line.event == "give")
    later = given_s + 2 * lets_send_s
    site.until(lambda: {line.partition for line in site.lines() if line.at_s > later} == stays)
    (tmp_path / "go on").touch()
    site.all_send(first, second)
    site.check_one_owner()
