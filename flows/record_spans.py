"""Tracing spans of records from source to sink, and their durations in each stage."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, Span, SpanKind

from recallflow.credentials import Headers
from recallflow.flows.engine_metrics import NO_TRACE, Stages
from recallflow.operators.events import Ask, Item, Write
from recallflow.outputs import Answer, DeadLetter
from recallflow.records import Position, Record
from recallflow.responses import Response
from recallflow.telemetry import NO_PARENT, fail, operation_of, parent_in, trace_headers, tracer

LATE_MOST = 10_000  # parked records that are tracked
_NS_PER_MS = 1_000_000
Attributes = Mapping[str, str | int]


@dataclass(slots=True, eq=False)
class RecordSpan:
    append_ms: int
    prepared_s: float
    span: Span | None = None
    headers: Headers = ()  # which carry the trace to its outputs
    trace_id: int = NO_TRACE
    outputs: int = 0


class RecordSpans:
    """The spans of all records in progress. Each worker begins and ends spans on its own thread."""

    def __init__(self, stages: Stages, waits: str | None = None) -> None:
        """Create the spans of a flow. `waits`: the topic whose records may be parked."""
        self.stages, self._waits = stages, waits
        self._open: dict[Position, RecordSpan] = {}
        self._late: dict[Position, RecordSpan] = {}
        self._dropping = threading.Lock()

    # ------------------------------------------------------------------ where records are read

    def begin(self, items: Iterable[Item | Record], began_s: float) -> None:
        """Begin the spans of prepared items or records. `began_s` is the time of their read (`time.perf_counter()`)."""
        prepared_s, now_ns, traces = time.perf_counter(), time.time_ns(), is_set_up()
        prepare_s = prepared_s - began_s
        began_ms = now_ns / _NS_PER_MS - prepare_s * 1000
        for item in items:
            record = item if isinstance(item, Record) else item.record
            if record.silent:  # its outputs were sent before
                continue
            tracked = RecordSpan(record.append_ms, prepared_s)
            queue_s = (began_ms - record.append_ms) / 1000
            if traces or record.headers:
                self._trace(tracked, record, item, began_ms, {"queue": queue_s, "prepare": prepare_s})
            self._open[record.position] = tracked
            self.stages.observe("queue", record.position.topic, queue_s, tracked.trace_id)
            self.stages.observe("prepare", record.position.topic, prepare_s, tracked.trace_id)

    def _trace(
        self, tracked: RecordSpan, record: Record, item: Item | Record, began_ms: float, took_s: Mapping[str, float]
    ) -> None:
        parent = parent_in(record.headers)
        if parent is NO_PARENT and not is_set_up():
            return
        name, about = described(item)
        topic, partition, offset = record.position
        attributes = {
            **about,
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.kafka.offset": offset,
            **{f"recallflow.{stage}_ms": max(0.0, taken_s * 1000) for stage, taken_s in took_s.items()},
        }
        began_ns = round(began_ms * _NS_PER_MS)
        span = tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, start_time=began_ns)
        tracked.span, tracked.headers = span, trace_headers(trace.set_span_in_context(span, NO_PARENT))
        found = span.get_span_context()
        tracked.trace_id = found.trace_id if found.trace_flags.sampled else NO_TRACE

    # ------------------------------------------------------------------ where outputs are handed on

    def headers(self, position: Position) -> Headers:
        tracked = self._found(position)
        return () if tracked is None else tracked.headers

    def trace_id(self, position: Position) -> int:
        tracked = self._found(position)
        return NO_TRACE if tracked is None else tracked.trace_id

    def within(self, position: Position) -> AbstractContextManager[object]:
        """Make the span of a record the current span."""
        tracked = self._found(position)
        if tracked is None or tracked.span is None:
            return nullcontext()
        return trace.use_span(tracked.span, record_exception=False, set_status_on_exception=False)

    def track_output(self, output: Any) -> Callable[[int], None]:
        """Note an output at the sink. Return a function that the sink calls with the append time of the output."""
        position = output.position
        tracked = self._found(position)
        if tracked is None:
            return lambda _: None
        tracked.outputs += 1
        if tracked.span is not None and tracked.span.is_recording():
            _set_attributes(tracked.span, output)
        handed_ms = time.time_ns() / _NS_PER_MS

        def delivered(append_ms: int) -> None:
            self.stages.observe("deliver", position.topic, (append_ms - handed_ms) / 1000, tracked.trace_id)
            took_s = (append_ms - tracked.append_ms) / 1000
            self.stages.observe("total", position.topic, took_s, tracked.trace_id)

        return delivered

    def done(self, positions: Iterable[Position]) -> None:
        """End the spans of completed records, and keep the spans of parked records."""
        for position in positions:
            tracked = self._open.pop(position, None)
            if tracked is None:
                continue
            waits = tracked.outputs == 0 and position.topic == self._waits
            if not waits:
                self._end("state", position, tracked)
            if waits or (tracked.outputs == 0 and tracked.headers):  # the latter: an event that is applied in steps
                self._park(position, tracked)

    def end_late(self, positions: Sequence[Position]) -> None:
        for position in positions:
            tracked = self._late.pop(position, None)
            if tracked is not None and position.topic == self._waits:
                self._end("wait", position, tracked)

    def is_late(self, position: Position) -> bool:
        return position in self._late

    def _park(self, position: Position, tracked: RecordSpan) -> None:
        with self._dropping:
            if len(self._late) >= LATE_MOST:
                dropped = self._late.pop(next(iter(self._late)), None)
                # The span of an event may have ended, and ending it twice logs a warning.
                if dropped is not None and dropped.span is not None and dropped.span.is_recording():
                    dropped.span.end()
            self._late[position] = tracked

    def _end(self, stage: Literal["state", "wait"], position: Position, tracked: RecordSpan) -> None:
        took_s = time.perf_counter() - tracked.prepared_s
        self.stages.observe(stage, position.topic, took_s, tracked.trace_id)
        if tracked.span is not None:
            tracked.span.set_attribute(f"recallflow.{stage}_ms", took_s * 1000)
            tracked.span.end()

    def _found(self, position: Position) -> RecordSpan | None:
        return self._open.get(position) or self._late.get(position)


def is_set_up() -> bool:
    """Return whether the OpenTelemetry SDK is installed and configured."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)


def described(item: Item | Record) -> tuple[str, Attributes]:
    """Return the name and attributes of the span of a main-flow record. They contain no names or texts of users."""
    match item:
        case Ask(query=query):
            event_type: str = query.type
            operation = operation_of(event_type, is_query=True)
        case Write(event=event):
            event_type = event.type
            operation = operation_of(event_type, is_query=False)
        case Record():
            return f"process {item.position.topic}", {}
        case _:
            return f"process {item.record.position.topic}", {}
    about = {"recallflow.event.type": event_type, "recallflow.tenant.id": item.owner.tenant_id}
    return operation, about | {"gen_ai.operation.name": operation, "recallflow.environment": item.owner.environment}


def _set_attributes(span: Span, output: object) -> None:
    match output:
        case Answer(response=response):
            span.set_attribute("recallflow.response.status", response.status)
            span.set_attribute("gen_ai.memory.record.count", _memories_in(response))
            if response.warnings:
                span.set_attribute("recallflow.response.warnings", [one.code for one in response.warnings])
            if response.error is not None:
                fail(span, response.error.code)
        case DeadLetter(error=error):
            fail(span, error.code)


def _memories_in(response: Response) -> int:
    """Return the number of memories in an answer. Versions of one memory count once."""
    found = len(response.memories or ()) + bool(response.versions)
    if response.memory_page is not None:
        found += len(response.memory_page.memories)
    if response.context is not None:
        found += len(response.context.relevant_items)
    return found
