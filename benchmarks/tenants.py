"""One tenant's queries while another floods at ten times its quota, beside the same queries when nothing else goes on.

    python -m benchmarks.tenants [--quick] [--seconds 30] [--json FILE]

Both tenants have users of 1,000 memories each. The loud one has a quota of queries and of events a second, and sends
ten
times as many: queries, then memory events, then both. Idle is asked before each.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.broker import Cluster, connect_or_start
from benchmarks.engine import events
from benchmarks.kafka_flow import PARTITIONS, TENANT, create, own_topics, running, running_flow
from benchmarks.kafka_load import MEMORIES, Timed, Way, ask, percentiles, recalls, remember_all
from benchmarks.locomo import Conversation, load, shared
from recallflow.brokers.options import KafkaOptions
from recallflow.client import RecallClient
from recallflow.control import SETTLED_MS
from recallflow.flows.topics import Topics
from recallflow.quota_names import EVENTS_PER_S, QUERIES_PER_S

LOUD = "loud"
USERS = 8
PER_S = 20
TIMES = 10
LIMITS = {QUERIES_PER_S: 2, EVENTS_PER_S: 10}  # of each partition
SECONDS, QUICK_SECONDS = 30, 6
BURST_S = 0.01

Load = tuple[str, list[bytes], int]  # topic, lines, how many a second


def flood(bootstrap_servers: str, loads: list[Load]) -> None:
    """Sends lines to topics at steady rates, over all partitions, until it is ended."""
    producer = Producer(KafkaOptions(bootstrap_servers).producer())
    began_s, sent = time.perf_counter(), [0] * len(loads)
    while True:
        for place, (topic, lines, per_s) in enumerate(loads):
            while sent[place] < (time.perf_counter() - began_s) * per_s:
                number = sent[place]
                user = orjson.loads(lines[number % len(lines)])["user_id"]
                producer.produce(topic, lines[number % len(lines)], f"{LOUD}/{user}", number % PARTITIONS)
                sent[place] += 1
        producer.poll(0)
        time.sleep(BURST_S)


def limit(cluster: Cluster, topics: Topics) -> None:
    """Sets the loud tenant's quotas, and waits until they hold."""
    with RecallClient(cluster.bootstrap_servers, LOUD, control_topic=topics.control) as client:
        for name, most in LIMITS.items():
            client.quota(name, most)
    time.sleep(2 * SETTLED_MS / 1000)


def loud(lines: list[bytes]) -> list[bytes]:
    """The same events or queries of the loud tenant."""
    return [orjson.dumps(orjson.loads(line) | {"tenant_id": LOUD}) for line in lines]


def measure(cluster: Cluster, seconds: int) -> dict[str, Any]:
    """Percentiles in milliseconds, idle and beside each flood, and how they compare."""
    conversations = load(shared("data", "locomo_dev.json"))
    queries, topics = recalls(conversations, USERS), own_topics()
    create(cluster, topics)
    way = Way("flow", topics.queries, topics.responses)
    rate = {name: TIMES * PARTITIONS * most for name, most in LIMITS.items()}
    asking: Load = topics.queries, loud(queries), rate[QUERIES_PER_S]
    telling: Load = topics.memory, loud(_told(conversations)), rate[EVENTS_PER_S]
    floods = {"queries": [asking], "events": [telling], "both": [asking, telling]}
    times: dict[str, list[Timed]] = {"idle": []}

    def asked() -> list[Timed]:
        return ask(cluster, way, queries, PER_S, lambda number: number < seconds * PER_S)

    with running_flow(cluster, topics):
        for tenant in (TENANT, LOUD):
            remember_all(cluster, topics, conversations, USERS, tenant)
        limit(cluster, topics)
        for name, loads in floods.items():
            times["idle"] += asked()
            with running(flood, cluster.bootstrap_servers, loads):
                times[name] = asked()
    figures: dict[str, Any] = {name: percentiles([one.whole_ms for one in found]) for name, found in times.items()}
    figures["ratio"] = {
        name: {share: figures[name][share] / figures["idle"][share] for share in figures["idle"]} for name in floods
    }
    return figures | {"asked": {name: len(found) for name, found in times.items()}, "flood_per_s": rate}


def _told(conversations: list[Conversation]) -> list[bytes]:
    """Messages of the users who are asked about: there they cost the most."""
    return [*events(conversations, USERS * MEMORIES, USERS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--seconds", type=int, help=f"of each part (default: {SECONDS}, quick: {QUICK_SECONDS})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    with connect_or_start() as cluster:
        figures = measure(cluster, chosen.seconds or (QUICK_SECONDS if chosen.quick else SECONDS))
    rate = figures["flood_per_s"]
    print(
        f"{PER_S} queries/s of one tenant, produce → response consumed, ms; another floods at {TIMES} times its quota:"
    )
    print(f"{rate[QUERIES_PER_S]:,} queries/s, {rate[EVENTS_PER_S]:,} events/s")
    print(f"{'':10}{'p50':>9}{'p95':>9}{'p99':>9}{'p50':>9}{'p95':>9}{'p99':>9}  of idle")
    for name in ("idle", *figures["ratio"]):
        shown = [f"{value:9.2f}" for value in figures[name].values()]
        shown += [f"{value:9.2f}" for value in figures["ratio"].get(name, {}).values()]
        print(f"{name:10}{''.join(shown)}")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
