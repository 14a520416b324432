"""The main flow in a process of its own, on topics that nobody else uses, for benchmarks and tests."""

import logging
import multiprocessing
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from recallflow.client import QueryTimeout, RecallClient
from recallflow.flows.config import Config
from recallflow.flows.kafka import MainKafkaFlow
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from tools.broker import Cluster, retry

TENANT = "bench"
PARTITIONS = 8
PROBE_S = 1.0
READY_S = 60.0
STOP_S = 30.0


def own_topics() -> TopicNames:
    """Names nobody else uses: the Kafka may be somebody's."""
    suffix = uuid.uuid4().hex[:12]
    names: dict[str, Any] = {
        field: f"{name}-{suffix}" for field, name in asdict(TopicNames()).items() if field != "replies"
    }
    return TopicNames(**names)


def create(cluster: Cluster, topics: TopicNames, partitions: int = PARTITIONS) -> None:
    """Creates the flow's topics; every partition can be asked for its end when this returns."""
    counts = dict.fromkeys((topics.memory, topics.queries, *topics.outputs()), partitions) | {topics.control: 1}
    cluster.create_topics(counts)
    with closing(Consumer(KafkaOptions(cluster.bootstrap_servers).consumer())) as consumer:

        def all_answer() -> bool:
            # a broker is told to lead a partition a little after it has told us so
            with suppress(KafkaException):
                for part in (TopicPartition(name, number) for name, count in counts.items() for number in range(count)):
                    consumer.get_watermark_offsets(part, timeout=PROBE_S)
                return True
            return False

        if not retry(all_answer, time.monotonic() + READY_S):
            raise RuntimeError(f"the new topics cannot be read within {READY_S:.0f} s")


def connect(cluster: Cluster, topics: TopicNames, timeout_s: float = 10.0, tenant_id: str = TENANT) -> RecallClient:
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


def run_flow(bootstrap_servers: str, topics: TopicNames, state_dir: Path) -> None:
    """What `recallflow run` does, on topics of one's own."""
    logging.basicConfig(level=logging.ERROR)
    MainKafkaFlow(Config(state_dir, KafkaOptions(bootstrap_servers), topics)).run()


@contextmanager
def running_flow(cluster: Cluster, topics: TopicNames, tenant_id: str = TENANT) -> Iterator[None]:
    """The main flow in its own process, up and answering: its first start reads queries from their end on."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (cluster.bootstrap_servers, topics, Path(folder) / "state")
        with running(run_flow, *arguments) as process:
            with connect(cluster, topics, PROBE_S, tenant_id) as client:

                def answers() -> bool:
                    check_alive(process)
                    with suppress(QueryTimeout):
                        client.search("anyone there?", user="probe")
                        return True
                    return False

                if not retry(answers, time.monotonic() + READY_S):
                    raise RuntimeError(f"the flow did not answer within {READY_S:.0f} s")
            yield
