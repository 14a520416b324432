"""Latency of one tenant's queries while another tenant floods, compared with the same queries on an idle engine.

    python -m benchmarks.tenants [--quick] [--json FILE]

Both tenants have users of 1,000 memories each. The loud tenant has a quota of queries and of events a second, and sends
ten times as many: queries, then memory events, then both. The other tenant's queries are measured idle before each
flood, and during it.
"""

import time
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.command_line import quick_arguments, write_json
from benchmarks.engine import events
from benchmarks.kafka_flow import PARTITIONS, TENANT, create, own_topics, running, running_flow
from benchmarks.kafka_load import MEMORIES, Latency, ask, percentiles, ratios, recalls, remember_all
from benchmarks.locomo import load, shared
from recallflow.client import RecallClient
from recallflow.control import DELAY_MS
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.limits import EVENTS_PER_S, QUERIES_PER_S
from tools.broker import Cluster, connect_or_start

LOUD = "loud"
USERS = 8
PER_S = 20
TIMES = 10
LIMITS = {QUERIES_PER_S: 2, EVENTS_PER_S: 10}  # of each partition
SECONDS, QUICK_SECONDS = 30, 2
BURST_S = 0.01

Load = tuple[str, list[bytes], int]  # topic, lines, lines a second


def flood(bootstrap_servers: str, loads: list[Load]) -> None:
    """Send lines to topics at steady rates, over all partitions, until the process is terminated."""
    producer = Producer(KafkaOptions(bootstrap_servers).producer())
    began_s, sent = time.perf_counter(), [0] * len(loads)
    while True:
        for at, (topic, lines, per_s) in enumerate(loads):
            while sent[at] < (time.perf_counter() - began_s) * per_s:
                number = sent[at]
                user = orjson.loads(lines[number % len(lines)])["user_id"]
                producer.produce(topic, lines[number % len(lines)], f"{LOUD}/{user}", number % PARTITIONS)
                sent[at] += 1
        producer.poll(0)
        time.sleep(BURST_S)


def limit(cluster: Cluster, topics: TopicNames) -> None:
    """Set the loud tenant's quotas, and wait until they are in force."""
    with RecallClient(cluster.bootstrap_servers, LOUD, control_topic=topics.control) as client:
        for name, most in LIMITS.items():
            client.quota(name, most)
    time.sleep(2 * DELAY_MS / 1000)


def loud(lines: list[bytes]) -> list[bytes]:
    """Return the same events or queries, of the loud tenant."""
    return [orjson.dumps(orjson.loads(line) | {"tenant_id": LOUD}) for line in lines]


def measure(cluster: Cluster, seconds: int) -> dict[str, Any]:
    """Return percentiles in milliseconds, idle and during each flood, and their ratios."""
    conversations = load(shared("data", "locomo_dev.json"))
    queries, topics = recalls(conversations, USERS), own_topics()
    create(cluster, topics)
    rate = {name: TIMES * PARTITIONS * most for name, most in LIMITS.items()}
    query_load: Load = topics.queries, loud(queries), rate[QUERIES_PER_S]
    # Events of the users who are queried: there they cost the most.
    event_load: Load = topics.memory, loud(events(conversations, USERS * MEMORIES, USERS)), rate[EVENTS_PER_S]
    floods = {"queries": [query_load], "events": [event_load], "both": [query_load, event_load]}
    times: dict[str, list[Latency]] = {"idle": []}

    def ask_queries() -> list[Latency]:
        return ask(cluster, topics, queries, PER_S, lambda number: number < seconds * PER_S)

    with running_flow(cluster, topics):
        for tenant in (TENANT, LOUD):
            remember_all(cluster, topics, conversations, USERS, tenant)
        limit(cluster, topics)
        for name, loads in floods.items():
            times["idle"] += ask_queries()
            with running(flood, cluster.bootstrap_servers, loads):
                times[name] = ask_queries()
    figures: dict[str, Any] = {name: percentiles([one.whole_ms for one in found]) for name, found in times.items()}
    figures["ratio"] = {name: ratios(figures[name], figures["idle"]) for name in floods}
    return figures | {"asked": {name: len(found) for name, found in times.items()}, "flood_per_s": rate}


def main() -> None:
    chosen = quick_arguments(__doc__).parse_args()
    with connect_or_start() as cluster:
        figures = measure(cluster, QUICK_SECONDS if chosen.quick else SECONDS)
    rate = figures["flood_per_s"]
    print(
        f"{PER_S} queries/s of one tenant, produce → response consumed, ms; another floods at {TIMES} times its quota:"
    )
    print(f"{rate[QUERIES_PER_S]:,} queries/s, {rate[EVENTS_PER_S]:,} events/s")
    print(f"{'':10}{'p50':>9}{'p95':>9}{'p99':>9}{'p50':>9}{'p95':>9}{'p99':>9}  of idle")
    for name in ("idle", *figures["ratio"]):
        shown = [*figures[name].values(), *figures["ratio"].get(name, {}).values()]
        print(f"{name:10}" + "".join(f"{value:9.2f}" for value in shown))
    write_json(figures, chosen.json)


if __name__ == "__main__":
    main()
