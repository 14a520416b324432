"""Why processes of `run` are not one Bytewax cluster: what a query waits for, and what is left when one process dies.

    python -m benchmarks.bytewax_cluster [--quick] [--json FILE]

Two processes that know each other's addresses, one worker each, and nothing of recallflow in them: messages and queries
whose only work is processor time, keyed to a state step. The second process reads queries, whose keys are its own. The
backlog's keys are its own, too; it is read there, or by the first process, from where it crosses the exchange. Then
both read and keep to themselves, and one is killed; and one is started where the other is not.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.run import cli_main

ROOT = Path(__file__).parents[1]
KEYS = [f"{number:03d}" for number in range(16)]
MESSAGE_US, QUERY_US = 200, 2_000
BATCH = 25  # messages: 5 ms of work, as the hub of `run` gives them
EVERY_S = 0.05  # a query
EPOCH_MS, SHORT_EPOCH_MS = 500, 10  # as `run` has it, and the shortest that it allows
WATCHED_S = 3.0
READY_S, GIVE_UP_S = 30.0, 120.0
POLL_S = 0.02
AT_ONCE = datetime.fromtimestamp(0, UTC)

Item = tuple[str, float]  # "message" or "query", and when it was due


@dataclass(frozen=True)
class Plan:
    """What one process does. `key`: whose state its records are of; `messages`: the backlog that it reads; `queries`:
    how many it asks, each when it is due; `record`: a file for what the state step did here."""

    addresses: tuple[str, ...]
    process: int
    record: str
    key: str
    messages: int = 0
    queries: int = 0
    epoch_ms: int = EPOCH_MS
    ends: bool = True


# ---------------------------------------------------------------------- in the process


class Reads(DynamicSource[tuple[str, Item]]):
    """Each worker reads what its own process is to read."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "Records":  # noqa: ARG002
        return Records(self._plan)


class Records(StatelessSourcePartition[tuple[str, Item]]):
    """Queries first, each when it is due; else a batch of the backlog."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._asked = self._given = 0
        self._began_s = time.monotonic()

    def next_batch(self) -> list[tuple[str, Item]]:
        plan, now_s = self._plan, time.monotonic()
        due_s = self._began_s + self._asked * EVERY_S
        if self._asked < plan.queries and due_s <= now_s:
            self._asked += 1
            return [(plan.key, ("query", due_s))]
        count = min(BATCH, plan.messages - self._given)
        if count == 0 and self._asked == plan.queries and plan.ends:
            raise StopIteration
        self._given += count
        return [(plan.key, ("message", now_s))] * count

    def next_awake(self) -> datetime:
        busy = self._given < self._plan.messages
        return AT_ONCE if busy else datetime.now(UTC) + timedelta(milliseconds=1)


class Works(StatefulBatchLogic[Item, Item, None]):
    """Spends an item's processor time, and records what came of it in this process."""

    def __init__(self, record: Callable[[str, float], None]) -> None:
        self._record = record

    def on_batch(self, values: list[Item]) -> tuple[list[Item], bool]:
        for kind, due_s in values:
            until_s = time.thread_time() + (QUERY_US if kind == "query" else MESSAGE_US) / 1e6
            while time.thread_time() < until_s:
                pass
            self._record(kind, time.monotonic() - due_s)
        return [], StatefulBatchLogic.RETAIN

    def snapshot(self) -> None:
        return None


def child(plan: Plan) -> None:
    """Runs one process of the cluster, to the end of what it reads."""
    flow = Dataflow("cluster")
    with Path(plan.record).open("w", buffering=1) as file:

        def record(kind: str, latency_s: float) -> None:
            file.write(f"{kind} {latency_s}\n")

        items = op.input("records", flow, Reads(plan))
        through = op.stateful_batch("state", items, lambda _: Works(record))
        op.inspect("out", through, lambda *_: None)
        epoch = timedelta(milliseconds=plan.epoch_ms)
        cli_main(flow, addresses=list(plan.addresses), process_id=plan.process, epoch_interval=epoch)


# ---------------------------------------------------------------------- beside it


class Member:
    """A started process of the cluster."""

    def __init__(self, plan: Plan, said: Path) -> None:
        self.record, self._said = Path(plan.record), said
        command = [sys.executable, "-m", "benchmarks.bytewax_cluster", "--child", orjson.dumps(plan).decode()]
        with said.open("wb") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)

    def done(self) -> list[tuple[str, float]]:
        """What the state step has done here so far: the kind, and seconds since it was due."""
        if not self.record.exists():
            return []
        whole = self.record.read_text().rpartition("\n")[0].splitlines()
        return [(kind, float(latency_s)) for kind, _, latency_s in (line.partition(" ") for line in whole)]

    def last_words(self) -> str:
        """The line of its errors that says why it ended."""
        said = [line for line in self._said.read_text(errors="replace").splitlines() if line.strip()]
        return next((line for line in said if "panicked" in line or "Error" in line), "") or "".join(said[-1:])


@contextmanager
def cluster(plans: list[dict[str, Any]], started: tuple[int, ...] = (0, 1)) -> Iterator[list[Member]]:
    """Processes that know each other's addresses, of which some are started. They are gone afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with ExitStack() as ports:
            sockets = [ports.enter_context(socket.socket()) for _ in plans]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            addresses = tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
        members = []
        for process in started:
            plan = Plan(addresses, process, str(folder / f"record{process}"), **plans[process])
            members.append(Member(plan, folder / f"said{process}"))
            stack.callback(members[-1].process.wait)
            stack.callback(members[-1].process.kill)
        yield members


def until(true: Callable[[], bool], most_s: float = READY_S) -> float:
    """Seconds until it is true. RuntimeError where it never is."""
    began_s = time.monotonic()
    while not true():
        if time.monotonic() - began_s > most_s:
            raise RuntimeError(f"nothing happened within {most_s:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def key_of_second() -> str:
    """A key whose state lies in the second process: the first process sends one record of each, and that is seen."""
    for key in KEYS:
        with cluster([{"key": key, "messages": 1}, {"key": key}]) as members:
            for member in members:
                member.process.wait(READY_S)
            if members[1].done():
                return key
    raise RuntimeError("all keys are the first process's")


def waits(key: str, messages: int, queries: int, *, crosses: bool, epoch_ms: int = EPOCH_MS) -> dict[str, float]:
    """Seconds that queries of the second process took beside a backlog of its state, by who read that."""
    plans: list[dict[str, Any]] = [{"key": key, "epoch_ms": epoch_ms} for _ in range(2)]
    plans[1]["queries"] = queries
    plans[0 if crosses else 1]["messages"] = messages
    with cluster(plans) as members:
        for member in members:
            member.process.wait(GIVE_UP_S)
        done = members[1].done()
    if len(done) != messages + queries:
        raise RuntimeError(f"{len(done)} of {messages + queries} records were through: {members[1].last_words()}")
    took_s = [latency_s for kind, latency_s in done if kind == "query"]
    return {name: float(np.percentile(took_s, share)) for name, share in (("p50", 50), ("p95", 95), ("max", 100))}


def after_a_kill(key: str) -> dict[str, Any]:
    """What becomes of a process that reads and keeps its own records, where the other is killed."""
    plans: list[dict[str, Any]] = [{"key": key, "ends": False}, {"key": key, "queries": 1_000_000, "ends": False}]
    with cluster(plans) as (killed, other):
        until(lambda: len(other.done()) > 5)
        killed.process.send_signal(signal.SIGKILL)
        ended_s = until(lambda: other.process.poll() is not None, GIVE_UP_S)
        return {"ended_s": ended_s, "exit_code": other.process.returncode, "said": other.last_words()}


def alone(key: str) -> dict[str, Any]:
    """How many of its own records a process takes in while the other is not there."""
    plans: list[dict[str, Any]] = [{"key": key}, {"key": key, "queries": 1_000_000, "ends": False}]
    with cluster(plans, started=(1,)) as (one,):
        until(one.record.exists)
        time.sleep(WATCHED_S)
        return {"seconds": WATCHED_S, "taken": len(one.done()), "runs": one.process.poll() is None}


def measure(messages: int) -> dict[str, Any]:
    work_s = messages * MESSAGE_US / 1e6
    key, queries = key_of_second(), int(work_s / 2 / EVERY_S)
    found = {
        "own": waits(key, messages, queries, crosses=False),
        "crossing": waits(key, messages, queries, crosses=True),
        "short": waits(key, messages, queries, crosses=True, epoch_ms=SHORT_EPOCH_MS),
    }
    return {
        "messages": messages,
        "work_s": work_s,
        "queries": queries,
        "load": os.getloadavg()[0],
        "query_s": found,
        "killed": after_a_kill(key),
        "alone": alone(key),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller backlog")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(Plan(**orjson.loads(chosen.child)))
        return
    figures = measure(5_000 if chosen.quick else 20_000)
    show(figures)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


def show(figures: dict[str, Any]) -> None:
    print(
        f"{figures['queries']} queries of {QUERY_US / 1000:.0f} ms beside {figures['messages']:,} messages of ", end=""
    )
    print(f"{MESSAGE_US} µs, {figures['work_s']:.1f} s of work; load of the machine {figures['load']:.1f}")
    print(f"{'seconds until a query was through':44}{'p50':>8}{'p95':>8}{'most':>8}")
    ways = {
        "own": "the process reads the backlog itself",
        "crossing": "the other process reads it",
        "short": f"the same, epochs of {SHORT_EPOCH_MS} ms",
    }
    for name, title in ways.items():
        print(f"  {title:42}" + "".join(f"{figures['query_s'][name][one]:8.3f}" for one in ("p50", "p95", "max")))
    killed, one = figures["killed"], figures["alone"]
    print(f"one process SIGKILLed: the other ended {killed['ended_s']:.2f} s later, exit code {killed['exit_code']}")
    print(f"  {killed['said']}")
    print(f"one process not started: the other took in {one['taken']} of its own records in {one['seconds']:.0f} s")


if __name__ == "__main__":
    main()
