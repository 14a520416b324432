"""The second pass on a real broker: a service that is slow holds up nobody, and a kill loses and repeats nothing."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from tests.kafka.harness import GIVE_UP_S, Deployment, Names, own_topics, read_topic, until, watched

SAID = ("Ann likes tea", "Ann likes walnuts very much", "Ann likes almonds")


class Service:
    """Scores texts by their length, once it is let; says when it is asked."""

    def __init__(self) -> None:
        self.let, self.asked = threading.Event(), threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.set()
                outer.let.wait(GIVE_UP_S)
                results = [{"index": n, "relevance_score": len(text)} for n, text in enumerate(document["documents"])]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(orjson.dumps({"results": results}))

            def log_message(self, *_: object) -> None:
                pass

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # who asked was killed
                    super().handle()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False  # so that closing it waits for its handlers
        self.url = f"http://127.0.0.1:{self.server.server_port}/rerank"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.let.set()
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path, service: Service) -> Deployment:
    own = own_topics(topics)
    broker.create_topics({own.memory: 1, own.queries: 1, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 1))
    chosen = ("--reranker", "judge", "--reranker-url", service.url, "--rerank-timeout-ms", "60000")
    return Deployment(broker, own, tmp_path / "s", flags=chosen)


def send(deployment: Deployment, topic: str, **fields: Any) -> None:
    producer = Producer({"bootstrap.servers": deployment.broker.bootstrap_servers})
    producer.produce(topic, orjson.dumps({"tenant_id": "acme", "user_id": "ann"} | fields), b"acme/ann")
    assert producer.flush(GIVE_UP_S) == 0


def answered(deployment: Deployment) -> list[dict[str, Any]]:
    return [orjson.loads(found.value()) for found in read_topic(deployment.broker, deployment.topics.responses)]


def test_a_slow_reranker_holds_up_nobody_and_survives_a_kill(deployment: Deployment, service: Service) -> None:
    for number, text in enumerate(SAID):
        send(deployment, deployment.topics.memory, type="memory", id=f"m{number}", content=text, receipt=True)
    killed = deployment.start()
    with watched(killed):
        deployment.outputs(deployment.topics.receipts, len(SAID))  # it reads: what is asked from now on is answered
        send(deployment, deployment.topics.queries, type="recall", id="slow", query="What does Ann like?", k=2)
        assert service.asked.wait(GIVE_UP_S)
        send(deployment, deployment.topics.queries, type="recall", id="quick", query="What is new?", mode="recency")
        until(lambda: [found["query_id"] for found in answered(deployment)] == ["quick"])
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    service.asked.clear()
    with deployment.running():
        assert service.asked.wait(GIVE_UP_S)
        service.let.set()
        until(lambda: len(answered(deployment)) == 2)
    quick, slow = answered(deployment)
    assert (quick["query_id"], slow["query_id"], slow["status"]) == ("quick", "slow", "ok")
    assert [memory["content"] for memory in slow["memories"]] == [SAID[1], SAID[2]]
    assert slow["routing_info"]["rerank"]["candidates"] == len(SAID)
    deployment.asked = 2
    assert [*deployment.outputs(deployment.topics.responses, 2).values()] == [1, 1]
