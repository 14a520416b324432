"""Queries per second and their p99 with engines in 1, 2 and 4 processes or threads, over 1,000 owners.

    python -m benchmarks.concurrency [--quick] [--json FILE]

Each engine has its own state directory with its share of the owners, as members of a deployment have their partitions,
and one client that asks without a pause. "threads" are several engines in one process. The shapes take turns, and a
rate is compared with that of one engine in the same turn, so that a busy machine is busy for all.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.command_line import quick_arguments, write_json
from benchmarks.engine import events
from benchmarks.locomo import load, shared
from recallflow import Memory
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

OWNERS, QUICK_OWNERS = 1_000, 40
MEMORIES, QUICK_MEMORIES = 100, 20  # of an owner
ENGINES = 4  # in the most processes or threads
SECONDS, QUICK_SECONDS = 3.0, 0.5  # of a shape in a round
ROUNDS, QUICK_ROUNDS = 8, 2


Shape = tuple[int, int]  # processes that are queried at the same time, and engines in each
SHAPES: tuple[Shape, ...] = ((1, 1), (1, 2), (1, 4), (2, 1), (4, 1))


def serve(folders: Sequence[Path], owners: int, parent: Connection) -> None:
    """Open an engine for each folder, then ask as many of them as the parent says; send the latencies in seconds."""
    questions = [question.text for one in load(shared("data", "locomo_dev.json")) for question in one.questions]

    def ask(memory: Memory, until_s: float) -> list[float]:
        times_s, now_s = list[float](), time.perf_counter()
        while now_s < until_s:
            memory.search(questions[len(times_s) % len(questions)], user=f"user{len(times_s) % owners}")
            times_s.append(time.perf_counter() - now_s)
            now_s += times_s[-1]
        return times_s

    with ExitStack() as stack:
        memories = [stack.enter_context(Memory(folder, tenant="bench")) for folder in folders]
        for memory in memories:
            for owner in range(owners):  # all are in memory before the first turn
                memory.search("hello", user=f"user{owner}")
        parent.send(None)
        while (turn := parent.recv()) is not None:
            threads, seconds = turn
            until_s = time.perf_counter() + seconds
            with ThreadPoolExecutor(threads) as clients:
                found = clients.map(lambda memory, until_s=until_s: ask(memory, until_s), memories[:threads])
            parent.send([one for times_s in found for one in times_s])


def measure(folder: Path, *, quick: bool) -> dict[str, dict[str, float]]:
    """Return the rate, the ratio to one engine's rate, and the p99 in milliseconds of each shape, medians of rounds."""
    owners, memories = (QUICK_OWNERS, QUICK_MEMORIES) if quick else (OWNERS, MEMORIES)
    seconds, rounds = (QUICK_SECONDS, QUICK_ROUNDS) if quick else (SECONDS, ROUNDS)
    share = owners // ENGINES
    lines = events(load(shared("data", "locomo_dev.json")), share * memories, share)
    folders = [folder / f"{number}" for number in range(2 * ENGINES - 1)]
    for one in folders:
        process(lines, Settings(partitions=1), one)
    context = get_context("spawn")
    pipes, running = [], []
    for own in (folders[:ENGINES], *([one] for one in folders[ENGINES:])):  # the first process has the threads
        ours, theirs = context.Pipe()
        running.append(context.Process(target=serve, args=(own, share, theirs), daemon=True))
        running[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    found: dict[Shape, list[tuple[float, float]]] = {shape: [] for shape in SHAPES}
    for _ in range(rounds):
        for processes, threads in SHAPES:
            for pipe in pipes[:processes]:
                pipe.send((threads, seconds))
            times_s = [one for pipe in pipes[:processes] for one in pipe.recv()]
            found[processes, threads].append((len(times_s) / seconds, float(np.percentile(times_s, 99)) * 1000))
    for pipe, child in zip(pipes, running, strict=True):
        pipe.send(None)
        child.join()
    single = [rate for rate, _ in found[SHAPES[0]]]
    return {
        f"{processes} x {threads}": {
            "per_s": statistics.median(rate for rate, _ in turns),
            "ratio": statistics.median(rate / alone for (rate, _), alone in zip(turns, single, strict=True)),
            "p99_ms": statistics.median(p99 for _, p99 in turns),
        }
        for (processes, threads), turns in found.items()
    }


def main() -> None:
    chosen = quick_arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), quick=chosen.quick)
    print("processes x threads   queries/s   of one engine's   p99, ms")
    for name, one in figures.items():
        print(f"{name:20}{one['per_s']:11.0f}{one['ratio']:18.2f}{one['p99_ms']:10.1f}")
    write_json(figures, chosen.json)


if __name__ == "__main__":
    main()
