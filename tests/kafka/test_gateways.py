"""Several gateways on one reply topic under kills: each client gets its own answers."""

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.broker import Broker, Cluster, retry
from benchmarks.kafka_flow import create, own_topics
from recallflow.flows.settings import TopicNames
from tests.kafka.gateway_load import Gateway, Tally, crowd, people
from tests.kafka.harness import Deployment, read_topic

PEOPLE = 12
ANSWERS = 5 * PEOPLE  # between two blows
WAIT_S = 60.0
TIMEOUT_S = "60"  # a broker may take its time to start


@pytest.fixture
def topics(own_broker: Cluster) -> TopicNames:
    topics = replace(own_topics(), replies=(f"replies-{uuid.uuid4().hex[:12]}",))
    create(own_broker, topics, partitions=2)
    return topics


def test_killed_gateway_and_broker_lose_and_cross_no_answer(
    own_broker: Broker, topics: TopicNames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways share one reply partition; each serves half of the people."""
    monkeypatch.setenv("RECALLFLOW_SERVE_TIMEOUT_S", TIMEOUT_S)
    replies = ("--reply-topic", *topics.replies)
    gateways = [Gateway(own_broker, topics, *replies, "--reply-partition", "1") for _ in range(2)]
    deployment = Deployment(own_broker, topics, tmp_path / "s", flags=replies)
    tally, over = Tally(), False

    def more_answers() -> None:
        wanted = len(tally.times_ms) + ANSWERS
        assert retry(lambda: len(tally.times_ms) >= wanted or asked.done(), time.monotonic() + WAIT_S), tally
        assert not asked.done() or asked.result() is None

    with ExitStack() as stack, deployment.running():
        log = tmp_path / "gateways.log"
        first, _ = [stack.enter_context(gateway.running(log)) for gateway in gateways]
        every = people(own_broker, topics, PEOPLE)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        urls = [gateway.url for gateway in gateways]
        asked = pool.submit(asyncio.run, crowd(urls, every, lambda: not over, tally, again=True))
        try:
            more_answers()
            first.kill()
            more_answers()
            stack.enter_context(gateways[0].running(log))
            more_answers()
            own_broker.stop(hard=True)
            assert retry(lambda: not gateways[1].is_ready(), time.monotonic() + WAIT_S)
            own_broker.start()
            more_answers()
            assert retry(gateways[1].is_ready, time.monotonic() + WAIT_S)
        finally:
            over = True
        asked.result()
        said = log.read_text()
    assert (tally.lost, tally.crossed) == ([], []), said
    assert tally.retried > 0
    assert {message.partition() for message in read_topic(own_broker, topics.replies[0])} == {1}
    assert "Traceback" not in said
