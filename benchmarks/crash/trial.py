"""One crash run: a log, processes that die on it one after the other, and the comparison."""

import random
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from benchmarks.crash.author import Author
from benchmarks.crash.comparison import Judge, applied_up_to
from benchmarks.crash.kills import POINTS
from benchmarks.crash.layout import (
    CACHE_BYTES,
    GIVE_UP_S,
    OUTPUT_PARTITIONS,
    PARTITIONS,
    memory_partition,
)
from benchmarks.crash.outputs import Key, Watcher, read_topic
from benchmarks.crash.process import Child, Plan
from benchmarks.crash.reference import Reference
from benchmarks.crash.report import Report
from recallflow.brokers.options import KafkaOptions
from recallflow.flows.topics import Topics
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.logical import state_hash

STARTUP_S = 1.5  # a random kill may fall within it
PROGRESS_S = 5.0


class Trial:
    """One log on topics of its own, one state directory, and one process after the other that dies on it."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        events: int,
        seed: int = 1,
        stub: str | None = None,
        receipts: float = 0.3,
        static: bool = True,
    ) -> None:
        self._servers = cluster.bootstrap_servers
        self._folder = folder
        self._draw = random.Random(seed)
        self._stub = stub
        names = ("memory", "queries", "control", "responses", "receipts", "enrichment", "dead_letters")
        suffix = uuid.uuid4().hex[:8]
        self._names = {name: f"crash.{name.replace('_', '.')}-{suffix}" for name in names}
        self.topics = Topics(**self._names)  # type: ignore[arg-type]  # names only; `replies` stays
        partitions = dict.fromkeys((self.topics.memory, self.topics.queries), PARTITIONS)
        partitions |= {self.topics.control: 1} | dict.fromkeys(self.topics.outputs(), OUTPUT_PARTITIONS)
        cluster.create_topics(partitions)
        author = Author(seed, self.topics, receipts)
        author.write(events)
        self._closing = set(author.close())
        self._lines = author.lines
        self._produced = 0
        self._producer = Producer(KafkaOptions(self._servers).producer())
        self._watcher = Watcher(self._servers, self.topics)
        self._began_s = time.monotonic()
        self.report = Report(static, len(self._lines), dict.fromkeys(("random", *POINTS), 0))

    def close(self) -> None:
        self._watcher.close()

    def prime(self) -> None:
        """Begins the deployment: queries count from its first start on."""
        with self._started(prime=True) as process:
            process.ended(0)

    def kill_at(self, point: str, passes: int, share: float) -> None:
        """Produces a share of the log, and lets a process die at a point."""
        self.produce(share)
        with self._started(kill=(point, passes)) as process:
            process.ended(-signal.SIGKILL)
        self.report.kills[point] += 1

    def kill_at_random(self, share: float) -> None:
        """Produces a share of the log, and kills a process while it starts, or when it has put out something."""
        self.produce(share)
        before = self._watcher.count
        with self._started() as process:
            if self._draw.random() < 0.3:
                self._watcher.until(lambda: not process.running(), self._draw.uniform(0, STARTUP_S))
            else:
                wanted = self._draw.randint(1, max(1, int(share * len(self._lines) / 4)))
                self._watcher.until(lambda: self._watcher.count >= before + wanted, PROGRESS_S)
            process.kill()
            process.ended(-signal.SIGKILL)
        self.report.kills["random"] += 1

    @contextmanager
    def running(self) -> Iterator[Watcher]:
        """A process that has put out something, and runs on for the time of a `with`; it is killed at its end."""
        before = self._watcher.count
        with self._started() as process:
            if not self._watcher.until(lambda: self._watcher.count > before, GIVE_UP_S):
                raise RuntimeError("nothing came out")
            yield self._watcher
            process.kill()
            process.ended(-signal.SIGKILL)
        self.report.kills["random"] += 1

    def finish(self) -> Report:
        """Produces the rest, lets a process run until all is through, stops it, and compares."""
        self.produce(1.0)
        with self._started() as process:
            self._watcher.until(lambda: self._closing <= self._watcher.answered or not process.running(), GIVE_UP_S)
            if not process.running():
                process.ended(0)
            process.stop()
        self._watcher.drain()
        self._judge()
        self.report.seconds = round(time.monotonic() - self._began_s, 1)
        return self.report

    def produce(self, share: float) -> None:
        """Appends the next share of the log."""
        until = min(len(self._lines), self._produced + int(share * len(self._lines)) + 1)
        for line in self._lines[self._produced : until]:
            self._producer.produce(line.topic, line.value, line.key, line.partition)
            self._producer.poll(0)
        if self._producer.flush(GIVE_UP_S):
            raise RuntimeError("the log could not be produced")
        self._produced = until

    @contextmanager
    def _started(self, kill: tuple[str, int] | None = None, prime: bool = False) -> Iterator[Child]:
        state_dir = str(self._folder / "state")
        plan = Plan(self._servers, state_dir, dict(self._names), self.report.static, kill, self._stub, prime)
        with closing(Child(plan, self._folder / "child.log")) as process:
            yield process

    def _judge(self) -> None:
        memories = read_topic(self._servers, self.topics.memory, PARTITIONS)
        queries = read_topic(self._servers, self.topics.queries, PARTITIONS)
        judge = Judge(self.topics, self.report)
        placed = []
        for record in queries:
            found = self._watcher.outputs.get(Key(self.topics.responses, str(record.position), 0))
            answer = orjson.loads(found[0].value) if found else {}
            source = f"{self.topics.memory}:{memory_partition(record.key)}"
            placed.append((record, applied_up_to(answer, source)))
            if found:
                judge.check_wait(record, answer)
        with closing(Reference(self._folder / "reference", self.topics)) as reference:
            expected_hash = reference.run(memories, placed)
            judge.compare(reference.outputs, self._watcher.outputs)
        self.report.state_equal = self._state_hash() == expected_hash

    def _state_hash(self) -> str:
        path = self._folder / "state"
        with StateDirectory.open(path, describe(path)[0], CACHE_BYTES) as directory:
            return state_hash(directory)


@contextmanager
def trial(cluster: Cluster, events: int, **chosen: Any) -> Iterator[Trial]:
    """A primed trial in a folder that is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="recallflow-crash-") as folder,
        closing(Trial(cluster, Path(folder), events, **chosen)) as made,
    ):
        made.prime()
        yield made


def run(cluster: Cluster, events: int, kills: int, seed: int, static: bool = True) -> Report:
    """The whole run: random kills with each named point among them, then the rest in peace."""
    draw = random.Random(seed)
    deaths = ["random"] * kills + [*POINTS]
    draw.shuffle(deaths)
    with trial(cluster, events, seed=seed, static=static) as made:
        for death in deaths:
            share = 1 / (len(deaths) + 1)
            if death == "random":
                made.kill_at_random(share)
            else:
                # Outputs are flushed once an epoch, and a share may be through within one.
                made.kill_at(death, 1 if death == "produced" else draw.randint(1, 4), share)
        return made.finish()
