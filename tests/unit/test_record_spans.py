"""Spans of open records are bounded, and each ends once."""

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from recallflow.flows import record_spans as module
from recallflow.flows.engine_metrics import Stages
from recallflow.flows.record_spans import RecordSpans
from recallflow.operators.events import decode
from recallflow.outputs import Answer, Receipted
from recallflow.records import Position, Record
from recallflow.responses import Context, MemoryPage, RecalledMemory, Response
from recallflow.tracing import TRACE_HEADER

MEMORIES, QUERIES = "memory.events", "query.events"
PARENT = ((TRACE_HEADER, b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)
EVENT = b'{"type":"memory","tenant_id":"acme","user_id":"ann","content":"tea"}'
QUERY = b'{"type":"recall","tenant_id":"acme","user_id":"ann","query":"tea?"}'
MOST = 10


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(module, "tracer", provider.get_tracer("test"))
    monkeypatch.setattr(module, "LATE_MOST", MOST)
    return exporter


@pytest.mark.parametrize(("topic", "value"), [(MEMORIES, EVENT), (QUERIES, QUERY)], ids=["events", "queries"])
def test_waiting_spans_are_bounded_and_end_once(
    exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, topic: str, value: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    spans = RecordSpans(Stages((MEMORIES, QUERIES)), waits=QUERIES)
    places = [Position(topic, 0, offset) for offset in range(3 * MOST)]
    spans.begin([decode(Record(place, value, 0, b"acme/ann", headers=PARENT)) for place in places], 0.0)
    spans.done(places)  # without an output
    assert [spans.is_late(place) for place in places] == [False] * 2 * MOST + [True] * MOST
    (_, parent), *_ = spans.headers(places[-1])
    assert parent is not None
    assert parent.startswith(PARENT[0][1][:36])
    assert spans.headers(places[0]) == ()
    spans.handed(Receipted(places[-1], 0, b"acme/ann", b"{}"))(5)
    spans.end_late(places[2 * MOST :])
    assert not any(spans.is_late(place) for place in places)
    assert len(exported.get_finished_spans()) == len(places)
    assert not caplog.records


def test_silent_records_are_in_no_trace(exported: InMemorySpanExporter) -> None:
    spans, place = RecordSpans(Stages((MEMORIES, QUERIES)), waits=QUERIES), Position(MEMORIES, 0, 1)
    spans.begin([decode(Record(place, EVENT, 0, b"acme/ann", headers=PARENT, silent=True))], 0.0)
    assert spans.headers(place) == ()
    spans.done([place])
    assert not exported.get_finished_spans()


ROW = RecalledMemory.model_construct(id="m1")
ANSWERS = {
    "nothing": (Response(query_id="q", status="ok"), 0),
    "recalled": (Response.model_construct(query_id="q", status="ok", memories=[ROW, ROW]), 2),
    "of no memory": (Response.model_construct(query_id="q", status="ok", memories=[]), 0),
    "versions of one": (
        Response.model_construct(query_id="q", status="ok", versions=[{"version": 0}, {"version": 1}]),
        1,
    ),
    "a page": (
        Response.model_construct(
            query_id="q", status="ok", memory_page=MemoryPage.model_construct(memories=[ROW, ROW, ROW])
        ),
        3,
    ),
    "a context": (
        Response.model_construct(query_id="q", status="ok", context=Context.model_construct(relevant_items=[ROW])),
        1,
    ),
}


@pytest.mark.parametrize(("response", "count"), ANSWERS.values(), ids=ANSWERS)
def test_span_counts_memories_of_any_answer(exported: InMemorySpanExporter, response: Response, count: int) -> None:
    spans, place = RecordSpans(Stages((MEMORIES, QUERIES)), waits=QUERIES), Position(QUERIES, 0, 1)
    spans.begin([decode(Record(place, QUERY, 0, b"acme/ann", headers=PARENT))], 0.0)
    spans.handed(Answer(place, 0, b"acme/ann", b"{}", response))
    spans.done([place])
    [span] = exported.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["gen_ai.memory.record.count"] == count
