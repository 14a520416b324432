"""What one partition costs: processor time, memory, disk, and the time until it is there.

    python -m benchmarks.partition_cost [--quick] [--json benchmarks/results/partition_cost.json]

Processor time is that of the process, which others on the machine change least; what is by the clock says so, and the
machine's load stands beside it. A partition's owners have 100, 1,000 or 10,000 memories each. Those with a broker are
the whole of `run`: reading, applying or answering, and sending, of which the engine's share is measured beside.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.command_line import quick_arguments, write_json
from benchmarks.engine import events
from benchmarks.kafka_flow import create, own_topics, run_flow, running_flow
from benchmarks.kafka_load import WARM_UP, ask, produce, recalls, remember_all, until_applied
from benchmarks.locomo import load, shared
from recallflow.flows.embedded import EmbeddedEngine, StateLoop
from recallflow.flows.gc_policy import engine_process
from recallflow.flows.settings import Settings
from recallflow.outputs import Answer
from recallflow.records import Position, Record
from recallflow.state.files import sync_tree
from tools.broker import Cluster, connect_or_start

OWNERS = {100: 200, 1_000: 20, 10_000: 3}  # by how many memories each has
QUICK_OWNERS = {100: 20, 1_000: 3}
LARGE, QUICK_LARGE = 200_000, 5_000  # memories of the partition that is opened and copied
BATCH = 25  # messages: about what `run` gives its dataflow at a time
ASKED = 10  # questions to each owner at most, after its first
COPIES = 3
QUANTILES = 100
MESSAGES, QUERIES_PER_S, SECONDS = 20_000, 50, 20
QUICK_MESSAGES, QUICK_SECONDS = 4_000, 5
USERS = 8
EVENTS_TOPIC, QUERY_TOPIC = "events", "queries"
ONE_PARTITION = Settings(partitions=1, cache_bytes=8 * 1024 * 1024 * 1024)  # nobody leaves memory
MIB = 1024 * 1024


# ---------------------------------------------------------------------- the engine's share


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that runs in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def fill(folder: Path, memories: int, owners: int) -> float:
    """Fill a new partition; return microseconds of processor time for a message."""
    lines = events(load(shared("data", "locomo_dev.json")), memories * owners, owners)
    with EmbeddedEngine.open(ONE_PARTITION, folder) as embedded, engine_process():
        loop = StateLoop(embedded, embedded.rules(QUERY_TOPIC, input_ends=False))
        loop.continue_logs([EVENTS_TOPIC, QUERY_TOPIC])
        began_s = time.process_time()
        for start in range(0, len(lines), BATCH):
            loop.apply([_record(EVENTS_TOPIC, at, line) for at, line in enumerate(lines[start : start + BATCH], start)])
            loop.advance()
        spent_s = time.process_time() - began_s
        loop.end()
    return spent_s / len(lines) * 1e6


def ask_owners(folder: Path, owners: int) -> dict[str, Any]:
    """Open a partition and query its owners, the first of them as a warm-up.

    Returns the cost of the opening, of an owner's first and later questions, and of an owner in memory.
    """
    conversations = load(shared("data", "locomo_dev.json"))
    questions = recalls(conversations, owners)
    by_owner = [questions[number::owners][: 1 + ASKED] for number in range(owners)]
    with engine_process():
        began_s, spent_s = time.perf_counter(), time.process_time()
        with EmbeddedEngine.open(ONE_PARTITION, folder) as embedded:
            loop = StateLoop(embedded, embedded.rules(QUERY_TOPIC, input_ends=False))
            offset = loop.continue_logs([EVENTS_TOPIC, QUERY_TOPIC])[QUERY_TOPIC]
            opened = {"s": time.perf_counter() - began_s, "cpu_s": time.process_time() - spent_s}

            def spent_ms(line: bytes) -> float:
                nonlocal offset
                offset += 1
                began_s = time.process_time()
                outputs = loop.apply([_record(QUERY_TOPIC, offset, line)])
                taken_ms = (time.process_time() - began_s) * 1000
                (answer,) = (one for one in outputs if isinstance(one, Answer))
                if orjson.loads(answer.body)["status"] != "ok":
                    raise RuntimeError(f"a question was answered with {answer.body!r}")
                return taken_ms

            for line in by_owner[0]:  # words of questions, and code, are known from here on
                spent_ms(line)
            before, hot_before = resident_bytes(), embedded.directory.hot_bytes
            first = [spent_ms(lines[0]) for lines in by_owner[1:]]
            hot, resident = embedded.directory.hot_bytes - hot_before, resident_bytes() - before
            warm = [spent_ms(line) for lines in by_owner[1:] for line in lines[1:]]
    return {
        "open": opened,
        "first_query_ms": statistics.mean(first),
        "query_ms": statistics.mean(warm),
        "query_quantiles_ms": np.quantile(warm, np.linspace(0, 1, QUANTILES + 1)).tolist(),
        "hot_bytes": hot / len(first),
        "resident_bytes": resident / len(first),
    }


def _record(topic: str, offset: int, line: bytes) -> Record:
    return Record(Position(topic, 0, offset), line, time.time_ns() // 1_000_000, append_logged=False)


def resident_bytes() -> int:
    """What this process has of the machine's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("p*/*"))


def of_size(memories: int, owners: int) -> dict[str, Any]:
    """What a partition costs whose owners have so many memories."""
    with tempfile.TemporaryDirectory() as one:
        folder = Path(one) / "state"
        message_us = in_process(fill, folder, memories, owners)
        stored = disk_bytes(folder) / (memories * owners)
        asked: dict[str, Any] = in_process(ask_owners, folder, owners)
    del asked["open"]
    return {"owners": owners, "message_us": message_us, "disk_bytes_a_message": stored} | asked


# ---------------------------------------------------------------------- a partition that arrives


def arrival(memories: int) -> dict[str, float]:
    """What it takes to have a partition of many owners here: a copy of its files, synced, and the opening of them."""
    owners = memories // 1_000
    with tempfile.TemporaryDirectory() as one:
        folder = Path(one) / "state"
        in_process(fill, folder, 1_000, owners)
        size = disk_bytes(folder)
        copies = [_copy(folder, Path(one) / f"copy{number}") for number in range(COPIES)]
        clock_s, cpu_s = min(taken[0] for taken in copies), min(taken[1] for taken in copies)
        opened = in_process(ask_owners, Path(one) / "copy0", owners)["open"]
    gib = size / 1024**3
    return {
        "memories": memories,
        "bytes": size,
        "copy_s_a_gib": clock_s / gib,
        "copy_cpu_s_a_gib": cpu_s / gib,
        "open_s": opened["s"],
        "open_cpu_s": opened["cpu_s"],
    }


def _copy(source: Path, target: Path) -> tuple[float, float]:
    began_s, spent_s = time.perf_counter(), time.process_time()
    shutil.copytree(source, target)
    sync_tree(target)
    return time.perf_counter() - began_s, time.process_time() - spent_s


# ---------------------------------------------------------------------- the whole of `run`


def process_seconds(pid: int) -> float:
    """Processor time of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def whole(cluster: Cluster, messages: int, seconds: int) -> dict[str, float]:
    """Processor time of a process of `run`: for a message of a backlog, for a query, and for a second of nothing."""
    conversations = load(shared("data", "locomo_dev.json"))
    queries, topics = recalls(conversations, USERS), own_topics()
    lines = [orjson.dumps(orjson.loads(line) | {"user_id": f"other{n % 20}"})
             for n, line in enumerate(events(conversations, messages, 20))]  # fmt: skip
    create(cluster, topics)
    with running_flow(cluster, topics):
        (pid,) = (child.pid for child in active_children() if child.name == run_flow.__name__)
        remember_all(cluster, topics, conversations, USERS)

        def spent_s() -> float:
            return process_seconds(pid or 0)

        began_s = spent_s()
        time.sleep(seconds / 2)
        idle = (spent_s() - began_s) / (seconds / 2)
        clock_s, began_s = time.perf_counter(), spent_s()
        until_applied(cluster, topics, produce(cluster, topics.memory, lines))
        backlog_s, backlog_cpu_s = time.perf_counter() - clock_s, spent_s() - began_s
        clock_s, began_s = time.perf_counter(), spent_s()
        ask(cluster, topics, queries, QUERIES_PER_S, lambda asked: asked < seconds * QUERIES_PER_S)
        asked_s, asked_cpu_s = time.perf_counter() - clock_s, spent_s() - began_s
    return {
        "idle_cores": idle,
        "message_us": (backlog_cpu_s - idle * backlog_s) / messages * 1e6,
        "query_ms": (asked_cpu_s - idle * asked_s) / (WARM_UP + seconds * QUERIES_PER_S) * 1e3,
        "message_bytes": statistics.mean(map(len, lines)),
    }


# ---------------------------------------------------------------------- all of it


def measure(cluster: Cluster, *, quick: bool) -> dict[str, Any]:
    owners = QUICK_OWNERS if quick else OWNERS
    return {
        "load": os.getloadavg()[0],
        "owners": {f"{memories}": of_size(memories, count) for memories, count in owners.items()},
        "partition": arrival(QUICK_LARGE if quick else LARGE),
        "run": whole(cluster, QUICK_MESSAGES if quick else MESSAGES, QUICK_SECONDS if quick else SECONDS),
    }


def main() -> None:
    chosen = quick_arguments(__doc__).parse_args()
    with connect_or_start() as cluster:
        figures = measure(cluster, quick=chosen.quick)
    show(figures)
    write_json(figures, chosen.json)


def show(figures: dict[str, Any]) -> None:
    rows = {
        "message, µs of the processor": ("message_us", 1, "8.0f"),
        "question, ms of the processor": ("query_ms", 1, "8.2f"),
        "an owner's first question, the same": ("first_query_ms", 1, "8.2f"),
        "hot owner, KiB": ("hot_bytes", 1024, "8.0f"),
        "the same, as the process grew": ("resident_bytes", 1024, "8.0f"),
        "disk, bytes a message": ("disk_bytes_a_message", 1, "8.0f"),
    }
    print(f"{'memories of an owner':44}" + "".join(f"{int(size):8,}" for size in figures["owners"]))
    for title, (name, unit, form) in rows.items():
        print(f"{title:44}" + "".join(f"{one[name] / unit:{form}}" for one in figures["owners"].values()))
    one, run = figures["partition"], figures["run"]
    print(f"a partition of {one['memories']:,} memories, {one['bytes'] / MIB:,.0f} MiB:")
    print(f"  copied and synced, s a GiB by the clock {one['copy_s_a_gib']:.1f}, of the processor", end=" ")
    print(f"{one['copy_cpu_s_a_gib']:.1f}; opened in {one['open_s']:.2f} s, {one['open_cpu_s']:.2f} of the processor")
    print(f"`run`: message {run['message_us']:.0f} µs, question {run['query_ms']:.2f} ms", end="; ")
    print(f"nothing to do: {run['idle_cores'] * 100:.1f} % of a core")
    print(f"load of the machine {figures['load']:.1f}")


if __name__ == "__main__":
    main()
