"""How much more two processes take in than one, on cores that are not all theirs.

The broker and whoever measures need cores too, and on a small machine two members get less than two. So the rate is
not taken from the clock on the wall, but from the processor time of the members themselves: one that has its cores to
itself is busy for its processor time, divided by the cores that one alone keeps busy. The slowest member says when all
is through. What is left to compare is what a message costs, and how evenly the work is spread.

    rate of one     = messages / (its processor time / cores that it kept busy)
    rate of several = messages / (most processor time of one of them / the same cores)
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import Cluster
from benchmarks.engine import events
from benchmarks.fleet.members import Fleet
from benchmarks.fleet.ownership import Ownership
from benchmarks.kafka_load import produce
from benchmarks.locomo import load, shared
from benchmarks.torture.engine import GIVE_UP_S
from benchmarks.torture.topics import Topics

USERS = 400
WARM_UP = 2_000
ROUNDS = 3
LOOK_S = 0.1


@dataclass(frozen=True)
class Lap:
    """What so many messages took: seconds by the clock, and processor seconds of each member."""

    messages: int
    seconds: float
    cpu_s: Sequence[float]

    @property
    def us(self) -> float:
        """Microseconds of processor time for a message."""
        return sum(self.cpu_s) / self.messages * 1e6

    @property
    def cores(self) -> float:
        """How many were kept busy."""
        return sum(self.cpu_s) / self.seconds


@dataclass(frozen=True)
class Compared:
    """Medians over rounds. `by_cores`: how many times as much several take in, each with cores of its own;
    `by_clock`: on the cores that there are; `cost`: a message's processor time against that of one alone."""

    members: int
    by_cores: float
    by_clock: float
    cost: float
    one: Sequence[Lap]
    several: Sequence[Lap]


def lap(cluster: Cluster, members: int, partitions: int, lines: Sequence[bytes]) -> Lap:
    """New members take messages in that come faster than they work. RuntimeError where they do not get through."""
    topics = Topics(cluster)
    topics.make(partitions)
    with (
        tempfile.TemporaryDirectory(prefix="recallflow-fleet-") as folder,
        Fleet(topics, Path(folder), members) as fleet,
    ):
        fleet.up()
        group = Ownership(topics, fleet.deployment)  # a partition that moves amid the lap is read twice
        fleet.members[0].until(lambda: len({*group.look().values()}) == members, "one of all")
        produce(cluster, topics.of("memory"), lines[:WARM_UP])
        _through(fleet, WARM_UP)
        before_s, began_s = fleet.cpu_s(), time.monotonic()
        produce(cluster, topics.of("memory"), lines[WARM_UP:])
        _through(fleet, len(lines))
        seconds = time.monotonic() - began_s
        cpu_s = [after - before for after, before in zip(fleet.cpu_s(), before_s, strict=True)]
        fleet.stop_all()
    return Lap(len(lines) - WARM_UP, seconds, cpu_s)


def compare(cluster: Cluster, members: int, partitions: int, count: int, rounds: int = ROUNDS) -> Compared:
    """One member and several, in turns."""
    lines = events(load(shared("data", "locomo_dev.json")), WARM_UP + count, USERS)
    laps = [[lap(cluster, how_many, partitions, lines) for how_many in (1, members)] for _ in range(rounds)]
    one, several = zip(*laps, strict=True)
    return Compared(
        members,
        statistics.median(sum(alone.cpu_s) / max(together.cpu_s) for alone, together in laps),
        statistics.median(alone.seconds / together.seconds for alone, together in laps),
        statistics.median(together.us / alone.us for alone, together in laps),
        one,
        several,
    )


def show(found: Compared) -> None:
    """The figures in lines."""
    print(f"{found.one[0].messages:,} messages of {USERS} users; medians of {len(found.one)} rounds in turns")
    print(f"{'members':>8}{'messages/s':>12}{'cores busy':>12}{'µs/message':>12}   processor seconds of each")
    for laps, members in ((found.one, 1), (found.several, found.members)):
        for one in laps:
            each = ", ".join(f"{cpu_s:.1f}" for cpu_s in one.cpu_s)
            print(f"{members:8}{one.messages / one.seconds:12,.0f}{one.cores:12.2f}{one.us:12,.0f}   {each}")
    print(f"{found.members} members against one: × {found.by_cores:.2f} with cores of their own, ", end="")
    print(f"× {found.by_clock:.2f} on these; a message costs × {found.cost:.3f}")


def _through(fleet: Fleet, messages: int) -> None:
    """Returns once so many were taken in, and are through."""
    topic = f'recallflow_records_total{{topic="{fleet.topics.of("memory")}"}}'
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        found = [fleet.members[number].metrics() for number in fleet.at_work()]
        in_flight = sum(metrics["recallflow_in_flight_records"] for metrics in found)
        if sum(metrics.get(topic, 0) for metrics in found) >= messages and not in_flight:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all were through after {GIVE_UP_S:.0f} s:\n{fleet.said()}")
        time.sleep(LOOK_S)
