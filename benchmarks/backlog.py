"""Live queries while a backlog of memory events is taken in, beside the same queries when nothing else goes on.

    python -m benchmarks.backlog [--quick] [--events 200000] [--json FILE]

The users who ask have 1,000 memories each. The backlog is other users': twenty talk at a time, and have 1,000 memories
each when the next twenty begin. All of it is in the topic before the first query of the backlog's time is due; the
rate counts from the first event appended to the last one applied. Idle is asked before and after.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from benchmarks.broker import Cluster, connect_or_start
from benchmarks.engine import events
from benchmarks.kafka_flow import create, own_topics, running_flow
from benchmarks.kafka_load import MEMORIES, Timed, Way, ask, percentiles, produce, recalls, remember_all, until_applied
from benchmarks.locomo import Conversation, load, shared
from recallflow.records import Position

EVENTS, QUICK_EVENTS = 200_000, 20_000
USERS = 8
TALKING = 20
PER_S = 50
IDLE_S, QUICK_IDLE_S = 20, 5


def backlog(conversations: list[Conversation], count: int) -> Iterator[bytes]:
    """Messages of users that nobody asks for."""
    for start in range(0, count, TALKING * MEMORIES):
        for line in events(conversations, min(TALKING * MEMORIES, count - start), TALKING):
            event = orjson.loads(line)
            yield orjson.dumps(event | {"user_id": f"other{start}-{event['user_id']}"})


def last_of_each_partition(last: dict[str, Position]) -> dict[str, Position]:
    """Without the owners whose events are all behind another's: each question to a cold owner would cost a load."""
    by_partition = {position.partition: owner for owner, position in sorted(last.items(), key=lambda item: item[1])}
    return {owner: last[owner] for owner in by_partition.values()}


def measure(cluster: Cluster, count: int, idle_s: int) -> dict[str, Any]:
    """Percentiles in milliseconds, idle and during the backlog, and the rate at which it was taken in."""
    conversations = load(shared("data", "locomo_dev.json"))
    queries, topics = recalls(conversations, USERS), own_topics()
    create(cluster, topics)
    way = Way("flow", topics.queries, topics.responses)

    def ask_idle() -> list[Timed]:
        return ask(cluster, way, queries, PER_S, lambda asked: asked < idle_s * PER_S)

    with running_flow(cluster, topics), ThreadPoolExecutor(1) as aside:
        remember_all(cluster, topics, conversations, USERS)
        lines = [*backlog(conversations, count)]
        idle = ask_idle()
        began_s = time.perf_counter()
        ends = last_of_each_partition(produce(cluster, topics.memory, lines))
        appended_s = time.perf_counter() - began_s
        taking_in = aside.submit(until_applied, cluster, topics, ends)
        during = ask(cluster, way, queries, PER_S, lambda _: not taking_in.done())
        taking_in.result()
        taken_in_s = time.perf_counter() - began_s
        idle += ask_idle()
    figures: dict[str, Any] = {
        f"{name}_{part}_ms": percentiles([getattr(timed, f"{part}_ms") for timed in times])
        for name, times in (("idle", idle), ("backlog", during))
        for part in ("whole", "engine")
    }
    figures["ratio"] = {s: figures["backlog_whole_ms"][s] / figures["idle_whole_ms"][s] for s in ("p50", "p95", "p99")}
    counts = {"events": count, "idle_queries": len(idle), "backlog_queries": len(during), "appended_s": appended_s}
    return figures | counts | {"taken_in_s": taken_in_s, "taken_in_per_s": count / taken_in_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--events", type=int, help=f"in the backlog (default: {EVENTS:,}, quick: {QUICK_EVENTS:,})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    count = chosen.events or (QUICK_EVENTS if chosen.quick else EVENTS)
    with connect_or_start() as cluster:
        figures = measure(cluster, count, QUICK_IDLE_S if chosen.quick else IDLE_S)
    print(f"{PER_S} queries/s on {USERS} users of {MEMORIES:,} memories, produce → response consumed, ms")
    print(f"{'':16}{'p50':>9}{'p95':>9}{'p99':>9}")
    for name in ("idle_whole_ms", "backlog_whole_ms", "ratio", "idle_engine_ms", "backlog_engine_ms"):
        title = name.removesuffix("_ms").replace("_whole", "").replace("_", ", ")
        print(f"{title:16}" + "".join(f"{figures[name][share]:9.2f}" for share in figures[name]))
    print(f"queries: {figures['idle_queries']:,} idle, {figures['backlog_queries']:,} during the backlog")
    print(f"backlog of {count:,} events: {figures['taken_in_per_s']:,.0f}/s taken in, {figures['taken_in_s']:.1f} s")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
