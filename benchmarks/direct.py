"""What a caller in one's own program waits for: an add and a search, through the dataflow and without one.

    python -m benchmarks.direct [--adds N] [--searches N]

Both ways run in one process and take turns, batch after batch, one call at a time, on directories of their own. The
dataflow is fed as `open_local` did before it had a loop: calls are its source, and callers its sink.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from recallflow.connectors.calls import Calls
from recallflow.decisions import History
from recallflow.flows.config import Config
from recallflow.flows.dataflow import recovery_store, run_dataflow
from recallflow.flows.embedded import Embedded
from recallflow.flows.engine import build
from recallflow.flows.local import EVENTS, QUERIES, open_local
from recallflow.flows.order import decided
from recallflow.flows.settings import Settings
from recallflow.outputs import Marked, Output
from recallflow.records import Record

Call = Callable[[str, bytes], None]
ROUNDS = 10
TENANT = "acme"
SETTINGS = Settings()
AT_ONCE = datetime.fromtimestamp(0, UTC)
RESTS_S = 0.05  # where nothing is under way; a call ends it


class _Source(FixedPartitionedSource[Record, None]):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def list_parts(self) -> list[str]:
        return ["calls"]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "_Part":  # noqa: ARG002
        return _Part(self._calls)


class _Part(StatefulSourcePartition[Record, None]):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def next_batch(self) -> list[Record]:
        records = self._calls.take()
        if not records:
            if self._calls.in_flight == 0:
                self._calls.wake.wait(RESTS_S)
            self._calls.wake.clear()
        return records

    def next_awake(self) -> datetime:
        return AT_ONCE

    def snapshot(self) -> None:
        return None


class _Sink(DynamicSink[Output | Marked]):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def build(self, step_id: str, worker_index: int, worker_count: int) -> "_ToCallers":  # noqa: ARG002
        return _ToCallers(self._calls)


class _ToCallers(StatelessSinkPartition[Output | Marked]):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def write_batch(self, items: list[Output | Marked]) -> None:
        outputs = [one for one in items if not isinstance(one, Marked)]
        self._calls.deliver(decided(History(), lambda _: None, outputs))


@contextmanager
def by_dataflow(folder: Path) -> Iterator[Call]:
    calls = Calls(EVENTS, QUERIES)
    with Embedded.open(SETTINGS, folder) as embedded:
        flow = Dataflow("calls")
        rules = embedded.rules(QUERIES, input_ends=False)
        outputs = build(flow, _Source(calls), embedded.directory, embedded.embedder, rules)
        op.output("out", op.map("value", outputs, lambda one: one[1]), _Sink(calls))
        thread = threading.Thread(target=run_dataflow, args=(flow, SETTINGS, 1, recovery_store(folder)))
        calls.begin(dict.fromkeys(calls.topics, 0))
        thread.start()
        yield partial(_call, calls)
        calls.end("the benchmark is over", 10.0)
        thread.join()


def _call(calls: Calls, topic: str, value: bytes) -> None:
    with calls.put(topic, TENANT, value, ()) as call:
        call.outcome.result()


@contextmanager
def by_loop(folder: Path) -> Iterator[Call]:
    with open_local(Config(state_dir=folder, engine=SETTINGS), History()) as service:
        yield partial(_call, service._calls)


def value(kind: str, number: int) -> bytes:
    event = {"type": kind, "tenant_id": TENANT, "user_id": f"u{number % 20}", "receipt": True}
    text = f"Parcel {number} from Porto holds {number % 7} blue lanterns and a letter about the {number % 31}. harbour."
    return orjson.dumps(event | {"content": text})


def question(number: int) -> bytes:
    asked = {"type": "recall", "tenant_id": TENANT, "user_id": f"u{number % 20}", "query": f"Who sent parcel {number}?"}
    return orjson.dumps(asked)


def medians_ms(call: Call, topic: str, values: list[bytes]) -> float:
    """The median time of a call."""
    times = []
    for one in values:
        began = time.perf_counter()
        call(topic, one)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adds", type=int, default=2_000, metavar="N")
    parser.add_argument("--searches", type=int, default=1_000, metavar="N")
    chosen = parser.parse_args()
    adds = [value("memory", number) for number in range(chosen.adds)]
    searches = [question(number) for number in range(chosen.searches)]
    with (
        tempfile.TemporaryDirectory() as folder,
        by_dataflow(Path(folder) / "dataflow") as flow,
        by_loop(Path(folder) / "loop") as loop,
    ):
        for name, topic, values in (("add", EVENTS, adds), ("search", QUERIES, searches)):
            share = len(values) // ROUNDS
            taken: dict[str, list[float]] = {"dataflow": [], "loop": []}
            for start in range(0, len(values), share):
                for way, call in (("dataflow", flow), ("loop", loop)):
                    taken[way].append(medians_ms(call, topic, values[start : start + share]))
            flow_ms, loop_ms = (statistics.median(taken[way]) for way in ("dataflow", "loop"))
            print(
                f"{name:>6}: {flow_ms:.2f} ms through the dataflow, {loop_ms:.2f} ms without: {loop_ms / flow_ms:.2f}"
            )


if __name__ == "__main__":
    main()
