"""Distributed traces: the header `traceparent` (W3C Trace Context), and operation names of the GenAI conventions.

All functions work without the OpenTelemetry SDK at almost no cost: the incoming parent is forwarded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from recallflow.credentials import Headers

TRACE_HEADER = "traceparent"
HEADER_MAX_BYTES = 512  # limit, for additions of later versions of the standard
NOWHERE = Context()  # no parent

Operation = Literal["search_memory", "create_memory", "update_memory", "upsert_memory", "delete_memory"]
OPERATIONS: dict[str, Operation] = {
    "message": "create_memory",
    "memory": "create_memory",
    "memory.update": "update_memory",
    "memory.feedback": "update_memory",
    "memory.forget": "delete_memory",
    "user.erase": "delete_memory",
}  # other events are upsert_memory, other queries search_memory

_propagator = TraceContextTextMapPropagator()
tracer = trace.get_tracer("recallflow")


def operation_of(event_type: str, *, asks: bool) -> Operation:
    """Return the GenAI operation name of an event type."""
    return "search_memory" if asks else OPERATIONS.get(event_type, "upsert_memory")


def parent_in(headers: Headers | None) -> Context:
    """Return the parent span in headers; `NOWHERE` for missing or malformed ones."""
    for name, value in headers or ():
        if name.lower() == TRACE_HEADER and value is not None and len(value) <= HEADER_MAX_BYTES:
            found = _propagator.extract({TRACE_HEADER: value.decode("ascii", "replace")}, NOWHERE)
            if trace.get_current_span(found).get_span_context().is_valid:
                return found
    return NOWHERE


def trace_headers(context: Context | None = None) -> Headers:
    """Return headers with a context's span (default: the current one) as the parent; empty without a span."""
    given: dict[str, str] = {}
    _propagator.inject(given, context)
    return ((TRACE_HEADER, given[TRACE_HEADER].encode()),) if given else ()


@contextmanager
def model_call(operation: Literal["chat", "embeddings", "rerank"], model: str) -> Iterator[trace.Span]:
    """Trace a call of a model as a child of the current span. Errors are recorded by type only, because a message
    may quote the request."""
    attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
    with tracer.start_as_current_span(
        f"{operation} {model}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            fail(span, getattr(error, "code", None) or type(error).__name__)
            raise


def fail(span: trace.Span, kind: str) -> None:
    """Mark a span as failed with an error type."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))
