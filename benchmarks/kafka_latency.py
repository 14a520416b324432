"""A query's way through Kafka and the engine, beside a raw echo that does nothing.

    python -m benchmarks.kafka_latency [--quick] [--json FILE]

Two processes on the same broker, with as many partitions: the echo, a plain confluent-kafka consumer that produces what
it reads, and the main flow, whose users have 1,000 memories each. Both run throughout and are asked in turns, so that a
noisy machine is noisy for both. Queries go out on a schedule, whether the last one is answered or not; a latency counts
from the moment a query was due to the moment its response is out of the consumer.
"""

import argparse
import logging
import multiprocessing
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.broker import Cluster, connect_or_start, retry
from benchmarks.engine import events
from benchmarks.locomo import load, shared
from recallflow.client import QueryTimeout, RecallClient
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.flows.kafka import KafkaFlow
from recallflow.flows.topics import Topics
from recallflow.records import Position

TENANT = "bench"
MEMORIES = 1_000
PARTITIONS = 8
PER_S = 100
WARM_UP = 100
ROUNDS = 3
PROBE_S = 1.0
READY_S = 60.0
STOP_S = 30.0
LATE_S = 30.0

Percentiles = dict[str, float]


# ---------------------------------------------------------------------- topics and processes


def own_topics() -> Topics:
    """Names nobody else uses: the Kafka may be somebody's."""
    suffix = uuid.uuid4().hex[:12]
    plain = Topics()
    return replace(
        plain,
        memory=f"{plain.memory}-{suffix}",
        queries=f"{plain.queries}-{suffix}",
        responses=f"{plain.responses}-{suffix}",
        receipts=f"{plain.receipts}-{suffix}",
        dead_letters=f"{plain.dead_letters}-{suffix}",
    )


def create(cluster: Cluster, topics: Topics, partitions: int = PARTITIONS) -> None:
    """Creates the flow's topics; every partition can be asked for its end when this returns."""
    names = (topics.memory, topics.queries, *topics.outputs())
    cluster.create_topics(dict.fromkeys(names, partitions))
    with closing(Consumer(KafkaOptions(cluster.bootstrap_servers).consumer())) as consumer:

        def all_answer() -> bool:
            # a broker is told to lead a partition a little after it has told us so
            with suppress(KafkaException):
                for part in (TopicPartition(name, number) for name in names for number in range(partitions)):
                    consumer.get_watermark_offsets(part, timeout=PROBE_S)
                return True
            return False

        if not retry(all_answer, time.monotonic() + READY_S):
            raise RuntimeError(f"the new topics cannot be read within {READY_S:.0f} s")


def connect(cluster: Cluster, topics: Topics, timeout_s: float = 10.0, tenant_id: str = TENANT) -> RecallClient:
    """A client of these topics."""
    return RecallClient(
        cluster.bootstrap_servers,
        tenant_id,
        memory_topic=topics.memory,
        query_topic=topics.queries,
        response_topic=topics.responses,
        timeout_s=timeout_s,
    )


@contextmanager
def running(work: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    """A process of its own that does `work` until the end of the block; RuntimeError if it was gone by then."""
    process = multiprocessing.get_context("spawn").Process(target=work, name=work.__name__, args=arguments, daemon=True)
    process.start()
    try:
        yield process
        check_alive(process)
    finally:
        process.terminate()
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def check_alive(process: BaseProcess) -> None:
    if not process.is_alive():
        raise RuntimeError(f"{process.name} has ended by itself, with exit code {process.exitcode}")


def run_flow(bootstrap_servers: str, topics: Topics, state_dir: Path) -> None:
    """What `recallflow run` does, on topics of one's own."""
    logging.basicConfig(level=logging.ERROR)
    KafkaFlow(KafkaOptions(bootstrap_servers), state_dir, topics).run()


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


@contextmanager
def running_flow(cluster: Cluster, topics: Topics, tenant_id: str = TENANT) -> Iterator[None]:
    """The main flow in its own process, up and answering: its first start reads queries from their end on."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (cluster.bootstrap_servers, topics, Path(folder) / "state")
        with running(run_flow, *arguments) as process:
            with connect(cluster, topics, PROBE_S, tenant_id) as client:

                def answers() -> bool:
                    check_alive(process)
                    with suppress(QueryTimeout):
                        client.recall("probe", "anyone there?")
                        return True
                    return False

                if not retry(answers, time.monotonic() + READY_S):
                    raise RuntimeError(f"the flow did not answer within {READY_S:.0f} s")
            yield


def at_end(options: KafkaOptions, topic: str) -> Consumer:
    """A consumer of all of a topic's partitions, from where they end now."""
    consumer = Consumer(options.consumer())
    parts = [TopicPartition(topic, n) for n in consumer.list_topics(topic, timeout=READY_S).topics[topic].partitions]
    for part in parts:
        part.offset = consumer.get_watermark_offsets(part, timeout=READY_S)[1]
    consumer.assign(parts)
    return consumer


# ---------------------------------------------------------------------- load


def remember_all(cluster: Cluster, topics: Topics, users: int) -> list[bytes]:
    """Gives each user its memories, waits until they are applied, and returns recall queries without ids."""
    conversations = load(shared("data", "locomo_dev.json"))
    producer = Producer(KafkaOptions(cluster.bootstrap_servers).producer())
    last: dict[str, Position] = {}

    def stored(_: Any, message: Any) -> None:
        last[message.key().decode()] = Position(topics.memory, message.partition(), message.offset())

    for line in events(conversations, users * MEMORIES, users):
        event = orjson.loads(line)
        producer.produce(topics.memory, line, f"{TENANT}/{event['user_id']}", on_delivery=stored)
        producer.poll(0)
    producer.flush()
    with connect(cluster, topics, timeout_s=READY_S) as client:
        for owner, position in last.items():
            answer = client.recall(owner.partition("/")[2], "hello", after=position, wait_timeout_ms=60_000)
            if answer.status != "ok" or not answer.memories:
                raise RuntimeError(f"{owner}: the memories were not applied: {answer.warnings}")
    now_ms = max(int(turn.time.timestamp() * 1000) for c in conversations for turn in c.turns) + 86_400_000
    questions = [question.text for c in conversations for question in c.questions]
    asked = {"type": "recall", "tenant_id": TENANT, "timestamp": now_ms}
    return [orjson.dumps(asked | {"user_id": f"user{n % users}", "query": text}) for n, text in enumerate(questions)]


@dataclass(frozen=True)
class Way:
    """Where queries go in, and where what answers them comes out."""

    name: str
    source: str
    target: str


class Arrival(NamedTuple):
    at_s: float
    engine_ms: float


class Timed(NamedTuple):
    """One query: from when it was due to when its response was there, and what the engine says it took of that."""

    whole_ms: float
    engine_ms: float


def ask(cluster: Cluster, way: Way, queries: list[bytes], count: int) -> list[Timed]:
    """Times of `count` queries at PER_S a second, after a warm-up. RuntimeError if any stays unanswered."""
    options = KafkaOptions(cluster.bootstrap_servers)
    due_s: dict[str, float] = {}
    with closing(at_end(options, way.target)) as consumer:
        sender = threading.Thread(target=_send, args=(options, way.source, queries, WARM_UP + count, due_s))
        sender.start()
        arrived = _arrivals(consumer, WARM_UP + count)
        sender.join()
    if missing := due_s.keys() - arrived.keys():
        raise RuntimeError(f"{way.name}: {len(missing)} of {len(due_s)} queries got no response")
    return [Timed((arrived[n].at_s - due_s[n]) * 1000, arrived[n].engine_ms) for n in list(due_s)[WARM_UP:]]


def _send(options: KafkaOptions, topic: str, queries: list[bytes], count: int, due_s: dict[str, float]) -> None:
    producer = Producer(options.producer())
    run = uuid.uuid4().hex
    began_s = time.perf_counter() + 0.5
    for number in range(count):
        query = orjson.loads(queries[number % len(queries)])
        query_id = f"{run}-{number}"
        value = orjson.dumps(query | {"id": query_id})
        due_s[query_id] = began_s + number / PER_S
        producer.poll(0)
        time.sleep(max(0.0, due_s[query_id] - time.perf_counter()))
        producer.produce(topic, value, f"{TENANT}/{query['user_id']}")
    producer.flush()


def _arrivals(consumer: Consumer, count: int) -> dict[str, Arrival]:
    """Query id → its response's arrival, until there are `count` or none has come for LATE_S."""
    arrived: dict[str, Arrival] = {}
    while len(arrived) < count:
        message: Any = consumer.poll(LATE_S)
        now_s = time.perf_counter()
        if message is None:
            break
        if message.error() is None:
            body = orjson.loads(message.value())
            arrived.setdefault(body.get("query_id") or body["id"], Arrival(now_s, body.get("processing_time_ms", 0.0)))
    return arrived


# ---------------------------------------------------------------------- figures


def percentiles(times_ms: list[float]) -> Percentiles:
    return {f"p{share}": float(np.percentile(times_ms, share)) for share in (50, 95, 99)}


def measure(cluster: Cluster, users: int, seconds: int) -> dict[str, Any]:
    """Percentiles of both ways in milliseconds, and what the flow's are to the echo's."""
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
        queries = remember_all(cluster, topics, users)
        for _ in range(ROUNDS):
            for way in ways:
                times[way.name] += ask(cluster, way, queries, seconds * PER_S // ROUNDS)
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
