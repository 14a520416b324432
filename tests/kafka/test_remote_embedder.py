"""`--embedder openai` on a real broker: the main flow, the enrichment flow, and a service over real HTTP."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.broker import Cluster
from tests.event_log import hash_of
from tests.kafka.harness import FLOW_FLAGS, Command, Names, OnTopics, enriched_topics, produce, until
from tests.kafka.test_reembed import vectors
from tests.llm_server import LlmServer

FERRY, KETTLE, GADGET = "The ferry to Porto leaves at nine", "The kettle is broken again", "Which gadget fails?"
LOOKS = 50  # at the responses, before a question is asked again
NEAR, FAR = [1.0] + [0.0] * 63, [0.0, 1.0] + [0.0] * 62

Running = Callable[..., contextlib.AbstractContextManager[None]]


@dataclass
class Platform(OnTopics):
    _asked: int = 0

    def remember(self, **texts: str) -> None:
        produce(
            self.broker,
            self.topics.memory,
            *({"type": "memory", "id": name, "content": said} for name, said in texts.items()),
        )

    def ask(self, question: str, **fields: Any) -> dict[str, Any]:
        """The answer. A question from before a first start has none, and is asked again."""
        looked = LOOKS

        def answered() -> dict[str, Any] | None:
            nonlocal looked
            looked += 1
            if looked > LOOKS:
                looked, self._asked = 0, self._asked + 1
                query = {"type": "recall", "id": f"q{self._asked}", "query": question} | fields
                produce(self.broker, self.topics.queries, query)
            responses = self.read(self.topics.responses)
            return next((one for one in responses if one["query_id"] == f"q{self._asked}"), None)

        until(lambda: answered() is not None)
        return answered() or {}


@pytest.fixture
def platform(broker: Cluster, topics: Names) -> Platform:
    return Platform(broker, enriched_topics(broker, topics))


@pytest.fixture
def running(platform: Platform, tmp_path: Path, llm_server: LlmServer) -> Running:

    @contextlib.contextmanager
    def run(flow: str, folder: str = "", model: str = "e-1") -> Iterator[None]:
        where = ["--create", "--state-dir", str(tmp_path / (folder or flow)), "--epoch-ms", "50"]
        service = ["--embedding-model", model, "--embedding-dimension", "64", "--embedding-url", llm_server.url]
        deployment = f"{model}-{platform.topics.memory}"  # each model has its own
        embedder = ["--embedder", "openai", "--deployment", deployment] if flow == "run" else []
        words = [flow, *embedder, *service, *where, *platform.options(FLOW_FLAGS[flow])]
        with platform.command(*words, environment={"RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0"}, log=[]):
            yield

    return run


def test_memory_is_found_by_meaning_once_its_vector_arrives(
    platform: Platform, running: Running, llm_server: LlmServer, tmp_path: Path
) -> None:
    """A rebuild from the log has the same state, and pays nothing."""
    llm_server.vectors |= {FERRY: FAR, KETTLE: NEAR, GADGET: NEAR}
    platform.remember(ferry=FERRY, kettle=KETTLE)
    with running("run"):
        until(lambda: platform.ask("When does the ferry leave?")["status"] == "ok")
        answer = platform.ask("When does the ferry leave?")
        assert [memory["id"] for memory in answer["memories"]] == ["ferry", "kettle"]
        assert [asked.texts for asked in llm_server.requests if FERRY in asked.texts] == []
        with running("enrich"):
            until(lambda: len(vectors(platform.broker, platform.topics.memory)) == 2)
        until(lambda: platform.ask(GADGET)["memories"][0]["id"] == "kettle")
        answer = platform.ask(GADGET, explain=True)
        assert answer["status"] == "ok", answer["warnings"]
    paid = [asked.texts for asked in llm_server.requests]
    assert sum(FERRY in texts for texts in paid) == sum(KETTLE in texts for texts in paid) == 1
    with running("run", "again"), running("enrich"):
        until(lambda: platform.ask(GADGET)["memories"][0]["id"] == "kettle")
    assert hash_of(tmp_path / "again") == hash_of(tmp_path / "run")
    assert sum(KETTLE in asked.texts for asked in llm_server.requests) == 1
    assert len(vectors(platform.broker, platform.topics.memory)) == 2


def test_new_model_starts_with_precomputed_vectors(
    platform: Platform, running: Running, llm_server: LlmServer, command: Command, tmp_path: Path
) -> None:
    """Two engines with it come to the same state; one with the old model passes the new vectors over."""
    llm_server.vectors |= {FERRY: FAR, KETTLE: NEAR, GADGET: NEAR}
    platform.remember(ferry=FERRY, kettle=KETTLE)
    with running("run", "old"):
        until(lambda: len(platform.ask("ferry")["memories"]) == 2)
    before = hash_of(tmp_path / "old")
    reembed = ["reembed", "--yes", "--embedder", "openai", "--embedding-model", "e-2", "--embedding-dimension", "64",
               "--embedding-url", llm_server.url, "--memory-topic", platform.topics.memory,
               "--control-topic", platform.topics.control,
               "--bootstrap-servers", platform.broker.bootstrap_servers]  # fmt: skip
    done = command(*reembed)
    assert done.returncode == 0, done.stderr
    assert len(vectors(platform.broker, platform.topics.memory)) == 2
    for folder in ("new", "other"):
        with running("run", folder, "e-2"):
            until(lambda: platform.ask(GADGET)["memories"][0]["id"] == "kettle")
    assert hash_of(tmp_path / "new") == hash_of(tmp_path / "other")
    with running("run", "old"):
        until(lambda: platform.ask("ferry")["status"] == "ok")
    assert hash_of(tmp_path / "old") == before
