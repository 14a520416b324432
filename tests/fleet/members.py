"""The members of a deployment, the owner of each partition, and a seeded schedule of faults."""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.fleet.engine import Engine, Topics
from tests.process import GIVE_UP_S, POLL_S, SHOWN, Ended, command


class Fleet:
    """`recallflow run`, several times. Members are known by their numbers."""

    def __init__(self, topics: Topics, folder: Path, count: int, *options: str) -> None:
        self.topics, self.folder = topics, folder
        self.deployment = f"fleet-{topics.suffix}"
        self._options = ("--deployment", self.deployment, *options)
        self.members = [Engine(topics, folder, *self._options, name=f"member{number}") for number in range(count)]
        self._paused: set[int] = set()
        self._down: set[int] = set()  # by order, so that nobody wonders why they do not run

    def start(self, *numbers: int) -> None:
        for number in numbers or range(len(self.members)):
            self.members[number].start()
            self._down.discard(number)

    def up(self) -> None:
        self.start()
        self.await_ready()

    def await_ready(self, rest: Callable[[], None] = lambda: time.sleep(POLL_S)) -> None:
        """Rest until all are ready. RuntimeError where a member that should run has ended, or does not get there."""
        deadline = time.monotonic() + GIVE_UP_S
        while not self.ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all were ready after {GIVE_UP_S:.0f} s:\n{self.said()}")
            rest()

    def ready(self) -> bool:
        """Whether every member that should run is ready. RuntimeError where one has ended by itself."""
        for number in self.at_work():
            if not self.members[number].running():
                raise RuntimeError(f"member {number} ended by itself: {self.members[number].ended()}")
        return all(self.members[number].ready() for number in self.at_work())

    def at_work(self) -> list[int]:
        """The members that were started, and neither ended nor paused since."""
        return [number for number in range(len(self.members)) if number not in self._down | self._paused]

    def running(self) -> bool:
        at_work = self.at_work()
        return bool(at_work) and all(self.members[number].running() for number in at_work)

    def kill(self, number: int) -> None:
        self._down.add(number)
        self._paused.discard(number)
        self.members[number].kill()

    def stop(self, *numbers: int) -> list[Ended]:
        """SIGTERM for all of these at the same moment, so that none takes over from another, and how each ended."""
        self._down.update(numbers)
        for number in numbers:
            self.members[number].send_signal(signal.SIGTERM)
        return [self.members[number].ended() for number in numbers]

    def pause(self, number: int) -> None:
        self._paused.add(number)
        self.members[number].pause()

    def go_on(self, number: int) -> None:
        self.members[number].go_on()
        self._paused.discard(number)

    def lose_disk(self, number: int) -> None:
        shutil.rmtree(self.members[number].state_dir, ignore_errors=True)

    def hash(self) -> Ended:
        """The hash of what all of them hold together. Nobody may run."""
        return command("state", "hash", *self.directories())

    def merge(self, target: Path) -> list[Ended]:
        """Bring all partitions into one new directory, and hash it. Nobody may run."""
        return [command("state", "merge", *self.directories(), "--into", target), command("state", "hash", target)]

    def verify(self) -> list[Ended]:
        return [command("state", "verify", "--state-dir", path) for path in self.directories()]

    def directories(self) -> list[Path]:
        return [member.state_dir for member in self.members if member.state_dir.exists()]

    def said(self) -> str:
        return "\n".join(f"--- member {n}: {member.said()[-SHOWN:]}" for n, member in enumerate(self.members))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.__exit__()


LOOK_S = 0.1
ASK_S = 5.0

Owners = dict[int, str]  # partition → the member that has it


class Ownership:
    def __init__(self, topics: Topics, group: str) -> None:
        self._topic, self._group = topics.of("memory"), group
        self._admin: Any = AdminClient({"bootstrap.servers": topics.cluster.bootstrap_servers, "log_level": 0})

    def look(self) -> Owners:
        """Who has what now; nobody anything where the group is not there yet, or its coordinator is not."""
        try:
            asked = self._admin.describe_consumer_groups([self._group], request_timeout=ASK_S)
            members = asked[self._group].result().members
        except KafkaException:
            return {}
        parts = ((part, one.member_id) for one in members for part in one.assignment.topic_partitions)
        return {part.partition: member for part, member in parts if part.topic == self._topic}


KILL, PAUSE, STOP, LOSE = "kill", "pause beyond the session", "stop", "disk lost"
WEIGHTS = {KILL: 6, PAUSE: 2, STOP: 2}
TWO_AT_ONCE = 0.2
LOSE_EVERY = 3  # kills
BETWEEN_S = (1.0, 4.0)
SHORT_S = (0.0, 2.0)
BEYOND_S = (1.0, 4.0)


class Fault(NamedTuple):
    """`away_s`: for how long its members are gone; `after_s`: how long all goes well once they are ready again."""

    kind: str
    members: tuple[int, ...]
    away_s: float
    after_s: float


def schedule(seed: int, members: int, kills: int, session_s: float, *, lose_disk: bool) -> Iterator[Fault]:
    """So many SIGKILLs, with pauses and stops between them; some take two members at once, but never all. A member is
    away for so short that nobody takes over, or for so long that somebody does."""
    draw = random.Random(seed)
    killed = 0
    while killed < kills:
        kind = draw.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        who = draw.sample(range(members), 2 if members > 2 and draw.random() < TWO_AT_ONCE else 1)
        beyond_s = session_s + draw.uniform(*BEYOND_S)
        away_s = beyond_s if kind == PAUSE else draw.choice((draw.uniform(*SHORT_S), beyond_s))
        if kind == KILL:
            killed += 1
            kind = LOSE if lose_disk and killed % LOSE_EVERY == 0 else KILL
        yield Fault(kind, tuple(who), away_s, draw.uniform(*BETWEEN_S))


@dataclass
class Chaos:
    """Do to a fleet what a schedule says. `rest` lets time pass, and reads what comes meanwhile."""

    fleet: Fleet
    rest: Callable[[float], None]
    counts: Counter[str] = field(default_factory=Counter)  # faults by kind
    unexpected: list[str] = field(default_factory=list)

    def run(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            self._strike(fault)
            self.rest(fault.away_s)
            self._bring_back(fault)
            self.fleet.await_ready(lambda: self.rest(LOOK_S))
            self.rest(fault.after_s)
            self.counts[fault.kind] += 1

    def _strike(self, fault: Fault) -> None:
        if fault.kind == STOP:
            found = self.fleet.stop(*fault.members)
            self.unexpected += [f"{STOP}: {ended}" for ended in found if ended.code or not ended.plain]
            return
        for number in fault.members:
            if fault.kind == PAUSE:
                self.fleet.pause(number)
            else:
                self.fleet.kill(number)
            if fault.kind == LOSE:
                self.fleet.lose_disk(number)

    def _bring_back(self, fault: Fault) -> None:
        for number in fault.members:
            if fault.kind == PAUSE:
                self.fleet.go_on(number)
            else:
                self.fleet.start(number)
