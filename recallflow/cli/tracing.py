"""Spans to whoever the standard OTEL_* variables name."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_log = logging.getLogger(__name__)


@contextmanager
def exported_spans(command: str, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Has spans exported, where the environment says where to; the last ones are sent in the end. `command`: what the
    service is called where the environment does not name it."""
    exporters = _wanted(environment)
    if not exporters:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError:
        _log.warning("OTEL_* variables ask for spans, and nothing exports them here: pip install 'recallflow[otel]'")
        yield
        return
    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    # Sampler, limits and pace it reads from the environment itself.
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": f"recallflow-{command}"}))
    for name in exporters:  # standard output is the command's own
        exporter = OTLPSpanExporter() if name == "otlp" else ConsoleSpanExporter(out=sys.stderr)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _wanted(environment: Mapping[str, str]) -> list[str]:
    """Which exporters there are to be."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environment.get(name) for name in _ENDPOINTS) else "none"
    given = environment.get("OTEL_TRACES_EXPORTER") or default
    names = [name.strip().lower() for name in given.split(",")]
    if unknown := [name for name in names if name not in ("otlp", "console", "none")]:
        _log.warning("OTEL_TRACES_EXPORTER: %s is not known here: give otlp, console or none", ", ".join(unknown))
    return [name for name in names if name in ("otlp", "console")]
