"""Is a memory found by the very next query? With its position as the token it must be, always; without, it is a race.

    python -m benchmarks.read_your_writes [--quick] [--json FILE]

Pairs of remember and recall, one after the other, by one client against the main flow on a real broker.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import orjson

from benchmarks.broker import connect_or_start
from benchmarks.kafka_flow import TENANT, connect, create, own_topics, running_flow
from benchmarks.kafka_load import percentiles
from recallflow.client import RecallClient

PAIRS, QUICK_PAIRS = 1_000, 200
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
            }
    print(f"{count:,} pairs of remember and recall")
    for name in ("with_token", "without"):
        spread = ", ".join(f"{share} {ms:.1f}" for share, ms in figures[name]["recall_ms"].items())
        print(f"  {name.replace('_', ' '):<11} found {figures[name]['found']:.3f}   recall, ms: {spread}")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    if figures["with_token"]["found"] < 1:
        raise SystemExit("a memory was not found although its position was waited for")


if __name__ == "__main__":
    main()
