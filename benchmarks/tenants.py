"""One tenant's queries while another floods, beside the same queries when nothing else goes on.

    python -m benchmarks.tenants [--serve] [--quick] [--seconds 30] [--json FILE]

Both tenants have users of 1,000 memories each. Idle is asked before each flood.

Without `--serve`, on Kafka: the loud tenant has a quota of queries and of events a second, and sends ten times as
many: queries, then memory events, then both. With `--serve`, of `recallflow serve --state-dir`, without any quota: 16
clients of the loud tenant each send a request as soon as the last one is answered: queries, then queries of the graph,
then queries that are refused, then all of these and events.
"""

import argparse
import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from confluent_kafka import Producer

from benchmarks.broker import HOST, Cluster, connect_or_start, free_ports, retry
from benchmarks.engine import events
from benchmarks.kafka_flow import PARTITIONS, READY_S, TENANT, create, own_topics, running, running_flow
from benchmarks.kafka_load import MEMORIES, Timed, Way, ask, percentiles, recalls, remember_all
from benchmarks.locomo import Conversation, load, shared
from recallflow.client import RecallClient
from recallflow.control import SETTLED_MS
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings, TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.limits import EVENTS_PER_S, QUERIES_PER_S

LOUD = "loud"
USERS = 8
PER_S = 20
TIMES = 10
LIMITS = {QUERIES_PER_S: 2, EVENTS_PER_S: 10}  # of each partition
SECONDS, QUICK_SECONDS = 30, 2
BURST_S = 0.01
CLIENTS = 16  # of the loud tenant, without Kafka
QUIET_PER_S = 3  # queries of the other one: it must not keep the engine busy by itself
SETTLE_S = 2.0

COMMAND = "import sys; from recallflow.cli import main; sys.exit(main())"
JSON = {"content-type": "application/json"}

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


def limit(cluster: Cluster, topics: TopicNames) -> None:
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


# ---------------------------------------------------------------------- without Kafka


def measure_serve(seconds: int) -> dict[str, Any]:
    """The same figures of `recallflow serve --state-dir`."""
    conversations = load(shared("data", "locomo_dev.json"))
    told, queries = _told(conversations), recalls(conversations, USERS)
    floods = _floods(loud(queries), loud(told))
    times: dict[str, list[float]] = {"idle": []}
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        process([*told, *loud(told)], Settings(), state_dir)
        with serving(state_dir) as url:
            asyncio.run(ask_paced(url, queries, seconds))  # until all that is loaded on first use is there
            for name, bodies in floods.items():
                times["idle"] += asyncio.run(ask_paced(url, queries, seconds))
                with running(noise, url, bodies):
                    time.sleep(SETTLE_S)
                    times[name] = asyncio.run(ask_paced(url, queries, seconds))
    figures: dict[str, Any] = {name: percentiles(found) for name, found in times.items()}
    figures["ratio"] = {
        name: {share: figures[name][share] / figures["idle"][share] for share in figures["idle"]} for name in floods
    }
    return figures | {"asked": {name: len(found) for name, found in times.items()}}


def _floods(queries: list[bytes], told: list[bytes]) -> dict[str, list[bytes]]:
    """Bodies of the loud tenant, by the name of the flood."""
    raw = [orjson.loads(query) for query in queries]
    graph = [
        one | asked
        for one in raw
        for asked in (
            {"type": "graph.trace", "traversal_depth": 3, "k": 50},
            {"type": "graph.explore", "whole": True, "limit": 500},
            {
                "type": "recall",
                "query": "What happened on " + " and on ".join(f"{day} May 2023" for day in range(1, 17)),
            },
        )
    ]
    refused = [one | {"filters": {"any": [{"any": [{"tags": [1] * 98}] * 9}] * 9}} for one in raw]
    floods = {"queries": queries, "graph": [*map(orjson.dumps, graph)], "refused": [*map(orjson.dumps, refused)]}
    mixed = zip(itertools.cycle(queries), floods["graph"], itertools.cycle(floods["refused"]), told, strict=False)
    return floods | {"all": [body for one in mixed for body in one]}


@contextmanager
def serving(state_dir: Path) -> Iterator[str]:
    """The URL of `recallflow serve` on a state directory, once it is ready."""
    port = free_ports(None)[0]
    words = ["serve", "--state-dir", str(state_dir), "--host", HOST, "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def is_ready() -> bool:
        try:
            urllib.request.urlopen(f"http://{HOST}:{port}/readyz").close()
        except OSError:
            return False
        return True

    try:
        if not retry(is_ready, time.monotonic() + READY_S):
            raise RuntimeError(f"the server was not ready within {READY_S:.0f} s")
        yield f"http://{HOST}:{port}"
    finally:
        server.kill()
        server.wait()


def noise(url: str, bodies: Sequence[bytes]) -> None:
    """Sends requests from `CLIENTS` connections, each as soon as the last one is answered, until it is ended."""

    async def client(session: aiohttp.ClientSession, first: int) -> None:
        for number in itertools.count(first, CLIENTS):
            body = bodies[number % len(bodies)]
            path = "events" if b'"content"' in body else "query"
            async with session.post(f"{url}/memory/{path}", data=body, headers=JSON) as response:
                await response.read()

    async def clients() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(client(session, number) for number in range(CLIENTS)))

    asyncio.run(clients())


async def ask_paced(url: str, queries: Sequence[bytes], seconds: int) -> list[float]:
    """Milliseconds from when each of `QUIET_PER_S` queries a second was due until its answer was read."""
    times_ms: list[float] = []

    async def ask_one(session: aiohttp.ClientSession, body: bytes, due_s: float) -> None:
        async with session.post(f"{url}/memory/query", data=body, headers=JSON) as response:
            answer = orjson.loads(await response.read())
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {answer}")
        times_ms.append((time.perf_counter() - due_s) * 1000)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        began_s = time.perf_counter()
        for number in range(seconds * QUIET_PER_S):
            due_s = began_s + number / QUIET_PER_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.create_task(ask_one(session, queries[number % len(queries)], due_s))
    return times_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="without Kafka: serve --state-dir")
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--seconds", type=int, help=f"of each part (default: {SECONDS}, quick: {QUICK_SECONDS})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    seconds = chosen.seconds or (QUICK_SECONDS if chosen.quick else SECONDS)
    if chosen.serve:
        figures = measure_serve(seconds)
        print(f"{QUIET_PER_S} queries/s of one tenant over HTTP, ms; {CLIENTS} clients of another ask without a pause:")
    else:
        with connect_or_start() as cluster:
            figures = measure(cluster, seconds)
        rate = figures["flood_per_s"]
        print(
            f"{PER_S} queries/s of one tenant, produce → response consumed, ms; another floods at {TIMES} times its "
            "quota:"
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
