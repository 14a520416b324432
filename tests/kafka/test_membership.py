"""Members of a deployment's group share its partitions: one owner each, whatever happens to them. On a real broker,
with processes that write down when they could have sent."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import Cluster
from benchmarks.toy_member import Line, read, silences
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.lease import outage_s
from recallflow.connectors.kafka.members import static_members

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
        """What was handed over went on where it had ended."""
        sent: dict[int, list[int]] = {}
        for line in self.lines():
            if line.event == "send":
                sent.setdefault(line.partition, []).append(line.sent)
        assert all(found == [*range(1, len(found) + 1)] for found in sent.values())

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
    site.check_nothing_again()


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


def test_who_was_stopped_for_longer_than_its_session_sends_nothing_more(site: Site) -> None:
    site.make()
    first, second = site.start("one"), site.start("two")
    site.all_send(first, second)
    first.send_signal(signal.SIGSTOP)
    site.all_send(second)
    first.send_signal(signal.SIGCONT)
    assert "MembershipLost: deployment" in ended(first)
    site.all_send(second)
    site.check_one_owner()


def test_what_a_killed_member_owned_is_others(site: Site) -> None:
    site.make()
    first, second = site.start("one"), site.start("two")
    site.all_send(first, second)
    first.kill()
    site.all_send(second)
    site.check_one_owner()
    stop(second)


def test_who_joins_when_one_was_killed_waits_until_the_group_has_given_it_up(site: Site) -> None:
    """Joining at once would stop all others until then."""
    site.make()
    first, second = site.start("one"), site.start("two")
    site.all_send(first, second)
    lost = {partition for partition, owner in site.owners().items() if owner == first.pid}
    first.kill()
    third = site.start("three")
    site.all_send(second, third)
    gains = [line for line in site.lines() if line.event == "gain"]
    came_s = min(line.at_s for line in gains if line.tenure.startswith(f"{third.pid}."))
    before = {line.partition for line in gains if line.at_s < came_s and line.tenure.startswith(f"{second.pid}.")}
    assert lost <= before
    site.check_one_owner()


@pytest.mark.parametrize("clean", [True, False])
def test_a_static_member_finds_its_partitions_again(site: Site, clean: bool) -> None:
    """And nobody else's move."""
    site.make()
    first, second = site.start("one", "--instance-id", "a"), site.start("two", "--instance-id", "b")
    site.all_send(first, second)
    before = site.owners()
    since_s = site.lines()[-1].at_s
    if clean:
        stop(first)
    else:
        first.kill()
        first.wait()
    again = site.start("one", "--instance-id", "a")
    site.all_send(again, second)
    assert site.owners() == {part: again.pid if owner == first.pid else owner for part, owner in before.items()}
    moved = [line for line in site.lines() if line.event == "gain" and line.at_s > since_s]
    assert {line.partition for line in moved} == {part for part, owner in before.items() if owner == first.pid}
    site.check_one_owner()


def test_of_two_of_one_name_the_last_waits_until_the_first_sends_nothing_more(site: Site) -> None:
    site.make()
    first = site.start("one", "--instance-id", "a")
    site.all_send(first)
    second = site.start("two", "--instance-id", "a")
    assert "DeploymentLost: another process has joined deployment" in ended(first)
    site.all_send(second)
    site.check_one_owner()


def test_who_comes_back_puts_out_nobody_of_its_name(site: Site) -> None:
    site.make()
    first = site.start("one", "--instance-id", "a")
    site.all_send(first)
    first.send_signal(signal.SIGSTOP)
    second = site.start("two", "--instance-id", "a")
    site.all_send(second)
    first.send_signal(signal.SIGCONT)
    assert "DeploymentLost: another process has joined deployment" in ended(first)
    site.all_send(second)
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


def test_the_ways_of_assigning_follow_each_other(site: Site) -> None:
    site.make()
    shares = site.start("shares")
    site.all_send(shares)
    assert "has members whose partitions the group assigns: stop them first" in ended(site.start("all", "--own", "0-7"))
    stop(shares)
    owns = site.start("all", "--own", "0-7")
    site.all_send(owns)
    stop(owns)
    refused = site.start("shares")  # until the session of the static member has run out
    assert "has members that own theirs by --own: stop them first; a session timeout later" in ended(refused)
    site.until(lambda: static_members(KafkaOptions(site.broker.bootstrap_servers), site.group) == {})
    shares = site.start("shares")
    site.all_send(shares)
    stop(shares)
    site.check_one_owner()
    site.check_nothing_again()


def test_a_topic_that_has_grown_is_shared_too(site: Site) -> None:
    site.make()
    members = [site.start("one"), site.start("two")]
    site.all_send(*members)
    site.grow(site.memory, 2 * PARTITIONS)
    site.grow(site.queries, 2 * PARTITIONS)
    site.all_send(*members, partitions=2 * PARTITIONS)
    site.check_one_owner()


def test_topics_of_different_sizes_are_refused(site: Site) -> None:
    site.make(queries=PARTITIONS // 2)
    assert f"add partitions to {site.queries}, up to {PARTITIONS}" in ended(site.start("one"))


def test_only_partitions_that_are_there_can_be_owned(site: Site) -> None:
    site.make()
    assert "has no partition 8-9: it has 8, from 0 on" in ended(site.start("one", "--own", "6-9"))


def ended(member: Member) -> str:
    """What a member said that has ended by itself."""
    assert member.wait(GIVE_UP_S) == 1
    assert member.stderr is not None
    return member.stderr.read()
