"""Throughput of several members against one, and the silence of a partition that is restored from a checkpoint.

The broker and the measuring process need cores too, and on a small machine two members get less than two. So the rate
is not taken from the wall clock, but from the processor time of the members: a member on cores of its own is busy for
its processor time, divided by the cores that one member alone keeps busy. The slowest member determines the rate. The
comparison shows the cost of a message and how evenly the work is spread.

    rate of one     = messages / (its processor time / cores that it kept busy)
    rate of several = messages / (most processor time of one of them / the same cores)
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import Cluster
from benchmarks.engine import events
from benchmarks.kafka_load import produce
from benchmarks.locomo import load, shared
from recallflow.connectors.checkpoints.store import CheckpointStore
from tests.fleet import probes
from tests.fleet.engine import GIVE_UP_S, Topics
from tests.fleet.members import Fleet, Ownership
from tests.fleet.records import Log

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


def show_throughput(found: Compared) -> None:
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


SESSION_S = 6.0
MINUTES = 0.3  # between checkpoints
PROBE_S = 0.1
IDLE_S = 5.0
BEYOND_S = 30.0  # the session: by then it answers again
COLD_LOOK_S = 1.0
COLD_GIVE_UP_S = 500.0


@dataclass(frozen=True)
class Cold:
    """`silent_s`: the longest that an answer took, the session included. `lost`: questions that were never answered."""

    memories: int
    checkpoint_bytes: int
    session_s: float
    idle_ms: float
    silent_s: float
    lost: int


def take_over(cluster: Cluster, memories: int) -> Cold:
    """One partition, an owner and another member. RuntimeError where something does not come in time."""
    topics = Topics(cluster)
    topics.make(1)
    topics.make_one(probes.KIND, 1)
    with tempfile.TemporaryDirectory(prefix="recallflow-fleet-") as folder:
        url = (Path(folder) / "store").as_uri()
        shape = ("--session-timeout-s", f"{SESSION_S:g}", "--reply-topic", topics.of(probes.KIND))
        with Fleet(
            topics, Path(folder), 2, *shape, "--checkpoint-to", url, "--checkpoint-minutes", f"{MINUTES}"
        ) as fleet:
            fleet.up()
            lines = events(load(shared("data", "locomo_dev.json")), memories, USERS)
            produce(cluster, topics.of("memory"), lines)
            _until(lambda: max(_held(fleet)) >= memories)
            owner = max(range(2), key=_held(fleet).__getitem__)
            log = Log(topics)
            asked = probes.settle_in(log, 1)
            log.flush()
            store = CheckpointStore.open(url)
            _until(lambda: (newest := store.newest(0)) is not None and newest.about.offset >= memories)
            asking = probes.Probes(topics, asked, PROBE_S)
            asking.start()
            time.sleep(IDLE_S)
            killed_s = time.monotonic()
            fleet.kill(owner)
            fleet.lose_disk(owner)
            time.sleep(SESSION_S + BEYOND_S)
            asking.end()
            fleet.stop_all()
            newest = store.newest(0)
    idle = [one.ms for one in asking.probes() if one.due_s < killed_s - COLD_LOOK_S]
    return Cold(
        memories,
        0 if newest is None else sum(newest.objects().values()),
        SESSION_S,
        statistics.median(idle),
        max(one.ms for one in asking.probes()) / 1_000,
        len(asking.lost()),
    )


def _held(fleet: Fleet) -> list[float]:
    """How many memories each member has."""
    return [member.metrics().get("recallflow_memories", 0) for member in fleet.members]


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COLD_GIVE_UP_S
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it did not come to that within {COLD_GIVE_UP_S:.0f} s")
        time.sleep(COLD_LOOK_S)


def show_cold(found: Cold) -> None:
    """The figures in lines."""
    megabytes = found.checkpoint_bytes / 1e6
    print(f"{found.memories:,} memories, a checkpoint of {megabytes:.0f} MB; idle {found.idle_ms:.0f} ms")
    print(f"silent for {found.silent_s:.1f} s, of which {found.session_s:g} are the session; {found.lost} lost")
