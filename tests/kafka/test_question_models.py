"""Questions with a language model and a reranker on a real broker: a slow service blocks no other question, and each
question is answered once despite a kill."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.broker import Cluster
from tests.kafka.harness import GIVE_UP_S, Deployment, Names, deployed, produce, read_topic, until, watched
from tests.llm_server import Fault, LlmServer

SUMMARIES = {"diet": "Ana eats no meat.", "travel": "Ana moved to Porto in May."}
PENDING = 40


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
def deployment(broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer, service: Service) -> Deployment:
    models = ("--llm", "m-1", "--llm-url", llm_server.url, "--llm-query-timeout-ms", "60000")
    reranker = ("--reranker", "judge", "--reranker-url", service.url, "--rerank-timeout-ms", "60000")
    return deployed(broker, topics, tmp_path / "s", flags=(*models, *reranker))


def answered(deployment: Deployment) -> list[dict[str, Any]]:
    return [orjson.loads(found.value()) for found in read_topic(deployment.broker, deployment.topics.responses)]


def test_hanging_models_block_no_query_and_kill_repeats_nothing(
    deployment: Deployment, llm_server: LlmServer, service: Service
) -> None:
    llm_server.answer("select_categories", {"categories": ["travel"]})
    llm_server.fail(Fault("hang"), times=None)
    texts = ("Ana moved to Porto", "Ana moved to Porto in May", "Ana moved")
    memories = [{"type": "memory", "id": f"m{n}", "content": text, "receipt": True} for n, text in enumerate(texts)]
    summaries = [{"type": "category.summary", "category": name, "summary": text} for name, text in SUMMARIES.items()]
    produce(deployment.broker, deployment.topics.memory, *summaries, *memories)
    recent = {"type": "recall", "query": "What is new?", "mode": "recency", "k": 1}  # is not reranked
    selected = [recent | {"id": f"q{n}", "select_categories": True} for n in range(PENDING)]
    reranked = {"type": "recall", "id": "reranked", "query": "Where does Ana live?", "k": 2}
    killed = deployment.start()
    with watched(killed):
        deployment.outputs(deployment.topics.receipts, 3)  # it reads: later queries are answered
        produce(deployment.broker, deployment.topics.queries, *selected, reranked)
        llm_server.wait_for(lambda now: now.held == PENDING)
        assert service.asked.wait(GIVE_UP_S)
        produce(deployment.broker, deployment.topics.queries, recent | {"id": "plain"})
        until(lambda: [found["query_id"] for found in answered(deployment)] == ["plain"])
        assert llm_server.now.held == PENDING
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    llm_server.wait_for(lambda now: now.held == 0)
    service.asked.clear()
    count = PENDING + 2
    with deployment.running():
        llm_server.wait_for(lambda now: now.held == PENDING)
        assert service.asked.wait(GIVE_UP_S)
        llm_server.heal()
        service.let.set()
        until(lambda: len(answered(deployment)) == count)
    found = {one["query_id"]: one for one in answered(deployment)}
    assert found.keys() == {"plain", "reranked", *(f"q{n}" for n in range(PENDING))}
    assert {one["status"] for one in found.values()} == {"ok"}
    assert all([*found[f"q{n}"]["context"]["summaries"]] == ["travel"] for n in range(PENDING))
    assert [memory["content"] for memory in found["reranked"]["memories"]] == [texts[1], texts[0]]
    assert found["reranked"]["routing_info"]["rerank"]["candidates"] == len(texts)
    assert [*deployment.outputs(deployment.topics.responses, count).values()] == [1] * count
