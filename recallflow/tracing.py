"""Traces across processes: the header `traceparent` (W3C Trace Context), and what GenAI conventions call an operation.

Everything here works without the OpenTelemetry SDK, and then costs next to nothing: the parent that came goes on.
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
HEADER_MAX_BYTES = 512  # whatever a later version of the standard appends
NOWHERE = Context()  # no parent

Operation = Literal["search_memory", "create_memory", "update_memory", "upsert_memory", "delete_memory"]
OPERATIONS: dict[str, Operation] = {
    "message": "create_memory",
    "memory": "create_memory",
    "memory.update": "update_memory",
    "memory.feedback": "update_memory",
    "memory.forget": "delete_memory",
    "user.erase": "delete_memory",
}  # of all other events: upsert_memory, and of all that asks: search_memory

_propagator = TraceContextTextMapPropagator()
tracer = trace.get_tracer("recallflow")


def operation_of(event_type: str, *, asks: bool) -> Operation:
    """What the GenAI conventions call that which an event of a type does."""
    return "search_memory" if asks else OPERATIONS.get(event_type, "upsert_memory")


def parent_in(headers: Headers | None) -> Context:
    """The span that headers name as their parent; `NOWHERE` where they name none, or what they say is malformed."""
    for name, value in headers or ():
        if name.lower() == TRACE_HEADER and value is not None and len(value) <= HEADER_MAX_BYTES:
            found = _propagator.extract({TRACE_HEADER: value.decode("ascii", "replace")}, NOWHERE)
            if trace.get_current_span(found).get_span_context().is_valid:
                return found
    return NOWHERE


def trace_headers(context: Context | None = None) -> Headers:
    """Headers that name a context's span (default: of the current context) as the parent; none where there is none."""
    given: dict[str, str] = {}
    _propagator.inject(given, context)
    return ((TRACE_HEADER, given[TRACE_HEADER].encode()),) if given else ()


@contextmanager
def model_call(operation: Literal["chat", "embeddings", "rerank"], model: str) -> Iterator[trace.Span]:
    """A call of a model as a child of the current span. Whatever it raises is told by its type alone: a message may
    quote what was sent."""
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
    """Says of a span that it ended in an error of a kind."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))
