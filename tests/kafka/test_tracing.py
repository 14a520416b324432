"""Traces on a real broker, as a collector receives them over OTLP."""

import contextlib
import secrets
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from recallflow.flows.settings import TopicNames
from recallflow.queries import UserStats
from tests.kafka.harness import FLOW_FLAGS, Names, OnTopics, enriched_topics, read_topic, until
from tests.llm_server import LlmServer
from tests.otlp_server import OtlpServer
from tests.process import Process
from tools.broker import Cluster

MARK = "aubergine"  # in every text of the story
SERVER, CLIENT, CONSUMER = 2, 3, 5
OPENMETRICS = "application/openmetrics-text;version=1.0.0"


class Deployment(OnTopics):
    """A main flow and an enrichment flow in processes of their own, that send spans to a collector."""

    def __init__(
        self, broker: Cluster, topics: TopicNames, folder: Path, llm: LlmServer, collector: OtlpServer
    ) -> None:
        super().__init__(broker, topics)
        self.folder, self._llm = folder, llm
        self.settings = collector.environment

    def running(self, flow: str) -> contextlib.AbstractContextManager[Process]:
        state = ["--state-dir", str(self.folder / flow), "--sync-ms", "50"]
        service = ["--embedding-model", "e-1", "--embedding-dimension", "64", "--embedding-url", self._llm.url]
        settings = {"RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0"}
        own = ["--embedder", "openai"] if flow == "run" else []
        words = [flow, *own, *state, *service, *self.options(FLOW_FLAGS[flow])]
        return self.command(self.folder, *words, environment=settings | self.settings)


@pytest.fixture
def collector() -> Iterator[OtlpServer]:
    with OtlpServer() as server:
        yield server


@pytest.fixture
def deployment(
    broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer, collector: OtlpServer
) -> Deployment:
    return Deployment(broker, enriched_topics(broker, topics), tmp_path, llm_server, collector)


@contextlib.contextmanager
def a_trace(*, sampled: bool = True) -> Iterator[str]:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    parent = SpanContext(secrets.randbits(128) | 1, secrets.randbits(64) | 1, is_remote=True, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(parent)))
    try:
        yield f"{parent.trace_id:032x}"
    finally:
        context.detach(token)


def test_trace_spans_client_engine_models_and_enrichment(deployment: Deployment, collector: OtlpServer) -> None:
    with deployment.running("run") as engine, deployment.running("enrich"), deployment.client() as client:
        engine.await_ready()
        with a_trace() as stored:
            at = client.add(f"The {MARK} is in the {MARK} box", user="ann", id=f"{MARK}-1", tags=[MARK])
        with a_trace() as asked:
            answer = client.search(f"Where is the {MARK}?", user="ann", after=at)
        with a_trace(sampled=False):
            client.search(f"And the other {MARK}?", user="ann")
        client.ask(UserStats(type="user.stats", tenant_id="acme", user_id="ann"))  # of no trace
        spans = collector.wait_for("search_memory", "create_memory", "upsert_memory")
        until(lambda: len(read_topic(deployment.broker, deployment.topics.responses)) >= 3)
        metrics = httpx.get(engine.url("/metrics"), headers={"Accept": OPENMETRICS})
    assert metrics.headers["Content-Type"].startswith("application/openmetrics-text")
    assert [memory.id for memory in answer] == [f"{MARK}-1"]
    spans = collector.spans
    write = {span.name: span for span in spans if span.trace_id == stored}
    assert {*write} == {
        "create_memory", f"process {deployment.topics.enrichment}", "embeddings e-1",
        f"process {deployment.topics.results}", "upsert_memory",
    }  # fmt: skip
    chain = ["create_memory", f"process {deployment.topics.enrichment}", f"process {deployment.topics.results}",
             "upsert_memory"]  # fmt: skip
    for parent, child in pairwise(chain):
        assert write[child].parent_id == write[parent].span_id, child
    assert write["embeddings e-1"].parent_id == write[chain[1]].span_id
    assert (write["embeddings e-1"].service, write["embeddings e-1"].kind) == ("recallflow-enrich", CLIENT)
    read = {span.name: span for span in spans if span.trace_id == asked}
    search, call = read.pop("search_memory"), read.pop("embeddings e-1")
    assert not read
    assert (search.name, search.service, search.kind) == ("search_memory", "recallflow-run", CONSUMER)
    assert call.parent_id == search.span_id
    about = search.attributes
    assert (about["gen_ai.operation.name"], about["gen_ai.memory.record.count"]) == ("search_memory", 1)
    assert (about["recallflow.event.type"], about["recallflow.tenant.id"]) == ("recall", "acme")
    assert about["messaging.destination.name"] == deployment.topics.queries
    assert search.nanoseconds > call.nanoseconds > 0
    roots = [span for span in spans if span.name == "search_memory" and not span.parent_id]
    assert [span.attributes["recallflow.event.type"] for span in roots] == ["user.stats"]
    assert len([span for span in spans if span.name == "search_memory"]) == 2  # that of no sample is nowhere
    headers = [dict(message.headers()) for message in read_topic(deployment.broker, deployment.topics.responses)]
    parents = [found["traceparent"].decode() for found in headers]
    assert f"00-{asked}-{search.span_id}-01" in parents
    assert len([parent for parent in parents if parent.endswith("-00")]) == 1
    assert not any(MARK.encode() in body.lower() for body in collector.bodies)
    assert not any(MARK in log.read_text() for log in deployment.folder.glob("*.log"))
    families = text_string_to_metric_families(metrics.text)  # type: ignore[no-untyped-call]
    samples = [one for family in families for one in family.samples]
    told = {
        (one.labels["stage"], one.exemplar.labels["trace_id"])
        for one in samples
        if one.name == "recallflow_stage_seconds_bucket" and one.exemplar
    }
    assert {stage for stage, _ in told} >= {"queue", "prepare", "state", "wait", "deliver", "total"}
    assert {trace_id for _, trace_id in told} <= {span.trace_id for span in spans}
