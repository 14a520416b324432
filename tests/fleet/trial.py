"""A trial of one deployment: members, traffic and faults, then the verdict."""

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from tests.fleet import checker
from tests.fleet.checker import Findings, open_records
from tests.fleet.engine import OUTPUTS, Engine, Topics
from tests.fleet.members import Chaos, Fault, Fleet, Ownership
from tests.fleet.records import Log, Reader
from tests.fleet.traffic import Traffic
from tools.broker import Cluster

SETTLE_S = 300.0
BECOME = ("receipt", "dead-letter")  # what memory events do


def undisturbed(topics: Topics, folder: Path, told: int, *options: str) -> Engine:
    """A stopped engine of a deployment of its own, in a new directory, that has taken in all of a memory topic. Its
    outputs went to topics of its own. `told`: how many receipts and dead letters the memory events give."""
    own = Topics(topics.cluster)
    for kind in OUTPUTS:
        own.make_one(kind, len(topics.bounds(kind)))
    words = [word for kind in OUTPUTS for word in (f"--{kind}-topic", own.of(kind))]
    name = ("--deployment", f"undisturbed-{own.suffix}")
    engine = Engine(topics, folder, *options, *name, *words, name="undisturbed")
    with engine, closing(Reader(own, BECOME)) as reader:
        engine.up()
        reader.until(lambda: len(reader.seen) >= told, SETTLE_S)
        engine.stop()
    return engine


SILENT_S = 60.0  # nothing more comes


@dataclass(frozen=True)
class Plan:
    members: int = 4
    partitions: int = 16
    seed: int = 0
    per_second: float = 60.0
    misrouted: float = 0.0
    session_s: float = 6.0
    options: tuple[str, ...] = ()

    def shape(self) -> tuple[str, ...]:
        return ("--sync-ms", "200", "--cache-bytes", "16MiB")


@dataclass
class Report:
    plan: Plan
    faults: dict[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    records: int = 0
    astray: int = 0
    starts: int = 0
    spread: list[int] = field(default_factory=list)  # partitions of each member at the end
    state_equal: bool = False
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def clean(self) -> bool:
        return self.findings.clean() and self.state_equal and not self.broken


class Trial:
    def __init__(self, cluster: Cluster, folder: Path, plan: Plan) -> None:
        self.plan, self.folder, self.report = plan, folder, Report(plan)
        self.topics = Topics(cluster)
        self.topics.make(plan.partitions)
        self._open = ExitStack()
        self.log = Log(self.topics)
        self.reader = self._open.enter_context(closing(Reader(self.topics)))
        session = ("--session-timeout-s", f"{plan.session_s:g}")
        options = (*plan.shape(), *session, *plan.options)
        self.fleet = self._open.enter_context(Fleet(self.topics, folder, plan.members, *options))
        self.ownership = Ownership(self.topics, self.fleet.deployment)
        self.chaos = Chaos(self.fleet, self.rest)

    def run(self, faults: Iterable[Fault]) -> Report:
        """The whole of it. What keeps it from its end is in the report."""
        began_s = time.monotonic()
        try:
            self._run(faults)
        except (RuntimeError, TimeoutError, KafkaException) as error:
            self.report.broken.append(f"{error}\n{self.fleet.said()}")
        self.report.seconds = round(time.monotonic() - began_s, 1)
        return self.report

    def rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.reader.read()

    def _run(self, faults: Iterable[Fault]) -> None:
        plan, report = self.plan, self.report
        self.fleet.up()
        traffic = Traffic(self.log, self.reader, plan.seed, plan.per_second, plan.misrouted)
        traffic.start()
        self.chaos.run(faults)
        traffic.end()
        self.log.flush()
        self._settle()
        report.findings = checker.judge(self.log, self.reader)
        report.astray, report.faults = traffic.astray, dict(self.chaos.counts)
        report.spread = sorted(Counter(self.ownership.look().values()).values(), reverse=True)
        report.broken += self.chaos.unexpected
        self._compare()

    def _settle(self) -> None:
        """Wait until every record has come to its end or nothing more comes, and for members that still join.

        A partition that moves after its last record is answered from a state that catches up.
        """
        left, since = -1, time.monotonic()
        while still := len(open_records(self.log, self.reader)):
            if still != left:
                left, since = still, time.monotonic()
            if time.monotonic() - since > SILENT_S or not self.fleet.running():
                return
            self.rest(0.5)
        self.rest(self.plan.session_s)

    def _compare(self) -> None:
        """Compare the state of all members with that of one engine that nothing happened to.

        Members stop one after the other: the partitions of each move to those that are left.
        """
        stopped = [ended for number in self.fleet.at_work() for ended in self.fleet.stop(number)]
        self.report.broken += [f"the last stop: {ended}" for ended in stopped if ended.code or not ended.plain]
        self.report.broken += [f"verify: {ended.out[-500:]} {ended}" for ended in self.fleet.verify() if ended.code]
        alone = undisturbed(self.topics, self.folder, len(self.log.of(["memory"])), *self.plan.shape())
        checker.sent_home_once(self.log, self.report.findings)
        ours, theirs = self.fleet.hash(), alone.state("hash")
        merge, merged = self.fleet.merge(self.folder / "merged")
        failed = [f"hash: {ended}" for ended in (ours, theirs, merge, merged) if ended.code]
        self.report.broken += failed
        self.report.state_equal = not failed and ours.out == theirs.out == merged.out

    def close(self) -> None:
        self.report.records = len(self.log.sent)
        self.report.starts = sum(member.starts for member in self.fleet.members)
        self._open.close()
