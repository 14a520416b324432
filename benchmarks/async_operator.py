"""The async operator beside plain asyncio, on calls of 200 ms with 100 under way.

    python -m benchmarks.async_operator [--quick] [--json FILE]

A coroutine that only sleeps shows what the operator costs: 500 calls/s are the ideal. The official OpenAI client,
against a local server in a process of its own, shows what is left of that with a client that needs most of a core. Each
is run with Bytewax and without, in turn, and the median of the rounds counts; the latency is from the end of a call to
its result at the sink.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import TestingSource, run_main
from openai import AsyncOpenAI

from benchmarks.model_server import EVERY, serving
from recallflow.operators.async_call import Completed, Completions, Failed, Runtime
from recallflow.operators.async_call.steps import async_call, async_input

CALL_S = 0.2
CAPACITY = 100
IDEAL_PER_S = CAPACITY / CALL_S
KEYS = 16
SWITCH_S = 0.0005  # as the flows set it: the worker shares the GIL with the loop thread

Ended = float
"""When a call ended, by `time.perf_counter`: what the benchmark's calls return."""

Fn = Callable[[int], Awaitable[Ended]]


@dataclass(slots=True)
class Measured:
    per_s: float
    latencies_ms: list[float] = field(default_factory=list)


# ------------------------------------------------------------------ with Bytewax


class Latencies(DynamicSink[Completed[int, Ended] | Failed[int]]):
    """Notes how long each result took from the end of its call."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "LatenciesPart":  # noqa: ARG002
        return LatenciesPart(self.ms)


class LatenciesPart(StatelessSinkPartition[Completed[int, Ended] | Failed[int]]):
    def __init__(self, latencies_ms: list[float]) -> None:
        self._latencies_ms = latencies_ms

    def write_batch(self, items: list[Completed[int, Ended] | Failed[int]]) -> None:
        now = time.perf_counter()
        for result in items:
            assert isinstance(result, Completed), result
            self._latencies_ms.append((now - result.value) * 1000)


class UntilAnswered(TestingSource[tuple[str, int]]):
    """Does not end before all results are out: at the end the operator would keep what is pending."""

    def __init__(self, count: int, answered: Callable[[], int]) -> None:
        super().__init__([(f"{number % KEYS:02d}", number) for number in range(count)], batch_size=CAPACITY)
        self._count = count
        self._answered = answered

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Any:
        part = super().build_part(step_id, for_part, resume_state)
        give = part.next_batch

        def next_batch() -> list[tuple[str, int]]:
            try:
                return give()
            except StopIteration:
                if self._answered() == self._count:
                    raise
                return []

        part.next_batch = next_batch  # type: ignore[method-assign]
        return part


def with_bytewax(fn: Fn, count: int) -> Measured:
    sink = Latencies()
    with Runtime(Completions(), CAPACITY) as runtime:
        flow = Dataflow("calls")
        read = async_input("read", flow, UntilAnswered(count, lambda: len(sink.ms)), runtime.completions)
        called = async_call("call", read.items, read.finished, fn, runtime)
        op.output("out", op.map("result", called, lambda keyed: keyed[1]), sink)
        started = time.perf_counter()
        run_main(flow)
        return Measured(count / (time.perf_counter() - started), sink.ms)


# --------------------------------------------------------------- without Bytewax


def without_bytewax(fn: Fn, count: int) -> Measured:
    """The same loop thread and capacity, so that the client's connections stay open between the two."""
    places = asyncio.Semaphore(CAPACITY)

    async def one(number: int) -> None:
        async with places:
            await fn(number)

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(count)))

    with Runtime(Completions()) as runtime:
        started = time.perf_counter()
        runtime.run(all_of_them())
        return Measured(count / (time.perf_counter() - started))


# ------------------------------------------------------------------------- calls


async def sleeping(number: int) -> Ended:  # noqa: ARG001
    await asyncio.sleep(CALL_S)
    return time.perf_counter()


@contextlib.contextmanager
def asking() -> Iterator[Fn]:
    """The official client, and a server for it."""
    with serving({EVERY: CALL_S}) as service:
        client = AsyncOpenAI(base_url=service.url, api_key="none", max_retries=0)

        async def ask(number: int) -> Ended:
            messages = [{"role": "user", "content": f"question {number}"}]
            answer = await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
            assert answer.choices[0].message.content
            return time.perf_counter()

        yield ask
        with Runtime(Completions()) as runtime:
            runtime.run(client.close())


# ------------------------------------------------------------------------ report


def compare(fn: Fn, count: int, rounds: int) -> dict[str, float]:
    """Medians over the rounds of rates; percentiles over all calls of latencies."""
    without_bytewax(fn, CAPACITY)  # opens connections, loads what is loaded late
    plain, within = [], []
    for _ in range(rounds):
        plain.append(without_bytewax(fn, count))
        within.append(with_bytewax(fn, count))
    latencies_ms = [ms for measured in within for ms in measured.latencies_ms]
    alone = statistics.median(measured.per_s for measured in plain)
    operator = statistics.median(measured.per_s for measured in within)
    return {
        "without_bytewax_per_s": alone,
        "operator_per_s": operator,
        "operator_to_without": operator / alone,
        "operator_to_ideal": operator / IDEAL_PER_S,
        "completion_to_output_ms_p50": float(np.percentile(latencies_ms, 50)),
        "completion_to_output_ms_p99": float(np.percentile(latencies_ms, 99)),
    }


def measure(*, quick: bool) -> dict[str, dict[str, float]]:
    """Sets the interpreter's switch interval, as the flows do."""
    sys.setswitchinterval(SWITCH_S)
    count, rounds = (1_000, 1) if quick else (3_000, 3)
    figures = {"coroutine": compare(sleeping, count, rounds)}
    with asking() as ask:
        figures["official client"] = compare(ask, count, rounds)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    figures = measure(quick=chosen.quick)
    show(figures)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


def show(figures: dict[str, dict[str, float]]) -> None:
    print(f"calls of {CALL_S * 1000:.0f} ms, {CAPACITY} under way, ideal {IDEAL_PER_S:.0f}/s")
    print(" " * 34 + "".join(f"{name:>18}" for name in figures))
    for figure in next(iter(figures.values())):
        print(f"  {figure:<32}" + "".join(f"{measured[figure]:18.2f}" for measured in figures.values()))


if __name__ == "__main__":
    main()
