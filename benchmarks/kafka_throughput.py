"""Memory events through Kafka to applied, beside a flow that only passes them through, and beside the engine alone.

    python -m benchmarks.kafka_throughput [--quick] [--events N] [--json FILE]

The events are in the topic before a process starts, the broker on the same cores, and its rate counts, after a warm-up,
up to the last one applied. The pass-through has the main flow's source, router and sink, and nothing between. Once as
plain events, which put nothing out, and once with a receipt each. Last, the plain run twice more: with its steps timed,
and under a profiler, which makes it slower.
"""

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson

from benchmarks.broker import Cluster, connect_or_start
from benchmarks.engine import events, ingest
from benchmarks.kafka_flow import STOP_S, create, own_topics
from benchmarks.kafka_load import produce
from benchmarks.locomo import load, shared
from benchmarks.profiled_flow import WARM_UP, Job, Lap, run_job
from recallflow.flows.settings import Settings, TopicNames
from recallflow.state.directory import StateDirectory, describe

EVENTS, QUICK_EVENTS = 30_000, 6_000
USERS = 20
ROUNDS = 3
ANSWER_S = 300.0


def run_ingest(lines: list[bytes], answer: Connection) -> None:
    answer.send(ingest(lines).per_s)


def answer_of(work: Callable[..., None], *arguments: Any) -> Any:
    """What a process of its own sends back. RuntimeError where it sends nothing."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*arguments, theirs), daemon=True)
    with ours:
        process.start()
        theirs.close()  # so that a process that dies is the end of ours
        try:
            if not ours.poll(ANSWER_S):
                raise RuntimeError(f"{work.__name__} was not through within {ANSWER_S:.0f} s")
            return ours.recv()
        except EOFError as error:
            raise RuntimeError(f"{work.__name__} has ended without an answer") from error
        finally:
            process.join(STOP_S)
            process.kill()


class Load:
    """The same events in a Kafka topic and in memory."""

    def __init__(self, cluster: Cluster, lines: list[bytes], receipts: bool) -> None:
        self.lines = [orjson.dumps(orjson.loads(line) | {"receipt": True}) for line in lines] if receipts else lines
        self._servers, self._receipts = cluster.bootstrap_servers, receipts
        self._topics: TopicNames = own_topics()
        create(cluster, self._topics)
        produce(cluster, self._topics.memory, self.lines)

    def lap(self, **chosen: Any) -> Lap:
        """A whole run over all events on a new state directory. RuntimeError if one is missing in the end."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            job = Job(self._servers, self._topics, path, len(self.lines), receipts=self._receipts, **chosen)
            lap: Lap = answer_of(run_job, job)
            if not job.passes_through and (found := applied(path)) != len(self.lines):
                raise RuntimeError(f"{found} of {len(self.lines)} events were applied")
        return lap

    def rates(self, rounds: int) -> dict[str, float]:
        """Events per second each way, the medians of some rounds in turns, and the flow's ratios to the others."""
        found = [
            {
                "pass_through": self.lap(passes_through=True).per_s,
                "flow": self.lap().per_s,
                "in_process": answer_of(run_ingest, self.lines),
            }
            for _ in range(rounds)
        ]
        rates = {way: statistics.median(lap[way] for lap in found) for way in found[0]}
        ratios = {f"to_{way}": rates["flow"] / rates[way] for way in ("pass_through", "in_process")}
        return rates | ratios


def applied(state_dir: Path) -> int:
    """How many records a state directory has applied."""
    ends: dict[str, int] = {}
    with StateDirectory.open(state_dir, describe(state_dir)[0], Settings().cache_bytes) as directory:
        for partition in directory.partitions():
            for source, offset in partition.applied.items():
                ends[source] = max(offset + 1, ends.get(source, 0))
    return sum(ends.values())


def measure(cluster: Cluster, count: int, rounds: int) -> dict[str, Any]:
    """Rates and ratios with and without receipts, seconds per step and thread, and the functions that take most."""
    lines = events(load(shared("data", "locomo_dev.json")), count, USERS)
    plain, receipts = Load(cluster, lines, receipts=False), Load(cluster, lines, receipts=True)
    figures: dict[str, Any] = {"plain": plain.rates(rounds), "receipts": receipts.rates(rounds)}
    steps, functions = plain.lap(watch="steps"), plain.lap(watch="functions")
    profile = {"seconds": steps.seconds, "steps_s": steps.parts, "threads_cpu_s": steps.threads}
    return figures | {"events": count, "profile": profile | {"functions_s": functions.parts}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--events", type=int, help=f"a run (default: {EVENTS:,}, quick: {QUICK_EVENTS:,})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    count = chosen.events or (QUICK_EVENTS if chosen.quick else EVENTS)
    if count <= WARM_UP:
        parser.error(f"--events: give more than the {WARM_UP:,} of the warm-up")
    with connect_or_start() as cluster:
        figures = measure(cluster, count, 1 if chosen.quick else ROUNDS)
    print("\n".join(told(figures)))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


def told(figures: dict[str, Any]) -> Iterator[str]:
    """The figures in lines."""
    yield f"{figures['events']:,} memory events of {USERS} users, events/s"
    yield f"{'':24}{'plain':>10}{'receipts':>10}"
    for way in ("pass_through", "flow", "in_process"):
        yield f"{way.replace('_', ' '):24}" + "".join(f"{figures[kind][way]:10,.0f}" for kind in ("plain", "receipts"))
    for ratio in ("to_pass_through", "to_in_process"):
        title = f"flow {ratio.replace('_', ' ')}"
        yield f"{title:24}" + "".join(f"{figures[kind][ratio]:10.2f}" for kind in ("plain", "receipts"))
    profile, count = figures["profile"], figures["events"] - WARM_UP
    for title, part in (
        ("step", "steps_s"),
        ("CPU of thread", "threads_cpu_s"),
        ("function (profiled)", "functions_s"),
    ):
        yield f"{title:52}{'s':>8}{'µs/event':>10}"
        for name, seconds in sorted(profile[part].items(), key=lambda item: -item[1]):
            yield f"  {name[:50]:50}{seconds:8.2f}{seconds / count * 1e6:10.1f}"


if __name__ == "__main__":
    main()
