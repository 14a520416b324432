"""What the gateway adds to a question's way through Kafka, and whether 200 people at once have each their own answers.

    python -m benchmarks.gateway [--quick] [--json FILE]

`recallflow serve` before the main flow on a real broker. Each of 200 people asks on a connection of their own. First
all at once, each as soon as the last answer is there: none may be lost, and none may be somebody else's. Then 100
questions a second in all, in turns with the same questions put into Kafka by a plain producer, whose answers a plain
consumer reads: the difference is what the gateway and HTTP add. A time counts from when a question was due.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks import kafka_load
from benchmarks.broker import Cluster, connect_or_start
from benchmarks.gateway_load import Gateway, Tally, crowd, paced, people
from benchmarks.kafka_flow import create, own_topics, running_flow
from benchmarks.kafka_load import WARM_UP, Way, percentiles

PEOPLE = 200
PER_S = 100
ROUNDS = 3


def run(asking: Callable[[Tally], Coroutine[Any, Any, None]]) -> Tally:
    """What came of questions that are asked on an event loop."""
    tally = Tally()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asking(tally))
    return tally


def measure(cluster: Cluster, seconds: int) -> dict[str, Any]:
    topics = own_topics()
    create(cluster, topics)
    gateway = Gateway(cluster, topics)
    count = seconds * PER_S // ROUNDS
    direct: list[float] = []
    over_http: list[float] = []
    with running_flow(cluster, topics), gateway.running():
        every = people(cluster, topics, PEOPLE)
        asked = [orjson.dumps(orjson.loads(person.query("")) | {"id": None}) for person in every]
        ends_s = time.monotonic() + seconds / ROUNDS
        tallies = [run(lambda tally: crowd([gateway.url], every, lambda: time.monotonic() < ends_s, tally))]
        way = Way("direct", topics.queries, topics.responses)
        for _ in range(ROUNDS):
            timed = kafka_load.ask(cluster, way, asked, PER_S, lambda number: number < count)
            direct += [one.whole_ms for one in timed]
            tallies.append(run(partial(paced, gateway.url, every, PER_S, WARM_UP + count)))
            over_http += tallies[-1].times_ms[WARM_UP:]
    at_once = percentiles(tallies[0].times_ms)
    figures = {"direct_ms": percentiles(direct), "gateway_ms": percentiles(over_http)}
    added = {share: ms - figures["direct_ms"][share] for share, ms in figures["gateway_ms"].items()}
    return figures | {
        "added_ms": added,
        "at_once": {"per_s": len(tallies[0].times_ms) * ROUNDS / seconds, "ms": at_once},
        "people": PEOPLE,
        "questions": sum(len(tally.times_ms) for tally in tallies),
        "lost": [one for tally in tallies for one in tally.lost],
        "crossed": [one for tally in tallies for one in tally.crossed],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--seconds", type=int, help="of questions each way (default: 60, quick: 9)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    with connect_or_start() as cluster:
        figures = measure(cluster, chosen.seconds or (9 if chosen.quick else 60))
    at_once = figures["at_once"]
    print(f"{figures['questions']:,} questions of {PEOPLE} people", end=": ")
    print(f"{len(figures['lost'])} lost, {len(figures['crossed'])} crossed")
    print(
        f"all at once: {at_once['per_s']:,.0f}/s, p50 {at_once['ms']['p50']:.0f} ms, p99 {at_once['ms']['p99']:.0f} ms"
    )
    print(f"{PER_S}/s{'':8}{'p50':>9}{'p95':>9}{'p99':>9}")
    for name in ("direct_ms", "gateway_ms", "added_ms"):
        print(f"{name.replace('_', ', '):12}" + "".join(f"{figures[name][share]:9.2f}" for share in figures[name]))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    if wrong := figures["lost"] + figures["crossed"]:
        raise SystemExit(f"lost or crossed: {'; '.join(wrong[:5])}")


if __name__ == "__main__":
    main()
