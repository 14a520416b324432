"""Spans of records from source to sink, and the time that each record takes in each stage."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, Span, SpanKind

from recallflow.credentials import Headers
from recallflow.flows.engine_metrics import NO_TRACE, Stages
from recallflow.operators.events import Ask, Write
from recallflow.outputs import Answer, DeadLetter
from recallflow.records import Position, Record
from recallflow.responses import Response
from recallflow.tracing import NOWHERE, fail, operation_of, parent_in, trace_headers, tracer

# Records that are through as far as their place in line goes, and of which something may come yet: queries that wait.
LATE_MOST = 10_000
_NS_PER_MS = 1_000_000
Attributes = Mapping[str, str | int]


class Taken(Protocol):
    """What a record was decoded to."""

    @property
    def record(self) -> Record: ...


class Journey:
    """One record under way. `headers`: for what comes of it."""

    __slots__ = ("append_ms", "headers", "outputs", "prepared_s", "span", "trace_id")

    def __init__(self, append_ms: int, prepared_s: float) -> None:
        self.append_ms, self.prepared_s = append_ms, prepared_s
        self.span: Span | None = None
        self.headers: Headers = ()
        self.trace_id = NO_TRACE
        self.outputs = 0


class Journeys:
    """Those of all records of a flow. Each worker begins and ends some, on its own thread."""

    def __init__(
        self, stages: Stages, waits: str | None = None, describe: Callable[[Any], tuple[str, Attributes]] | None = None
    ) -> None:
        """`waits`: the topic whose records may be set aside. `describe`: name and attributes of a record's span."""
        self.stages = stages
        self._waits = waits
        self._describe = describe or described
        self._here: dict[Position, Journey] = {}
        self._late: dict[Position, Journey] = {}
        self._dropping = threading.Lock()

    # ------------------------------------------------------------------ where records are read

    def begin(self, items: Iterable[Taken], began_s: float) -> None:
        """Records were taken at so many seconds of `time.perf_counter()`, and are prepared now."""
        prepared_s, now_ns, traces = time.perf_counter(), time.time_ns(), is_set_up()
        prepare_s = prepared_s - began_s
        began_ms = now_ns / _NS_PER_MS - prepare_s * 1000
        for item in items:
            record = item.record
            if record.silent:  # what comes of it was sent long ago
                continue
            journey = Journey(record.append_ms, prepared_s)
            queue_s = (began_ms - record.append_ms) / 1000
            if traces or record.headers:
                self._trace(journey, item, began_ms, {"queue": queue_s, "prepare": prepare_s})
            self._here[record.position] = journey
            self.stages.observe("queue", record.position.topic, queue_s, journey.trace_id)
            self.stages.observe("prepare", record.position.topic, prepare_s, journey.trace_id)

    def _trace(self, journey: Journey, item: Taken, began_ms: float, took_s: Mapping[str, float]) -> None:
        """Begins the record's span, as a child of the one that its headers name."""
        parent = parent_in(item.record.headers)
        if parent is NOWHERE and not is_set_up():
            return
        name, about = self._describe(item)
        topic, partition, offset = item.record.position
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
        journey.span, journey.headers = span, trace_headers(trace.set_span_in_context(span, NOWHERE))
        found = span.get_span_context()
        journey.trace_id = found.trace_id if found.trace_flags.sampled else NO_TRACE

    # ------------------------------------------------------------------ where outputs are handed on

    def headers(self, position: Position) -> Headers:
        """What names the parent to whoever reads an output of the record at a position."""
        journey = self._found(position)
        return () if journey is None else journey.headers

    def trace_id(self, position: Position) -> int:
        """Of the trace that the record at a position is in; 0 where that is kept nowhere."""
        journey = self._found(position)
        return NO_TRACE if journey is None else journey.trace_id

    def within(self, position: Position) -> AbstractContextManager[object]:
        """Has the record's span be the current one."""
        journey = self._found(position)
        if journey is None or journey.span is None:
            return nullcontext()
        return trace.use_span(journey.span, record_exception=False, set_status_on_exception=False)

    def handed(self, output: Any) -> Callable[[int], None]:
        """An output goes to the sink, which calls what this gives with the time that the log took it in."""
        position = output.position
        journey = self._found(position)
        if journey is None:
            return _nothing
        journey.outputs += 1
        if journey.span is not None and journey.span.is_recording():
            _tell(journey.span, output)
        handed_ms = time.time_ns() / _NS_PER_MS

        def delivered(append_ms: int) -> None:
            self.stages.observe("deliver", position.topic, (append_ms - handed_ms) / 1000, journey.trace_id)
            took_s = (append_ms - journey.append_ms) / 1000
            self.stages.observe("total", position.topic, took_s, journey.trace_id)

        return delivered

    def done(self, positions: Iterable[Position]) -> None:
        """Records are through, or are set aside."""
        for position in positions:
            journey = self._here.pop(position, None)
            if journey is None:
                continue
            waits = journey.outputs == 0 and position.topic == self._waits
            if not waits:
                self._end("state", position, journey)
            if waits or (journey.outputs == 0 and journey.headers):  # the latter, where it is applied in steps
                self._keep(position, journey)

    def end_late(self, positions: Sequence[Position]) -> None:
        """What was set aside has its outputs."""
        for position in positions:
            journey = self._late.pop(position, None)
            if journey is not None and position.topic == self._waits:
                self._end("wait", position, journey)

    def is_late(self, position: Position) -> bool:
        """Whether a record was set aside."""
        return position in self._late

    def _keep(self, position: Position, journey: Journey) -> None:
        with self._dropping:
            if len(self._late) >= LATE_MOST:
                dropped = self._late.pop(next(iter(self._late)), None)
                # An event's ended with the event: to end it twice would be a line in the log.
                if dropped is not None and dropped.span is not None and dropped.span.is_recording():
                    dropped.span.end()
            self._late[position] = journey

    def _end(self, stage: Literal["state", "wait"], position: Position, journey: Journey) -> None:
        took_s = time.perf_counter() - journey.prepared_s
        self.stages.observe(stage, position.topic, took_s, journey.trace_id)
        if journey.span is not None:
            journey.span.set_attribute(f"recallflow.{stage}_ms", took_s * 1000)
            journey.span.end()

    def _found(self, position: Position) -> Journey | None:
        return self._here.get(position) or self._late.get(position)


def is_set_up() -> bool:
    """Whether anybody is told of spans: the SDK is there, and was set up."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)


def described(item: Any) -> tuple[str, Attributes]:
    """Name and attributes of the span of a record of the main flow. What users name or write is not among them."""
    match item:
        case Ask(query=query):
            event_type: str = query.type
            operation = operation_of(event_type, asks=True)
        case Write(event=event):
            event_type = event.type
            operation = operation_of(event_type, asks=False)
        case _:
            return f"process {item.record.position.topic}", {}
    about = {"recallflow.event.type": event_type, "recallflow.tenant.id": item.owner.tenant_id}
    return operation, about | {"gen_ai.operation.name": operation, "recallflow.environment": item.owner.environment}


def _tell(span: Span, output: object) -> None:
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
    """How many memories an answer gives, whatever was asked; several versions are of one."""
    found = len(response.memories or ()) + bool(response.versions)
    if response.memory_page is not None:
        found += len(response.memory_page.memories)
    if response.context is not None:
        found += len(response.context.relevant_items)
    return found


def _nothing(_: int) -> None:
    """Nobody asks when the log took it in."""
