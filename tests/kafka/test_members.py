"""Members of a deployment: shares, standby, joins, kills, supervised processes and lost disks."""

import base64
import os
import re
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.kafka_flow import own_topics
from recallflow.connectors.kafka.group_consumer import COOPERATIVE
from recallflow.connectors.kafka.group_members import Assignment
from recallflow.flows.partition_copies import without
from recallflow.members import member_name
from recallflow.owner import state_partition
from recallflow.state.lock import LOCK
from tests.fleet import checker
from tests.fleet.checker import settled
from tests.fleet.engine import SHORT_SESSION, Engine, Topics
from tests.fleet.members import KILL, LOSE, PAUSE, Fault, Fleet, Ownership
from tests.fleet.records import Log, Reader, Sent, who
from tests.fleet.trial import Plan, Trial
from tests.kafka.harness import Deployment, produce, until
from tests.process import command
from tests.readable import contains
from tools.broker import Cluster

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
    with Fleet(topics, tmp_path, 2, "--sync-ms", "100", "--standby", "1", *SHORT_SESSION) as fleet:
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
                "partition.assignment.strategy": COOPERATIVE, "heartbeat.interval.ms": 300,
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

        def shared() -> Assignment | None:
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


SIX = 6
MANY = 24

# The real command, but what it gives up is handed over only once a file is there: all of it was closed by then.
HOLDS = """
import time
from pathlib import Path
from recallflow.flows.ownership import Ownership

give_up = Ownership.give_up

def held(self, partitions):
    places = give_up(self, partitions)
    while not Path({go_on!r}).exists() and not self._stopping.is_set():
        time.sleep(0.01)
    return places

Ownership.give_up = held
"""


class Holding(Engine):
    def __init__(self, six_topics: Topics, folder: Path, *options: str, name: str) -> None:
        super().__init__(six_topics, folder, *options, name=name)
        self.go_on_file = folder / "go on"
        self.setup = HOLDS.format(go_on=str(self.go_on_file))


@pytest.fixture
def six_topics(broker: Cluster) -> Topics:
    made = Topics(broker)
    made.make(SIX)
    return made


def shares(group: Ownership) -> list[int]:
    return [*Counter(group.look().values()).values()]


def test_kept_partitions_answer_while_others_move(six_topics: Topics, tmp_path: Path) -> None:
    log = Log(six_topics)
    options = ("--deployment", f"joined-{six_topics.suffix}", "--sync-ms", "100")
    with (
        Holding(six_topics, tmp_path, *options, name="first") as first,
        Engine(six_topics, tmp_path, *options, name="second") as second,
        closing(Reader(six_topics)) as reader,
    ):
        group = Ownership(six_topics, options[1])
        first.up()
        log.talk(MANY, owners=MANY)
        assert reader.until(lambda: settled(log, reader)), first.said()
        second.start()
        owners = {f"user{number}": partition_of(f"user{number}") for number in range(MANY)}
        first.until(lambda: len(open_partitions(first)) == SIX // 2, "giving up half")
        stays = open_partitions(first)
        asked = {owner: [log.ask(owner, "user.stats"), log.tell(owner, content="since")] for owner in owners}
        log.flush()
        staying = [sent for owner, part in owners.items() if part in stays for sent in asked[owner]]
        moving = [sent for owner, part in owners.items() if part not in stays for sent in asked[owner]]
        assert staying
        assert moving
        assert reader.until(lambda: all(came(sent, reader) for sent in staying)), first.said()
        assert not any(came(sent, reader) for sent in moving)
        first.go_on_file.touch()
        assert reader.until(lambda: settled(log, reader)), second.said()
        first.until(lambda: shares(group) == [SIX // 2] * 2, "one of two")
        findings = checker.judge(log, reader)
        assert findings.clean(), findings


def partition_of(owner: str) -> int:
    named = who(owner)
    return state_partition(named["tenant_id"], named["user_id"], SIX)


def open_partitions(member: Engine) -> set[int]:
    lags = (name for name in member.metrics() if name.startswith("recallflow_consumer_lag_records"))
    return {int(name.partition('partition="')[2].partition('"')[0]) for name in lags if 'topic="memory' in name}


def came(sent: Sent, reader: Reader) -> bool:
    kind, name = ("response", sent.query_id) if sent.kind == "query" else ("receipt", sent.position)
    return (kind, name) in reader.seen


def test_partitions_assigned_by_hand_have_one_owner(topics: Topics, tmp_path: Path) -> None:
    log, options = Log(topics), ("--deployment", f"own-{topics.suffix}", "--sync-ms", "100", *SHORT_SESSION)
    low, high, other = (Engine(topics, tmp_path, *options, "--own", own, name=own) for own in ("0-1", "2-3", "1-2"))
    with low, high, Engine(topics, tmp_path, *options, name="shares") as shares, closing(Reader(topics)) as reader:
        low.up()
        high.up()
        for refused in (other, shares):
            with refused:
                assert refused.ends().code != 0
        log.talk(TOLD, owners=OWNERS)
        assert reader.until(lambda: settled(log, reader)), low.said()
        findings = checker.judge(log, reader)
        assert findings.clean(), findings
        assert [len(open_partitions(one)) for one in (low, high)] == [2, 2]


USERS = 24
MEMBERS = [member_name(number) for number in range(2)]


class Supervised(Deployment):
    def pid(self, name: str) -> int:
        return int(orjson.loads((self.state_dir / name / LOCK).read_bytes())["pid"])

    def folders(self) -> dict[str, set[str]]:
        return {name: {one.name for one in (self.state_dir / name).glob("p0*")} for name in MEMBERS}

    def tell(self, count: int) -> None:
        told = {"type": "message", "content": "The key is under the mat", "receipt": True}
        users = [f"user{number % USERS}" for number in range(self.sent, self.sent + count)]
        produce(self.broker, self.topics.memory, *(told | {"user_id": user} for user in users))
        self.sent += count
        self.check_outputs()


def test_members_share_partitions_and_a_killed_one_restarts(broker: Cluster, tmp_path: Path) -> None:
    topics = own_topics()
    broker.create_topics(dict.fromkeys((*topics.read_topics(), *topics.outputs(), topics.enrichment), PARTITIONS))
    supervised = Supervised(broker, topics, tmp_path / "state", flags=("--processes", "2"))
    with supervised.running() as process:

        def measured(name: str) -> list[float]:
            """Return the metric of each member."""
            found = process.metrics()
            return [found[f'{name}{{member="{member}"}}'] for member in MEMBERS]

        process.await_ready()
        supervised.tell(60)
        until(lambda: min(map(len, supervised.folders().values())) >= PARTITIONS // 2)  # the group has spread them
        process.until(lambda: min(measured("recallflow_memories")) > 0, "shared")
        folders, killed = supervised.folders(), supervised.pid(MEMBERS[1])
        os.kill(killed, signal.SIGKILL)
        supervised.tell(60)
        process.await_ready()
        assert supervised.pid(MEMBERS[1]) != killed
        assert measured("recallflow_member_restarts_total") == [0, 1]
        assert supervised.folders() == folders  # its name in the group was kept for it: nothing moved
        members = [supervised.pid(name) for name in MEMBERS]
    assert not any(Path(f"/proc/{pid}").exists() for pid in members)


TWO = 2
SIX_OWNERS = 6
TOLD_BEFORE, SINCE = 40, 12
WHOSE, WHAT = "acme-corporation/ann-of-acme", "The violin under the stairs"
SAID = ("acme-corporation", "ann-of-acme", "violin under the stairs")  # some of which stands in files as it is
OFTEN, SELDOM = ("--checkpoint-minutes", "0.01"), ("--checkpoint-minutes", "1000")
FETCHED = re.compile(
    r"partition (\d+) was restored from a checkpoint of \d+ bytes in [\d.]+ s, applied up to offset (\d+)"
)


def test_a_lost_disk_is_restored_from_encrypted_checkpoints(broker: Cluster, tmp_path: Path) -> None:
    topics, store = Topics(broker), tmp_path / "checkpoints"
    topics.make(TWO)
    log = Log(topics)
    always = ("--sync-ms", "100", "--checkpoint-to", f"file:{store}", "--instance-id", "one", *SHORT_SESSION)
    (key := tmp_path / "master.key").write_text(base64.b64encode(bytes(range(32))).decode())
    with Fleet(topics, tmp_path, 1, *always, "--master-key-file", str(key)) as fleet, closing(Reader(topics)) as reader:
        (member,) = fleet.members

        def talk(count: int) -> dict[int, int]:
            log.talk(count, owners=SIX_OWNERS)
            assert reader.until(lambda: settled(log, reader)), member.said()
            return {part: end for part, (_, end) in topics.bounds("memory").items()}

        member.up(*OFTEN)
        log.tell(WHOSE, content=WHAT)
        ends = talk(TOLD_BEFORE)
        member.until(lambda: kept(store) == ends, "kept")
        member.kill()
        member.up(*SELDOM)
        talk(SINCE)
        member.kill()
        fleet.lose_disk(0)
        member.up(*SELDOM)
        log.flush()
        assert kept(store) == ends  # nothing of what came since
        assert {int(part): int(offset) + 1 for part, offset in FETCHED.findall(member.said())} == ends
        assert {int(part): int(offset) for part, offset in OURS.findall(member.said())} == ends
        talk(SINCE)
        findings = checker.judge(log, reader)
        assert findings.clean(), findings
        assert member.metrics()["recallflow_memories"] == 1 + TOLD_BEFORE + 2 * SINCE
        assert member.stop().code == 0, member.said()
    assert readable(store) == set()


def kept(store: Path) -> dict[int, int]:
    listed = command("checkpoints", "list", f"file:{store}", "--json").out.splitlines()
    found = [(one["partition"], one["offset"] + 1) for one in map(orjson.loads, listed)]
    return {part: max(offset for number, offset in found if number == part) for part, _ in found}


def readable(store: Path) -> set[str]:
    content = b"\0".join(path.read_bytes() for path in store.rglob("*") if path.parent.name == "objects")
    return {said for said in SAID if contains(content, said)}


FAULTS = [Fault(KILL, (0,), 1.0, 1.0), Fault(PAUSE, (1,), 7.0, 1.0), Fault(LOSE, (2,), 7.0, 1.0)]


def test_a_fleet_under_faults_answers_all_once_with_equal_state(broker: Cluster, tmp_path: Path) -> None:
    plan = Plan(members=3, partitions=6, seed=18, misrouted=0.1, per_second=20.0)
    with closing(Trial(broker, tmp_path, plan)) as run:
        report = run.run(FAULTS)
    assert report.findings.clean(), report.findings
    assert not report.broken, "\n".join(report.broken)
    assert report.state_equal
    assert report.faults == {KILL: 1, PAUSE: 1, LOSE: 1}
    assert report.findings.outputs >= report.records > 0
    assert report.astray
