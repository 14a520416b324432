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

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.command_line import quick_arguments, write_json
from benchmarks.engine import events, ingest
from benchmarks.kafka_flow import TENANT, connect, create, own_topics, running, running_flow
from benchmarks.kafka_load import (
    MEMORIES,
    Latency,
    Percentiles,
    ask,
    at_end,
    percentiles,
    produce,
    ratios,
    recalls,
    remember_all,
    until_applied,
)
from benchmarks.locomo import Conversation, load, shared
from recallflow.client import RecallClient
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.records import Position
from tools.broker import Cluster, connect_or_start

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
    ways = {"echo": echoed, "flow": topics}
    with running_flow(cluster, topics), running(run_echo, cluster.bootstrap_servers, echoed.queries, echoed.responses):
        remember_all(cluster, topics, conversations, users)
        ask(cluster, topics, queries, RATE, lambda asked: asked < 0)  # every user's memories are loaded
        burst = ask(cluster, topics, queries, AT_ONCE_PER_S, lambda asked: asked < BURST)
        capacity = BURST / max(latency.whole_ms for latency in burst) * 1000
        rates = {rate: _latencies(cluster, ways, queries, rate, seconds) for rate in (RATE, round(capacity / 2))}
    return {"capacity_per_s": capacity, "users": users, "memories_a_user": MEMORIES, "rates": rates}


def _latencies(cluster: Cluster, ways: Mapping[str, TopicNames], queries: list[bytes], rate: int,
               seconds: int) -> dict[str, Percentiles]:  # fmt: skip
    times: dict[str, list[Latency]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, topics in ways.items():
            times[name] += ask(cluster, topics, queries, rate, lambda asked: asked < seconds * rate // ROUNDS)
    figures = {f"{name}_ms": percentiles([latency.whole_ms for latency in found]) for name, found in times.items()}
    engine_ms = percentiles([latency.engine_ms for latency in times["flow"]])
    return figures | {"engine_ms": engine_ms, "ratio": ratios(figures["flow_ms"], figures["echo_ms"])}


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

    def ask_idle() -> list[Latency]:
        return ask(cluster, topics, queries, RATE, lambda asked: asked < idle_s * RATE)

    with running_flow(cluster, topics), ThreadPoolExecutor(1) as aside:
        remember_all(cluster, topics, conversations, users)
        lines = [*backlog(conversations, count)]
        idle = ask_idle()
        began_s = time.perf_counter()
        ends = last_of_each_partition(produce(cluster, topics.memory, lines))
        taking_in = aside.submit(until_applied, cluster, topics, ends)
        during = ask(cluster, topics, queries, RATE, lambda asked: asked < RATE or not taking_in.done())
        taking_in.result()
        taken_in_s = time.perf_counter() - began_s
        idle += ask_idle()
    found = {
        f"{name}_{part}_ms": percentiles([getattr(latency, f"{part}_ms") for latency in times])
        for name, times in (("idle", idle), ("backlog", during))
        for part in ("whole", "engine")
    }
    ratio = ratios(found["backlog_whole_ms"], found["idle_whole_ms"])
    rates = {"applied_per_s": count / taken_in_s, "engine_alone_per_s": ingest(lines).per_s}
    return {"events": count, **rates, "queries": found | {"ratio": ratio}}


def show_backlog(figures: Figures) -> Iterator[str]:
    yield f"{figures['events']:,} messages over Kafka: {figures['applied_per_s']:,.0f}/s"
    yield f"the engine alone: {figures['engine_alone_per_s']:,.0f}/s"
    yield from _table(f"{RATE}/s", figures["queries"])


# ---------------------------------------------------------------------- writes


def find(client: RecallClient, user: str, word: str, after: Position | tuple[()]) -> tuple[bool, float]:
    """Return whether the next query finds the memory with a word, and the milliseconds of the query."""
    asked_s = time.perf_counter()
    answer = client.search(f"code of {word}", user=user, after=after, k=5)
    took_ms = (time.perf_counter() - asked_s) * 1000
    return any(f"{word} " in memory.content for memory in answer), took_ms


def shares_found(results: Iterable[tuple[bool, float]]) -> Figures:
    """Return the share of memories that were found, and percentiles of the queries in milliseconds."""
    found, times_ms = zip(*results, strict=True)
    return {"found": sum(found) / len(found), "recall_ms": percentiles([*times_ms])}


def pairs(client: RecallClient, count: int, *, with_token: bool) -> Iterator[tuple[bool, float]]:
    """Store memories, and query each at once."""
    for number in range(count):
        user, word = f"user{number % 10}-{with_token}", f"locker{number * 7919}"
        position = client.add(f"the code of {word} is {number}", user=user).position
        yield find(client, user, word, position if with_token else ())


def bursts(producer: Producer, client: RecallClient, topic: str) -> Iterator[tuple[bool, float]]:
    """Append bursts by a plain producer, and query the last message of each."""
    for number in range(BURSTS):
        user = f"burst{number}"
        for at in range(BURST_MESSAGES):
            event = {"type": "message", "tenant_id": TENANT, "user_id": user, "content": f"locker{at} is code {at}"}
            producer.produce(topic, orjson.dumps(event), f"{TENANT}/{user}".encode())
        producer.flush()
        yield find(client, user, f"locker{BURST_MESSAGES - 1}", ())


def measure_writes(cluster: Cluster, *, quick: bool) -> Figures:
    """Return what the next query finds. Raise RuntimeError where it misses a memory."""
    count, topics = QUICK_PAIRS if quick else PAIRS, own_topics()
    create(cluster, topics)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"})
    with running_flow(cluster, topics, TENANT), connect(cluster, topics) as client:
        figures = {
            "with token": shares_found(pairs(client, count, with_token=True)),
            "without": shares_found(pairs(client, count, with_token=False)),
            "bursts": shares_found(bursts(producer, client, topics.memory)),
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
    parser = quick_arguments(__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    chosen = parser.parse_args()
    measure, show = SCENARIOS[chosen.scenario]
    with connect_or_start() as cluster:
        figures = measure(cluster, quick=chosen.quick)
    print("\n".join(show(figures)))
    write_json(figures, chosen.json)


if __name__ == "__main__":
    main()
