"""The main flow on a real broker: what goes in, what comes out where, and how it stops."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.broker import Cluster
from benchmarks.crash.outputs import read_topic
from recallflow.flows.topics import Topics

PARTITIONS = 2
GIVE_UP_S = 60.0  # what takes so long hangs
CHILD = """
import sys
from pathlib import Path
from recallflow.connectors.kafka import control
from recallflow.errors import SourceError
from recallflow.brokers.options import KafkaOptions
from recallflow.flows.config import Config
from recallflow.flows.kafka import KafkaFlow
from recallflow.flows.settings import Settings
from recallflow.flows.topics import Topics

def fail(_):
    raise SourceError("the control topic cannot be read on")

if "control-fails" in sys.argv:
    control.parse_control = fail
servers, folder, names, replies = sys.argv[1], sys.argv[2], sys.argv[3].split(","), tuple(sys.argv[4].split(","))
config = Config(Path(folder), KafkaOptions(servers), Topics(*names, replies), Settings(epoch_ms=200))
KafkaFlow(config).run()
"""


class Flow:
    """A running flow with topics of its own, and a client that sees every output from their beginning."""

    def __init__(self, servers: str, topics: Topics, folder: Path) -> None:
        self.topics = topics
        self._servers = servers
        self._folder = folder
        self._producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "test"})
        self._consumer.assign([TopicPartition(t, n, 0) for t in topics.outputs() for n in range(PARTITIONS)])
        self.start()

    def start(self, *how: str) -> None:
        *names, replies, _ = astuple(self.topics)
        arguments = [self._servers, str(self._folder), ",".join(names), ",".join(replies), *how]
        self.process = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stderr=subprocess.PIPE, text=True)

    def until_up(self) -> None:
        """Queries from before the first start are not answered: asks until one is, and all after it."""
        for attempt in range(100):
            self.send({"type": "user.stats", "id": f"up-{attempt}"}, to=self.topics.queries)
            message = self.next(timeout_s=1.0)
            if message is not None:
                while orjson.loads(message.value())["query_id"] != f"up-{attempt}":
                    message = self.next()
                return
        raise AssertionError("the flow did not come up")

    def send(self, event: dict[str, Any] | bytes, to: str | None = None, key: bytes = b"acme/ann") -> str:
        """Sends an event of Ann's and returns its position."""
        placed: list[str] = []
        owner = {"tenant_id": "acme", "user_id": "ann"}
        value = event if isinstance(event, bytes) else orjson.dumps(owner | event)
        self._producer.produce(
            to or self.topics.memory,
            value=value,
            key=key,
            on_delivery=lambda _, m: placed.append(f"{m.topic()}:{m.partition()}:{m.offset()}"),
            headers=[("traceparent", b"00-1-2-01")],
        )
        assert self._producer.flush(10) == 0
        return placed[0]

    def ask(self, **fields: Any) -> None:
        self.send({"type": "recall", "query": "Where is the bicycle?"} | fields, to=self.topics.queries)

    def next(self, timeout_s: float = GIVE_UP_S) -> Any:
        """The next output of any topic."""
        message: Any = self._consumer.poll(timeout_s)
        return message

    def answer(self) -> Any:
        message = self.next()
        assert message is not None, "no answer"
        return orjson.loads(message.value())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._consumer.close()


def named(names: list[str]) -> Topics:
    memory, queries, control, responses, receipts, enrichment, results, dead_letters, replies = names
    return Topics(memory, queries, control, responses, receipts, enrichment, results, dead_letters, (replies,))


@pytest.fixture
def flow(broker: Cluster, topics: Callable[[str], str], tmp_path: Path) -> Iterator[Flow]:
    names = [topics(name) for name in (*astuple(Topics())[:-2], "replies")]
    broker.create_topics(dict.fromkeys(names, PARTITIONS))
    started = Flow(broker.bootstrap_servers, named(names), tmp_path / "state")
    try:
        started.until_up()
        yield started
    finally:
        started.close()


def test_what_goes_in_comes_out_where_the_contract_says(flow: Flow) -> None:
    flow.send({"type": "message", "id": "m1", "content": "The bicycle is in the cellar.", "receipt": True})
    receipt = flow.next()
    assert receipt.topic() == flow.topics.receipts
    assert receipt.key() == b"acme/ann"
    assert orjson.loads(receipt.value())["outcome"] == "created"

    broken = flow.send(b'{"type": "message", "tenant')
    letter = flow.next()
    assert (letter.topic(), letter.key(), letter.value()) == (
        flow.topics.dead_letters,
        b"acme/ann",
        b'{"type": "message", "tenant',
    )
    headers = dict(letter.headers())
    assert headers["traceparent"] == b"00-1-2-01"
    assert headers["error.code"] == b"invalid_json"
    assert headers["error.source"] == broken.encode()
    assert headers["error.step"] == b"decode"

    misplaced = flow.send({"type": "message", "content": "lost?"}, to=flow.topics.queries)
    assert dict(flow.next().headers())["error.source"] == misplaced.encode()

    flow.ask(id="q1")
    answer = flow.next()
    assert (answer.topic(), answer.key()) == (flow.topics.responses, b"acme/ann")
    body = orjson.loads(answer.value())
    assert (body["query_id"], body["memories"][0]["id"]) == ("q1", "m1")
    # The broken record moved the position too: nobody waits for it in vain.
    assert body["applied"] == [broken]


def test_an_answer_goes_where_the_query_wants_it_if_that_is_allowed(flow: Flow) -> None:
    (reply,) = flow.topics.replies
    flow.ask(id="there", reply_to={"topic": reply, "partition": 1})
    answer = flow.next()
    assert (answer.topic(), answer.partition()) == (reply, 1)
    flow.ask(type="memory.get", id="unknown", memory_id="nobody's", reply_to={"topic": reply, "partition": 1})
    failed = flow.next()
    assert (failed.topic(), failed.partition()) == (reply, 1)
    assert orjson.loads(failed.value())["error"]["code"] == "not_found"
    for wanted, field in (
        ({"topic": "elsewhere"}, "reply_to.topic"),
        ({"topic": reply, "partition": 9}, "reply_to.partition"),
    ):
        flow.ask(id="refused", reply_to=wanted)
        refused = flow.next()
        assert refused.topic() == flow.topics.responses
        assert orjson.loads(refused.value())["error"]["fields"][0]["field"] == field


def test_a_gate_s_verdict_comes_back_through_the_control_topic(flow: Flow, broker: Cluster) -> None:
    def asked(**fields: Any) -> Any:
        """What the answer says of the graph."""
        flow.ask(id="q", strategy="hybrid_graph", **fields)
        return flow.answer()["fallback"]

    flow.send({"type": "message", "id": "m1", "content": "The bicycle is in the cellar."})
    canary = {"type": "graph.rollout", "tenant_id": "acme", "name": "default", "mode": "canary"}
    flow.send(orjson.dumps(canary), to=flow.topics.control, key=b"acme/graph.rollout/default")
    assert any(asked() is None for _ in range(200))
    for _ in range(40):  # more than a quarter of the answers went without the graph
        asked(sla_target_ms=0.001)
    assert any(asked() == "quality_gate_blocked" for _ in range(200))
    decided = [orjson.loads(r.value) for r in read_topic(broker.bootstrap_servers, flow.topics.control, PARTITIONS)]
    assert [event["blocked"] for event in decided if event["type"] == "gate.verdict"] == [True]


def test_a_query_waits_for_a_position_and_holds_up_nobody(flow: Flow) -> None:
    first = flow.send({"type": "message", "id": "m1", "content": "The bicycle is in the cellar."})
    source, _, offset = first.rpartition(":")
    coming = f"{source}:{int(offset) + 1}"
    flow.ask(id="waits", wait_for=[first, coming], wait_timeout_ms=30_000)
    flow.ask(id="at once", wait_for=first)
    assert flow.answer()["query_id"] == "at once"
    flow.send({"type": "message", "id": "m2", "content": "No: the bicycle is at Bob's."})
    waited = flow.answer()
    assert (waited["query_id"], waited["status"]) == ("waits", "ok")
    assert {memory["id"] for memory in waited["memories"]} == {"m1", "m2"}


def test_a_query_that_waited_in_vain_says_so(flow: Flow) -> None:
    at = flow.send({"type": "message", "id": "m1", "content": "The bicycle is in the cellar."})
    source, _, offset = at.rpartition(":")
    flow.ask(id="early", wait_for=f"{source}:{int(offset) + 5}", wait_timeout_ms=300)
    stale = flow.answer()
    assert (stale["query_id"], stale["status"]) == ("early", "degraded")
    (warning,) = stale["warnings"]
    assert warning["code"] == "stale_read"
    assert "5 records ahead" in warning["detail"]


def test_a_waiting_query_survives_a_kill(flow: Flow) -> None:
    at = flow.send({"type": "message", "id": "m1", "content": "The bicycle is in the cellar."})
    source, _, offset = at.rpartition(":")
    flow.ask(id="patient", wait_for=f"{source}:{int(offset) + 1}", wait_timeout_ms=60_000)
    flow.ask(id="after it")
    assert flow.answer()["query_id"] == "after it"
    flow.process.kill()
    flow.process.communicate()
    flow.start()
    flow.send({"type": "message", "id": "m2", "content": "No: the bicycle is at Bob's."})
    patient = flow.answer()
    assert patient["query_id"] == "patient"
    # It waited until m2 was applied; whether all else that lay in the topic at the start is through is another matter.
    assert {memory["id"] for memory in patient["memories"]} == {"m1", "m2"}
    assert "stale_read" not in {warning["code"] for warning in patient["warnings"]}
    assert flow.next(timeout_s=1.0) is None  # and nothing twice


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_batch_and_the_next_start_goes_on(flow: Flow, number: signal.Signals) -> None:
    told = flow.send({"type": "message", "id": "m1", "content": "The bicycle is in the cellar."})
    # Queries come first: without it the flow may stop before m1.
    flow.ask(id="before", wait_for=told, wait_timeout_ms=60_000)
    assert flow.answer()["query_id"] == "before"
    os.kill(flow.process.pid, number)
    _, said = flow.process.communicate(timeout=GIVE_UP_S)
    assert flow.process.returncode == 0, said
    flow.ask(id="meanwhile")
    flow.start()
    body = flow.answer()
    assert (body["query_id"], body["memories"][0]["id"]) == ("meanwhile", "m1")
    assert flow.next(timeout_s=1.0) is None


def test_a_control_topic_that_cannot_be_read_on_stops_the_flow(flow: Flow) -> None:
    flow.process.kill()
    flow.process.communicate()
    flow.start("control-fails")
    flow.ask(id="up")
    assert flow.answer()["query_id"] == "up"
    flow.send({"type": "quota", "name": "queries", "limit": 5}, to=flow.topics.control)
    _, said = flow.process.communicate(timeout=30)
    assert flow.process.returncode == 1
    assert "the control topic cannot be read on" in said
