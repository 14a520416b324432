"""Queries and messages over Kafka, of one process on a real broker, by scenario.

    python -m benchmarks.kafka latency|backlog|writes [--quick] [--json FILE]

latency: a query beside an echo, a plain confluent-kafka consumer that produces what it reads, on as many partitions of
the same broker. Both are asked in turns, at RATE queries a second and at half of the capacity, which is the rate at
which a burst of queries is answered.

backlog: queries while a backlog of messages of other users is applied, beside the same queries before and after. The
rate of messages counts from the first one appended to the last one applied; the engine alone takes them in beside it.

writes: whether the next query finds a memory, with its position as the token and without; and the last message of a
burst that a plain producer has flushed.

Users who ask have 1,000 memories each.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.broker import Cluster, connect_or_start
from benchmarks.engine import events, ingest
from benchmarks.kafka_flow import TENANT, connect, create, own_topics, running, running_flow
from benchmarks.kafka_load import (
    MEMORIES,
    Percentiles,
    Timed,
    Way,
    ask,
    at_end,
    percentiles,
    produce,
    recalls,
    remember_all,
    until_applied,
)
from benchmarks.locomo import Conversation, load, shared
from recallflow.client import RecallClient
from recallflow.kafka_options import KafkaOptions
from recallflow.records import Position

RATE = 30  # queries a second
ROUNDS = 3
BURST, AT_ONCE_PER_S = 500, 100_000  # queries of which the rate is the capacity
TALKING = 20  # users of the backlog at a time
USERS, QUICK_USERS = 8, 2
LATENCY_S, QUICK_LATENCY_S = 60, 5  # of each way at a rate
BACKLOG, QUICK_BACKLOG = 200_000, 20_000
IDLE_S, QUICK_IDLE_S = 20, 4
PAIRS, QUICK_PAIRS = 1_000, 100
BURSTS, BURST_MESSAGES = 20, 50

Figures = dict[str, Any]


# ---------------------------------------------------------------------- latency


def run_echo(bootstrap_servers: str, source: str, target: str) -> None:
    """Produces every record of `source` to `target` as it is, with the flow's own Kafka options."""
    options = KafkaOptions(bootstrap_servers)
    producer = Producer(options.producer())
    with closing(at_end(options, source)) as consumer:
        while True:
            message: Any = consumer.poll(0.1)
            producer.poll(0)
            if message is not None and message.error() is None:
                producer.produce(target, message.value(), message.key())


def measure_latency(cluster: Cluster, *, quick: bool) -> Figures:
    """Return the capacity, and for each rate the percentiles of both ways in milliseconds and their ratio."""
    users, seconds = (QUICK_USERS, QUICK_LATENCY_S) if quick else (USERS, LATENCY_S)
    conversations = load(shared("data", "locomo_dev.json"))
    queries = recalls(conversations, users)
    topics, echoed = own_topics(), own_topics()
    create(cluster, topics)
    create(cluster, echoed)
    ways = (
        Way("echo", echoed.queries, echoed.responses),
        Way("flow", topics.queries, topics.responses),
    )
    echo = (cluster.bootstrap_servers, echoed.queries, echoed.responses)
    with running_flow(cluster, topics), running(run_echo, *echo):
        remember_all(cluster, topics, conversations, users)
        ask(cluster, ways[1], queries, RATE, lambda asked: asked < 0)  # every user's memories are loaded
        burst = ask(cluster, ways[1], queries, AT_ONCE_PER_S, lambda asked: asked < BURST)
        capacity = BURST / max(timed.whole_ms for timed in burst) * 1000
        rates = {rate: _latencies(cluster, ways, queries, rate, seconds) for rate in (RATE, round(capacity / 2))}
    return {"capacity_per_s": capacity, "users": users, "memories_a_user": MEMORIES, "rates": rates}


def _latencies(
    cluster: Cluster, ways: tuple[Way, ...], queries: list[bytes], rate: int, seconds: int
) -> dict[str, Percentiles]:
    times: dict[str, list[Timed]] = {way.name: [] for way in ways}
    for _ in range(ROUNDS):
        for way in ways:
            times[way.name] += ask(cluster, way, queries, rate, lambda asked: asked < seconds * rate // ROUNDS)
    figures = {f"{name}_ms": percentiles([timed.whole_ms for timed in found]) for name, found in times.items()}
    ratio = {share: figures["flow_ms"][share] / figures["echo_ms"][share] for share in figures["echo_ms"]}
    return figures | {"engine_ms": percentiles([timed.engine_ms for timed in times["flow"]]), "ratio": ratio}


def show_latency(figures: Figures) -> Iterator[str]:
    yield f"{figures['users']} users of {MEMORIES:,} memories; capacity {figures['capacity_per_s']:.0f} queries/s"
    for rate, found in figures["rates"].items():
        yield from _table(f"{rate}/s", found)


# ---------------------------------------------------------------------- backlog


def backlog(conversations: list[Conversation], count: int) -> Iterator[bytes]:
    """Return messages of users who do not ask."""
    for start in range(0, count, TALKING * MEMORIES):
        for line in events(conversations, min(TALKING * MEMORIES, count - start), TALKING):
            event = orjson.loads(line)
            yield orjson.dumps(event | {"user_id": f"other{start}-{event['user_id']}"})


def last_of_each_partition(last: dict[str, Position]) -> dict[str, Position]:
    """Return the last owner of each partition: a query to every owner would load them all."""
    by_partition = {position.partition: owner for owner, position in sorted(last.items(), key=lambda item: item[1])}
    return {owner: last[owner] for owner in by_partition.values()}


def measure_backlog(cluster: Cluster, *, quick: bool) -> Figures:
    """Return percentiles in milliseconds, idle and during the backlog, and the rate at which it was applied."""
    count, idle_s, users = (QUICK_BACKLOG, QUICK_IDLE_S, QUICK_USERS) if quick else (BACKLOG, IDLE_S, USERS)
    conversations = load(shared("data", "locomo_dev.json"))
    queries, topics = recalls(conversations, users), own_topics()
    create(cluster, topics)
    way = Way("flow", topics.queries, topics.responses)

    def ask_idle() -> list[Timed]:
        return ask(cluster, way, queries, RATE, lambda asked: asked < idle_s * RATE)

    with running_flow(cluster, topics), ThreadPoolExecutor(1) as aside:
        remember_all(cluster, topics, conversations, users)
        lines = [*backlog(conversations, count)]
        idle = ask_idle()
        began_s = time.perf_counter()
        ends = last_of_each_partition(produce(cluster, topics.memory, lines))
        taking_in = aside.submit(until_applied, cluster, topics, ends)
        during = ask(cluster, way, queries, RATE, lambda asked: asked < RATE or not taking_in.done())
        taking_in.result()
        taken_in_s = time.perf_counter() - began_s
        idle += ask_idle()
    found = {
        f"{name}_{part}_ms": percentiles([getattr(timed, f"{part}_ms") for timed in times])
        for name, times in (("idle", idle), ("backlog", during))
        for part in ("whole", "engine")
    }
    ratio = {
        share: found["backlog_whole_ms"][share] / found["idle_whole_ms"][share] for share in found["idle_whole_ms"]
    }
    rates = {"applied_per_s": count / taken_in_s, "engine_alone_per_s": ingest(lines).per_s}
    return {"events": count, **rates, "queries": found | {"ratio": ratio}}


def show_backlog(figures: Figures) -> Iterator[str]:
    yield f"{figures['events']:,} messages over Kafka: {figures['applied_per_s']:,.0f}/s"
    yield f"the engine alone: {figures['engine_alone_per_s']:,.0f}/s"
    yield from _table(f"{RATE}/s", figures["queries"])


# ---------------------------------------------------------------------- writes


def pairs(client: RecallClient, count: int, with_token: bool) -> Figures:
    """Return the share of memories that the next query finds, and percentiles of the queries in milliseconds."""
    found, times_ms = 0, []
    for number in range(count):
        user, word = f"user{number % 10}-{with_token}", f"locker{number * 7919}"
        position = client.add(f"the code of {word} is {number}", user=user).position
        asked_s = time.perf_counter()
        answer = client.search(f"code of {word}", user=user, after=position if with_token else (), k=5)
        times_ms.append((time.perf_counter() - asked_s) * 1000)
        found += any(word in memory.content for memory in answer)
    return {"found": found / count, "recall_ms": percentiles(times_ms)}


def bursts(producer: Producer, client: RecallClient, topic: str) -> Figures:
    """Return the share of bursts whose last message the next query finds, and percentiles of the queries."""
    found, times_ms = 0, []
    for number in range(BURSTS):
        user = f"burst{number}"
        for at in range(BURST_MESSAGES):
            event = {"type": "message", "tenant_id": TENANT, "user_id": user, "content": f"locker{at} is code {at}"}
            producer.produce(topic, orjson.dumps(event), f"{TENANT}/{user}".encode())
        producer.flush()
        asked_s = time.perf_counter()
        answer = client.search(f"code of locker{BURST_MESSAGES - 1}", user=user, after=(), k=5)
        times_ms.append((time.perf_counter() - asked_s) * 1000)
        found += any(f"locker{BURST_MESSAGES - 1} " in memory.content for memory in answer)
    return {"found": found / BURSTS, "recall_ms": percentiles(times_ms)}


def measure_writes(cluster: Cluster, *, quick: bool) -> Figures:
    """Return what the next query finds. Raise RuntimeError where it misses a memory."""
    count, topics = QUICK_PAIRS if quick else PAIRS, own_topics()
    create(cluster, topics)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"})
    with running_flow(cluster, topics, TENANT), connect(cluster, topics) as client:
        figures = {
            "with token": pairs(client, count, with_token=True),
            "without": pairs(client, count, with_token=False),
            "bursts": bursts(producer, client, topics.memory),
        }
    if any(one["found"] < 1 for one in figures.values()):
        raise RuntimeError(f"a memory was not found by the next query: {figures}")
    return figures


def show_writes(figures: Figures) -> Iterator[str]:
    for name, one in figures.items():
        yield f"{name}: found {one['found']:.3f}"
    yield from _table("query, ms", {name: one["recall_ms"] for name, one in figures.items()})


# ---------------------------------------------------------------------- scenarios

SCENARIOS: dict[str, tuple[Callable[..., Figures], Callable[[Figures], Iterable[str]]]] = {
    "latency": (measure_latency, show_latency),
    "backlog": (measure_backlog, show_backlog),
    "writes": (measure_writes, show_writes),
}


def _table(title: str, found: dict[str, Percentiles]) -> Iterator[str]:
    yield f"{title:20}{'p50':>9}{'p95':>9}{'p99':>9}"
    for name, shares in found.items():
        yield f"{name.replace('_', ' '):20}" + "".join(f"{value:9.2f}" for value in shares.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    measure, show = SCENARIOS[chosen.scenario]
    with connect_or_start() as cluster:
        figures = measure(cluster, quick=chosen.quick)
    print("\n".join(show(figures)))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


if __name__ == "__main__":
    main()
