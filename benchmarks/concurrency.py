"""Queries per second at a p99 of at most 50 ms, with engines in 1, 2 and 4 processes or threads, over 1,000 owners.

    python -m benchmarks.concurrency [--quick] [--json FILE]

Each engine has its own state directory with its share of the owners, as members of a deployment have their partitions.
An engine computes on one thread; "threads" are several engines in one process. Queries are due at a steady rate, and
a latency counts from then. The rate grows by STEP until the p99 is over the bound.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing import get_context
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import orjson

from benchmarks.engine import events
from benchmarks.locomo import load, shared
from recallflow import AsyncMemory
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

OWNERS, QUICK_OWNERS = 1_000, 80
MEMORIES, QUICK_MEMORIES = 100, 20  # of an owner
BOUND_MS = 50.0
FIRST_PER_S, STEP, MOST = 40.0, 1.2, 20  # rates that are tried
SECONDS, QUICK_SECONDS = 6, 1
SHAPES = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4))  # processes, and engines in each
START_S = 600.0


def fill(folder: Path, owners: int, memories: int) -> None:
    """Write an engine's state."""
    lines = events(load(shared("data", "locomo_dev.json")), owners * memories, owners)
    process(lines, Settings(partitions=1), folder)


def serve(folders: Sequence[Path], owners: int, engines: int, seconds: float, barrier: Any) -> list[list[float]]:
    """Answer queries with one engine a folder; return the latencies at each rate, in milliseconds."""
    return asyncio.run(_serve(folders, owners, engines, seconds, barrier))


async def _serve(folders: Sequence[Path], owners: int, engines: int, seconds: float, barrier: Any) -> list[list[float]]:
    questions = [question.text for one in load(shared("data", "locomo_dev.json")) for question in one.questions]
    found: list[list[float]] = []
    async with AsyncExitStack() as stack:
        memories = [await stack.enter_async_context(AsyncMemory(one, tenant="bench")) for one in folders]

        async def ask(number: int, due_s: float) -> float:
            await asyncio.sleep(due_s - time.perf_counter())
            engine, user = memories[number % len(memories)], f"user{number // len(memories) % owners}"
            await engine.search(questions[number % len(questions)], user=user)
            return (time.perf_counter() - due_s) * 1000

        for number in range(owners * len(memories)):  # all owners are in memory
            await ask(number, time.perf_counter())
        for step in range(MOST):
            per_s = FIRST_PER_S * STEP**step * len(memories) / engines
            try:
                await asyncio.to_thread(barrier.wait, START_S)
            except BrokenBarrierError:  # another process has ended
                break
            began_s = time.perf_counter()
            asked = [ask(number, began_s + number / per_s) for number in range(max(1, round(per_s * seconds)))]
            found.append(await asyncio.gather(*asked))
            if np.percentile(found[-1], 99) > 2 * BOUND_MS:
                barrier.abort()
                break
    return found


def measure(folder: Path, processes: int, threads: int, owners: int, memories: int, seconds: float) -> float:
    """Return the highest rate, in queries a second over all engines, at which the p99 is within the bound."""
    engines = processes * threads
    folders = [folder / f"{engines}-{number}" for number in range(engines)]
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        for one in [pool.submit(fill, path, owners // engines, memories) for path in folders if not path.exists()]:
            one.result()
        barrier = manager.Barrier(processes)
        shares = [folders[start : start + threads] for start in range(0, engines, threads)]
        running = [pool.submit(serve, share, owners // engines, engines, seconds, barrier) for share in shares]
        found = [one.result() for one in running]
    best = 0.0
    for step, times in enumerate(zip(*found, strict=False)):
        if np.percentile(np.concatenate(times), 99) <= BOUND_MS:
            best = FIRST_PER_S * STEP**step
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    owners, memories = (QUICK_OWNERS, QUICK_MEMORIES) if chosen.quick else (OWNERS, MEMORIES)
    seconds = QUICK_SECONDS if chosen.quick else SECONDS
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes, threads in SHAPES[:2] if chosen.quick else SHAPES:
            best = measure(Path(folder), processes, threads, owners, memories, seconds)
            figures[f"{processes} x {threads}"] = best
            print(
                f"{processes} processes x {threads} threads: {best:4.0f} queries/s at p99 <= {BOUND_MS:.0f} ms",
                flush=True,
            )
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures))


if __name__ == "__main__":
    main()
