"""Tracing spans of records from source to sink, and the durations of records in each stage."""

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

PARKED_MAX = 10_000  # parked records that are tracked
_NS_PER_MS = 1_000_000
Attributes = Mapping[str, str | int]


@dataclass(slots=True, eq=False)
class RecordSpan:
    append_ms: int
    prepared_s: float
    span: Span | None = None
    headers: Headers = ()  # trace headers for the outputs of the record
    trace_id: int = NO_TRACE
    outputs: int = 0


class RecordSpans:
    """The spans of all records in progress. Each worker begins and ends spans on its own thread."""

    def __init__(self, stages: Stages, parked_topic: str | None = None) -> None:
        """Create the spans of a flow. `parked_topic` is the topic whose records may be parked, if any."""
        self.stages, self._parked_topic = stages, parked_topic
        self._open: dict[Position, RecordSpan] = {}
        self._parked: dict[Position, RecordSpan] = {}
        self._parking = threading.Lock()

    def begin(self, items: Iterable[Item | Record], began_s: float) -> None:
        """Begin the spans of prepared items or records, which were read at `began_s` (`time.perf_counter()`)."""
        prepared_s, now_ns, traces = time.perf_counter(), time.time_ns(), is_set_up()
        prepare_s = prepared_s - began_s
        began_ms = now_ns / _NS_PER_MS - prepare_s * 1000
        for item in items:
            record = item if isinstance(item, Record) else item.record
            if record.silent:  # an earlier run sent its outputs
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
        name, item_attributes = describe_item(item)
        topic, partition, offset = record.position
        attributes = {
            **item_attributes,
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.kafka.offset": offset,
            **{f"recallflow.{stage}_ms": max(0.0, stage_s * 1000) for stage, stage_s in took_s.items()},
        }
        began_ns = round(began_ms * _NS_PER_MS)
        span = tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, start_time=began_ns)
        tracked.span, tracked.headers = span, trace_headers(trace.set_span_in_context(span, NO_PARENT))
        context = span.get_span_context()
        tracked.trace_id = context.trace_id if context.trace_flags.sampled else NO_TRACE

    def headers(self, position: Position) -> Headers:
        tracked = self._found(position)
        return () if tracked is None else tracked.headers

    def trace_id(self, position: Position) -> int:
        tracked = self._found(position)
        return NO_TRACE if tracked is None else tracked.trace_id

    def within(self, position: Position) -> AbstractContextManager[object]:
        """Return a context in which the span of a record is the current span."""
        tracked = self._found(position)
        if tracked is None or tracked.span is None:
            return nullcontext()
        return trace.use_span(tracked.span, record_exception=False, set_status_on_exception=False)

    def track_output(self, output: Any) -> Callable[[int], None]:
        """Count an output of its record. Return a function that the sink calls with the append time of the output."""
        position = output.position
        tracked = self._found(position)
        if tracked is None:
            return lambda _: None
        tracked.outputs += 1
        if tracked.span is not None and tracked.span.is_recording():
            _set_attributes(tracked.span, output)
        routed_ms = time.time_ns() / _NS_PER_MS

        def delivered(append_ms: int) -> None:
            self.stages.observe("deliver", position.topic, (append_ms - routed_ms) / 1000, tracked.trace_id)
            self.stages.observe("total", position.topic, (append_ms - tracked.append_ms) / 1000, tracked.trace_id)

        return delivered

    def end_or_park(self, positions: Iterable[Position]) -> None:
        """End the spans of completed records. Keep the spans of records that may still have outputs, as parked."""
        for position in positions:
            tracked = self._open.pop(position, None)
            if tracked is None:
                continue
            is_parked_query = tracked.outputs == 0 and position.topic == self._parked_topic
            if not is_parked_query:
                self._end("state", position, tracked)
            # An event without outputs may be a large one, applied in steps: its later outputs need the headers.
            if is_parked_query or (tracked.outputs == 0 and tracked.headers):
                self._park(position, tracked)

    def end_parked(self, positions: Sequence[Position]) -> None:
        for position in positions:
            tracked = self._parked.pop(position, None)
            if tracked is not None and position.topic == self._parked_topic:
                self._end("wait", position, tracked)

    def is_parked(self, position: Position) -> bool:
        return position in self._parked

    def _park(self, position: Position, tracked: RecordSpan) -> None:
        with self._parking:
            if len(self._parked) >= PARKED_MAX:
                dropped = self._parked.pop(next(iter(self._parked)), None)
                # The span of an event may have ended, and ending it twice logs a warning.
                if dropped is not None and dropped.span is not None and dropped.span.is_recording():
                    dropped.span.end()
            self._parked[position] = tracked

    def _end(self, stage: Literal["state", "wait"], position: Position, tracked: RecordSpan) -> None:
        took_s = time.perf_counter() - tracked.prepared_s
        self.stages.observe(stage, position.topic, took_s, tracked.trace_id)
        if tracked.span is not None:
            tracked.span.set_attribute(f"recallflow.{stage}_ms", took_s * 1000)
            tracked.span.end()

    def _found(self, position: Position) -> RecordSpan | None:
        return self._open.get(position) or self._parked.get(position)


def is_set_up() -> bool:
    """Return whether the OpenTelemetry SDK is installed and configured."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)


def describe_item(item: Item | Record) -> tuple[str, Attributes]:
    """Return the name and attributes of the span of a main-flow record. They contain no names or texts of users."""
    if not isinstance(item, Ask | Write):
        return f"process {(item if isinstance(item, Record) else item.record).position.topic}", {}
    event_type: str = item.query.type if isinstance(item, Ask) else item.event.type
    operation = operation_of(event_type, is_query=isinstance(item, Ask))
    return operation, {
        "recallflow.event.type": event_type,
        "recallflow.tenant.id": item.owner.tenant_id,
        "gen_ai.operation.name": operation,
        "recallflow.environment": item.owner.environment,
    }


def _set_attributes(span: Span, output: object) -> None:
    match output:
        case Answer(response=response):
            span.set_attribute("recallflow.response.status", response.status)
            span.set_attribute("gen_ai.memory.record.count", _memory_count(response))
            if response.warnings:
                span.set_attribute("recallflow.response.warnings", [one.code for one in response.warnings])
            if response.error is not None:
                fail(span, response.error.code)
        case DeadLetter(error=error):
            fail(span, error.code)


def _memory_count(response: Response) -> int:
    """Return the number of memories in an answer. Versions of one memory count once."""
    found = len(response.memories or ()) + bool(response.versions)
    found += 0 if response.memory_page is None else len(response.memory_page.memories)
    return found + (0 if response.context is None else len(response.context.relevant_items))
