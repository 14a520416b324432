"""Telemetry: distributed traces, log formats, and the export of spans.

Traces use the header `traceparent` (W3C Trace Context) and operation names of the GenAI conventions. Without the
OpenTelemetry SDK, the header of an incoming record is forwarded, at almost no cost."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from recallflow.credentials import Headers, MaskingFormatter

TRACE_HEADER = "traceparent"
HEADER_MAX_BYTES = 512  # larger than today's header: later versions of the standard may add fields
NO_PARENT = Context()
Operation = Literal["search_memory", "create_memory", "update_memory", "upsert_memory", "delete_memory"]
OPERATIONS: dict[str, Operation] = {  # other events are upsert_memory, queries search_memory
    "message": "create_memory", "memory": "create_memory", "memory.update": "update_memory",
    "memory.feedback": "update_memory", "memory.forget": "delete_memory", "user.erase": "delete_memory",
}  # fmt: skip
_propagator = TraceContextTextMapPropagator()
tracer = trace.get_tracer("recallflow")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_log = logging.getLogger(__name__)


def operation_of(event_type: str, *, is_query: bool) -> Operation:
    return "search_memory" if is_query else OPERATIONS.get(event_type, "upsert_memory")


def parent_in(headers: Headers | None) -> Context:
    """Return the parent span in headers; `NO_PARENT` if the header is missing or malformed."""
    for name, value in headers or ():
        if name.lower() == TRACE_HEADER and value is not None and len(value) <= HEADER_MAX_BYTES:
            parent = _propagator.extract({TRACE_HEADER: value.decode("ascii", "replace")}, NO_PARENT)
            if trace.get_current_span(parent).get_span_context().is_valid:
                return parent
    return NO_PARENT


def trace_headers(context: Context | None = None) -> Headers:
    """Return headers with a context's span (default: the current one) as the parent; empty without a span."""
    headers: dict[str, str] = {}
    _propagator.inject(headers, context)
    return ((TRACE_HEADER, headers[TRACE_HEADER].encode()),) if headers else ()


@contextmanager
def model_call(operation: Literal["chat", "embeddings", "rerank"], model: str) -> Iterator[trace.Span]:
    """Trace a call of a model. Errors are recorded by type only, because a message may quote the request."""
    attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
    name = f"{operation} {model}"
    with tracer.start_as_current_span(
        name, None, SpanKind.CLIENT, attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            fail(span, getattr(error, "code", None) or type(error).__name__)
            raise


def fail(span: trace.Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


class TextFormatter(MaskingFormatter):
    """Text lines: `2026-01-31T12:00:00.123Z WARNING connectors.kafka.membership: …`."""

    def format(self, record: logging.LogRecord) -> str:
        logger = record.name.removeprefix("recallflow.")
        return f"{_log_time(record)} {record.levelname} {logger}: {super().format(record)}"


class JsonFormatter(MaskingFormatter):
    """JSON lines. `message` includes the traceback; trace id, position and error code are fields where known."""

    def format(self, record: logging.LogRecord) -> str:
        logger = record.name.removeprefix("recallflow.")
        fields = {"time": _log_time(record), "level": record.levelname.lower(), "logger": logger}
        fields |= {name: record.__dict__[name] for name in ("position", "code", "error_id") if name in record.__dict__}
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            fields |= {"trace_id": f"{current.trace_id:032x}", "span_id": f"{current.span_id:016x}"}
        return json.dumps(fields | {"message": super().format(record)}, ensure_ascii=False)


def set_up_logging(log_format: str) -> None:
    """Log to standard error: recallflow from INFO, libraries from WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("recallflow").setLevel(logging.INFO)


def logs_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _log_time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def export_spans(command: str) -> Iterator[None]:
    """Export spans within the block if environment variables request it. `command` is the default service name."""
    exporters = _exporters()
    if not exporters:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError:
        _log.warning("OTEL_* variables request spans, but no exporter is installed: pip install 'recallflow[otel]'")
        yield
        return
    has_name = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    # The provider reads sampler, limits and batching from the environment.
    provider = TracerProvider(resource=Resource.create({} if has_name else {"service.name": f"recallflow-{command}"}))
    for name in exporters:  # `console` is standard error: standard output contains the command's results
        exporter = OTLPSpanExporter() if name == "otlp" else ConsoleSpanExporter(out=sys.stderr)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _exporters() -> list[str]:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(os.environ.get(name) for name in _ENDPOINTS) else "none"
    listed = os.environ.get("OTEL_TRACES_EXPORTER") or default
    names = [name.strip().lower() for name in listed.split(",")]
    if unknown := [name for name in names if name not in ("otlp", "console", "none")]:
        _log.warning("OTEL_TRACES_EXPORTER: unknown exporter %s; give otlp, console or none", ", ".join(unknown))
    return [name for name in names if name in ("otlp", "console")]
