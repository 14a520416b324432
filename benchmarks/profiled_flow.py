"""A flow that takes a given number of records and is stopped behind them: how long it took, and where the time went.

It is looked at from outside: progress is read from the metrics that it serves, and where the time goes from py-spy's
samples of its stacks. Nothing of it is replaced, but by the pass-through: that has no engine.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal
from unittest.mock import patch
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from recallflow.brokers.options import KafkaOptions
from recallflow.flows.config import Config, RunSettings
from recallflow.flows.kafka import KafkaFlow, MainFlow, Read
from recallflow.flows.runner import BatchStep, Recipe, RecipeSink, RecipeSource
from recallflow.flows.settings import TopicNames
from recallflow.outputs import Done, Output, Receipted
from recallflow.records import Record

WARM_UP = 2_000  # records: databases are opened and words are new
FUNCTIONS = 15
SAMPLES_PER_S = 200
READ_S = 0.05
OTHER = "Bytewax, and waiting for the interpreter"

STEPS = {
    "OwnedSource.next_batch (owned.py)": "source: records",
    "Hub.wait (hub.py)": "source: nothing to read",
    "decode (decode.py)": "decode",
    "prepare (prepare.py)": "prepare: words and vectors",
    "by_partition (snapshot.py)": "key",
    "PartitionLogic.on_batch (partition.py)": "state: apply",
    "Partition.commit (partition.py)": "state: WriteBatch to RocksDB",
    "StateDirectory.sync (directory.py)": "state: sync of the log",
    "Delivery.write_batch (delivery.py)": "sink: produce",
    "OutputSender.flush_outputs (delivery.py)": "sink: flush",
}


@dataclass(frozen=True)
class Job:
    """What a process does. `receipts`: the pass-through puts each record out again, as the engine does a receipt."""

    bootstrap_servers: str
    topics: TopicNames
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
    run = RunSettings(metrics_port=_free_port())
    watcher = Watcher(job, run.metrics_port)
    with ExitStack() as stack:
        if job.passes_through:
            stack.enter_context(patch.object(MainFlow, "recipe", _pass_through(job.receipts)))
        watcher.start()
        KafkaFlow(Config(job.state_dir, KafkaOptions(job.bootstrap_servers), job.topics, run=run)).run()
    watcher.join()
    answer.send(watcher.lap())


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _pass_through(receipts: bool) -> Callable[[MainFlow, RecipeSource, RecipeSink], Recipe]:
    """Stands in for the engine: every record is through as soon as it is taken in."""

    def through(batch: list[Read]) -> Iterable[tuple[str, Output]]:
        offsets: dict[str, list[int]] = defaultdict(list)
        for record in batch:
            if not isinstance(record, Record):
                continue
            offsets[record.position.source].append(record.position.offset)
            if receipts:
                yield "000", Receipted(record.position, 0, record.key or b"", record.value)
        yield from (("000", Done(source, tuple(found))) for source, found in offsets.items())

    def recipe(flow: MainFlow, source: RecipeSource, sink: RecipeSink) -> Recipe:
        return Recipe("through", source, [BatchStep("through", through), BatchStep("route", flow.route_outputs)], sink)

    return recipe


class Watcher(threading.Thread):
    """Reads from outside how far a flow of this process is, has its stacks sampled, and stops it at the end."""

    def __init__(self, job: Job, port: int | None) -> None:
        super().__init__(daemon=True, name="watcher")
        self._job = job
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._read: list[tuple[float, int]] = []  # at which time, how many records were through, after the warm-up
        self._stacks = ""
        self._cpu_s: dict[str, float] = {}

    def run(self) -> None:
        while (through := self._through()) < WARM_UP:
            time.sleep(READ_S)
        begin_cpu_s = cpu_seconds()
        self._read.append((time.perf_counter(), through))
        with ExitStack() as stack:
            if self._job.watch is not None:
                stack.enter_context(self._sampled())
            while through < self._job.records:
                time.sleep(READ_S)
                through = self._through()
                self._read.append((time.perf_counter(), through))
        self._cpu_s = {name: spent - begin_cpu_s.get(name, 0.0) for name, spent in cpu_seconds().items()}
        os.kill(os.getpid(), signal.SIGTERM)

    def lap(self) -> Lap:
        """What was found. The last reading may come long after the last record, so the rate is that of the one
        before."""
        (first_s, first), *read = self._read
        last_s, last = read[-2] if len(read) > 1 else read[-1]
        per_s = (last - first) / (last_s - first_s)
        seconds = (self._job.records - first) / per_s
        samples: Counter[str] = Counter()
        for line in self._stacks.splitlines():
            stack, _, count = line.rpartition(" ")
            names = [_name(frame) for frame in reversed(stack.split(";"))]  # the innermost first
            if step := next((STEPS[name] for name in names if name in STEPS), None):
                samples[step if self._job.watch == "steps" else names[0]] += int(count)
        parts = {name: count / SAMPLES_PER_S for name, count in samples.most_common()}
        if self._job.watch == "functions":
            parts = dict([*parts.items()][:FUNCTIONS])
        elif parts:
            parts[OTHER] = seconds - sum(parts.values())
        return Lap(per_s, seconds, parts, self._cpu_s)

    @contextmanager
    def _sampled(self) -> Iterator[None]:
        """Samples the stacks of this process from another one: it waits for no interpreter lock."""
        spy = str(Path(sys.executable).with_name("py-spy"))
        chosen = ["--pid", str(os.getpid()), "--rate", str(SAMPLES_PER_S), "--format", "raw", "--function"]
        with tempfile.NamedTemporaryFile() as found:
            command = [spy, "record", *chosen, "--output", found.name]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as sampler:
                yield
                sampler.send_signal(signal.SIGINT)
            self._stacks = Path(found.name).read_text()

    def _through(self) -> int:
        """How many records of the memory topic are through; 0 while nothing is served yet."""
        try:
            with urlopen(self._url) as response:
                families = {one.name: one for one in text_string_to_metric_families(response.read().decode())}
        except (URLError, ConnectionError):
            return 0
        if "recallflow_records" not in families:
            return 0
        taken = sum(sample.value for sample in families["recallflow_records"].samples)
        return int(taken - families["recallflow_in_flight_records"].samples[0].value)


def _name(frame: str) -> str:
    """`function (file)` of a sampled frame, which names the file's folders and a line too."""
    function, _, place = frame.removesuffix(")").rpartition(" (")
    return f"{function} ({Path(place.rpartition(':')[0]).name})"


def cpu_seconds() -> dict[str, float]:
    """CPU time so far of each of Python's threads, and of everything that is not Python's."""
    spent: dict[str, float] = defaultdict(float)
    for thread in threading.enumerate():
        if thread.ident is not None:
            name = "worker" if thread is threading.main_thread() else thread.name
            with suppress(ProcessLookupError):  # it has ended since
                spent[name] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return spent | {"librdkafka, RocksDB and others": time.process_time() - sum(spent.values())}
