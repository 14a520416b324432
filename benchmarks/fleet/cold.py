"""How long a partition is silent whose owner is killed and loses its disk, where the next owner has no folder of it and
takes a checkpoint."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker import Cluster
from benchmarks.engine import events
from benchmarks.fleet import probes
from benchmarks.fleet.members import Fleet
from benchmarks.kafka_load import produce
from benchmarks.locomo import load, shared
from benchmarks.torture.log import Log
from benchmarks.torture.topics import Topics
from recallflow.connectors.checkpoints.store import CheckpointStore

USERS = 400
SESSION_S = 6.0
MINUTES = 0.3  # between checkpoints
PROBE_S = 0.1
IDLE_S = 5.0
BEYOND_S = 30.0  # the session: by then it answers again
LOOK_S = 1.0
GIVE_UP_S = 500.0


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
    idle = [one.ms for one in asking.probes() if one.due_s < killed_s - LOOK_S]
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
    deadline = time.monotonic() + GIVE_UP_S
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it did not come to that within {GIVE_UP_S:.0f} s")
        time.sleep(LOOK_S)


def show(found: Cold) -> None:
    """The figures in lines."""
    megabytes = found.checkpoint_bytes / 1e6
    print(f"{found.memories:,} memories, a checkpoint of {megabytes:.0f} MB; idle {found.idle_ms:.0f} ms")
    print(f"silent for {found.silent_s:.1f} s, of which {found.session_s:g} are the session; {found.lost} lost")
