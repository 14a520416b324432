"""Is a memory found by the very next query? It must be, always: with its position as the token and without.

    python -m benchmarks.read_your_writes [--quick] [--json FILE]

Pairs of remember and recall, one after the other, by one client against the main flow on a real broker; and bursts of
messages by a plain producer, which flushes them before the client asks.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.broker import connect_or_start
from benchmarks.kafka_flow import TENANT, connect, create, own_topics, running_flow
from benchmarks.kafka_load import percentiles
from recallflow.client import RecallClient

PAIRS, QUICK_PAIRS = 1_000, 200
BURSTS, BURST = 20, 50
USERS = 10
K = 5


def pairs(client: RecallClient, count: int, with_token: bool) -> dict[str, Any]:
    """The share of `count` memories that the next query finds, and how long the recalls took in milliseconds."""
    found, times_ms = 0, []
    for number in range(count):
        user, word = f"user{number % USERS}-{with_token}", f"locker{number * 7919}"
        position = client.add(f"the code of {word} is {number}", user=user).position
        asked_s = time.perf_counter()
        answer = client.search(f"code of {word}", user=user, after=position if with_token else (), k=K)
        times_ms.append((time.perf_counter() - asked_s) * 1000)
        found += any(word in memory.content for memory in answer)
    return {"found": found / count, "recall_ms": percentiles(times_ms)}


def bursts(producer: Producer, client: RecallClient, topic: str) -> dict[str, Any]:
    """The share of bursts whose last message the next query finds, and how long the recalls took in milliseconds."""
    found, times_ms = 0, []
    for number in range(BURSTS):
        user = f"burst{number}"
        for at in range(BURST):
            event = {"type": "message", "tenant_id": TENANT, "user_id": user, "content": f"locker{at} is code {at}"}
            producer.produce(topic, orjson.dumps(event), f"{TENANT}/{user}".encode())
        producer.flush()
        asked_s = time.perf_counter()
        answer = client.search(f"code of locker{BURST - 1}", user=user, after=(), k=K)
        times_ms.append((time.perf_counter() - asked_s) * 1000)
        found += any(f"locker{BURST - 1} " in memory.content for memory in answer)
    return {"found": found / BURSTS, "recall_ms": percentiles(times_ms)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    count = QUICK_PAIRS if chosen.quick else PAIRS
    topics = own_topics()
    with connect_or_start() as cluster:
        create(cluster, topics)
        with running_flow(cluster, topics, TENANT), connect(cluster, topics) as client:
            figures: dict[str, Any] = {
                "pairs": count,
                "with_token": pairs(client, count, with_token=True),
                "without": pairs(client, count, with_token=False),
                "bursts": bursts(
                    Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"}),
                    client,
                    topics.memory,
                ),
            }
    print(f"{count:,} pairs of remember and recall")
    for name in ("with_token", "without", "bursts"):
        spread = ", ".join(f"{share} {ms:.1f}" for share, ms in figures[name]["recall_ms"].items())
        print(f"  {name.replace('_', ' '):<11} found {figures[name]['found']:.3f}   recall, ms: {spread}")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    if any(figures[name]["found"] < 1 for name in ("with_token", "without", "bursts")):
        raise SystemExit("a memory was not found by the next query")


if __name__ == "__main__":
    main()
