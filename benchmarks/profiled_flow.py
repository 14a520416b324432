"""A flow that takes a given number of records and stops itself: how long it took, and where the time went."""

import cProfile
import logging
import os
import pstats
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import Source
from bytewax.operators import KeyedStream

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.hub import Hub
from recallflow.connectors.kafka.sink import SinkPart
from recallflow.connectors.kafka.source import KafkaPart, Progress
from recallflow.flows import engine, kafka
from recallflow.flows.config import Config
from recallflow.flows.kafka import KafkaFlow
from recallflow.flows.topics import Topics
from recallflow.operators.partition import PartitionLogic
from recallflow.outputs import Done, Output, Receipted
from recallflow.records import Record
from recallflow.state.partition import Partition

WARM_UP = 2_000  # records: databases are opened and words are new
FUNCTIONS = 15

STEPS: list[tuple[Any, str, str]] = [
    (KafkaPart, "next_batch", "source: records"),
    (Hub, "wait", "source: nothing to read"),
    (engine, "decode", "decode"),
    (engine, "prepare", "prepare: words and vectors"),
    (engine, "by_partition", "key"),
    (PartitionLogic, "on_batch", "state: apply"),
    (Partition, "commit", "state: WriteBatch to RocksDB"),
    (PartitionLogic, "snapshot", "state: snapshot"),
    (Partition, "sync", "state: sync of the log"),
    (SinkPart, "write_batch", "sink: produce"),
    (SinkPart, "snapshot", "sink: flush"),
]


@dataclass(frozen=True)
class Job:
    """What a process does. `receipts`: the pass-through puts each record out again, as the engine does a receipt."""

    bootstrap_servers: str
    topics: Topics
    state_dir: Path
    records: int
    passes_through: bool = False
    receipts: bool = False
    watch: Literal["steps", "functions"] | None = None


@dataclass(frozen=True)
class Lap:
    """The time of all records after a warm-up. `parts`: seconds per step or function, where they were watched;
    `threads`: CPU seconds per thread."""

    per_s: float
    seconds: float
    parts: dict[str, float]
    threads: dict[str, float]


def run_job(job: Job, answer: Connection) -> None:
    """Runs the main flow until all records are through, then stops it and sends the lap."""
    logging.basicConfig(level=logging.ERROR)
    with ExitStack() as patches:
        if job.passes_through:
            patches.enter_context(patch.object(kafka, "build", _pass_through(job.receipts)))
        watch = {"steps": Steps, "functions": Functions, None: Watch}[job.watch]()
        for owner, name, wrapper in watch.wrappers():
            patches.enter_context(patch.object(owner, name, wrapper))
        stopwatch = Stopwatch(job.records, watch)
        patches.enter_context(patch.object(Progress, "done", stopwatch.done(Progress.done)))
        KafkaFlow(Config(job.state_dir, KafkaOptions(job.bootstrap_servers), job.topics)).run()
    seconds = stopwatch.seconds
    answer.send(Lap((job.records - WARM_UP) / seconds, seconds, watch.parts(seconds), stopwatch.threads))


def _pass_through(receipts: bool) -> Callable[..., KeyedStream[Output]]:
    """Stands in for the engine: every record is through as soon as it is taken in."""

    def through(batch: list[Record]) -> Iterable[tuple[str, Output]]:
        offsets: dict[str, list[int]] = defaultdict(list)
        for record in batch:
            offsets[record.position.source].append(record.position.offset)
            if receipts:
                yield "000", Receipted(record.position, 0, record.key or b"", record.value)
        yield from (("000", Done(source, tuple(found))) for source, found in offsets.items())

    def build(flow: Dataflow, source: Source[Record], *_: object) -> KeyedStream[Output]:
        return op.flat_map_batch("through", op.input("records", flow, source), through)

    return build


class Watch:
    """Watches nothing: what a plain lap needs."""

    def wrappers(self) -> Iterable[tuple[Any, str, Callable[..., Any]]]:
        """What to put in the place of which method."""
        return ()

    def begin(self) -> None:
        """The warm-up is over. Called, like `end`, in the worker's thread."""

    def end(self) -> None:
        """The last record is through."""

    def parts(self, seconds: float) -> dict[str, float]:  # noqa: ARG002 - for those who watch
        """Seconds per part of a lap of so many seconds."""
        return {}


class Steps(Watch):
    """Seconds per step, each without the steps it calls."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._inner_s = 0.0
        self._found: dict[str, float] = {}

    def wrappers(self) -> Iterable[tuple[Any, str, Callable[..., Any]]]:
        return [(owner, name, self._timed(step, getattr(owner, name))) for owner, name, step in STEPS]

    def begin(self) -> None:
        self._seconds.clear()

    def end(self) -> None:
        self._found = dict(self._seconds)

    def parts(self, seconds: float) -> dict[str, float]:
        return self._found | {"Bytewax, and waiting for the interpreter": seconds - sum(self._found.values())}

    def _timed(self, step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            outer_s, self._inner_s = self._inner_s, 0.0
            began_s = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                whole_s = time.perf_counter() - began_s
                self._seconds[step] += whole_s - self._inner_s
                self._inner_s = outer_s + whole_s

        return call


class Functions(Watch):
    """Own seconds of the functions that take most. The profiler makes all of them slower, and small ones most."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    def begin(self) -> None:
        self._profile.enable()

    def end(self) -> None:
        self._profile.disable()

    def parts(self, seconds: float) -> dict[str, float]:  # noqa: ARG002 - a function's seconds are its own
        found: dict[Any, Any] = pstats.Stats(self._profile).stats  # type: ignore[attr-defined]  # not in its stub
        top = sorted(found.items(), key=lambda item: -item[1][2])[:FUNCTIONS]
        return {f"{Path(file).name}:{line} {name}": own for (file, line, name), (_, _, own, _, _) in top}


class Stopwatch:
    """Counts the records that are through, where the main flow does, and stops the flow behind the last one."""

    def __init__(self, records: int, watch: Watch) -> None:
        self.seconds = 0.0
        self.threads: dict[str, float] = {}
        self._records, self._through = records, 0
        self._watch = watch
        self._began_s: float | None = None
        self._cpu_s: dict[str, float] = {}

    def done(self, count: Callable[[Progress, str, int], None]) -> Callable[[Progress, str, int], None]:
        """In the place of `Progress.done`."""

        def counted(progress: Progress, topic: str, records: int) -> None:
            count(progress, topic, records)
            self._through += records
            if self._began_s is None and self._through >= WARM_UP:
                self._cpu_s, self._began_s = cpu_seconds(), time.perf_counter()
                self._watch.begin()
            if self._began_s is not None and self._through >= self._records and not self.seconds:
                self.seconds = time.perf_counter() - self._began_s
                self._watch.end()
                self.threads = {name: spent - self._cpu_s.get(name, 0.0) for name, spent in cpu_seconds().items()}
                os.kill(os.getpid(), signal.SIGTERM)

        return counted


def cpu_seconds() -> dict[str, float]:
    """CPU time so far of the calling thread, of the readers, and of everything that is not Python's."""
    me = threading.get_ident()
    spent = {"worker": time.thread_time()}
    for thread in threading.enumerate():
        if thread.ident is not None and thread.ident != me:
            clock = time.pthread_getcpuclockid(thread.ident)
            spent[thread.name] = time.clock_gettime(clock)
    return spent | {"librdkafka, RocksDB and others": time.process_time() - sum(spent.values())}
