"""Latency of a query over Kafka, in echoes of the same run, and the capacity of one process.

    python -m benchmarks.kafka_latency [--quick] [--json FILE]

Two processes on the same broker, with as many partitions: the echo, a plain confluent-kafka consumer that produces what
it reads, and the main flow, whose users have 1,000 memories each. Both run throughout and are asked in turns, at RATE
queries a second and at half of the flow's capacity. The capacity is the rate at which a burst of queries is answered.
"""

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.broker import Cluster, connect_or_start
from benchmarks.kafka_flow import create, own_topics, running, running_flow
from benchmarks.kafka_load import MEMORIES, Percentiles, Timed, Way, ask, at_end, percentiles, recalls, remember_all
from benchmarks.locomo import load, shared
from recallflow.brokers.options import KafkaOptions

RATE = 30
BURST, AT_ONCE_PER_S = 500, 100_000  # queries of which the rate is the capacity
ROUNDS = 3


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


def measure(cluster: Cluster, users: int, seconds: int) -> dict[str, Any]:
    """Return the capacity, and for each rate the percentiles of both ways in milliseconds and their ratio."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--seconds", type=int, help="of queries at a rate, each way (default: 60, quick: 6)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    with connect_or_start() as cluster:
        figures = measure(cluster, 2 if chosen.quick else 8, chosen.seconds or (6 if chosen.quick else 60))
    print(f"{figures['users']} users of {MEMORIES:,} memories; capacity {figures['capacity_per_s']:.0f} queries/s")
    for rate, found in figures["rates"].items():
        print(f"{f'{rate}/s':10}{'p50':>9}{'p95':>9}{'p99':>9}")
        for name, shares in found.items():
            print(f"{name.replace('_', ', '):10}" + "".join(f"{value:9.2f}" for value in shares.values()))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


if __name__ == "__main__":
    main()
