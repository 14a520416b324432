"""A query's way through Kafka and the engine, beside a raw echo that does nothing.

    python -m benchmarks.kafka_latency [--quick] [--json FILE]

Two processes on the same broker, with as many partitions: the echo, a plain confluent-kafka consumer that produces what
it reads, and the main flow, whose users have 1,000 memories each. Both run throughout and are asked in turns, so that a
noisy machine is noisy for both.
"""

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.broker import Cluster, connect_or_start
from benchmarks.kafka_flow import create, own_topics, running, running_flow
from benchmarks.kafka_load import MEMORIES, Timed, Way, ask, at_end, percentiles, recalls, remember_all
from benchmarks.locomo import load, shared
from recallflow.brokers.options import KafkaOptions

PER_S = 100
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
    """Percentiles of both ways in milliseconds, and what the flow's are to the echo's."""
    conversations = load(shared("data", "locomo_dev.json"))
    queries = recalls(conversations, users)
    topics, echoed = own_topics(), own_topics()
    create(cluster, topics)
    create(cluster, echoed)
    ways = (
        Way("echo", echoed.queries, echoed.responses),
        Way("flow", topics.queries, topics.responses),
    )
    times: dict[str, list[Timed]] = {way.name: [] for way in ways}
    echo = (cluster.bootstrap_servers, echoed.queries, echoed.responses)
    with running_flow(cluster, topics), running(run_echo, *echo):
        remember_all(cluster, topics, conversations, users)
        for _ in range(ROUNDS):
            for way in ways:
                times[way.name] += ask(cluster, way, queries, PER_S, lambda asked: asked < seconds * PER_S // ROUNDS)
    figures: dict[str, Any] = {
        f"{name}_ms": percentiles([timed.whole_ms for timed in found]) for name, found in times.items()
    }
    figures["engine_ms"] = percentiles([timed.engine_ms for timed in times["flow"]])
    ratio = {share: figures["flow_ms"][share] / figures["echo_ms"][share] for share in figures["echo_ms"]}
    return figures | {"ratio": ratio, "queries": len(times["flow"]), "users": users, "memories_a_user": MEMORIES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--seconds", type=int, help="of queries each (default: 60, quick: 9)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    with connect_or_start() as cluster:
        figures = measure(cluster, 2 if chosen.quick else 8, chosen.seconds or (9 if chosen.quick else 60))
    print(f"{figures['queries']:,} queries at {PER_S}/s, {MEMORIES:,} memories a user, produce → response consumed")
    print(f"{'':10}{'p50':>9}{'p95':>9}{'p99':>9}")
    for name in ("echo_ms", "flow_ms", "ratio", "engine_ms"):
        print(f"{name.replace('_', ', '):10}" + "".join(f"{figures[name][share]:9.2f}" for share in figures[name]))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
