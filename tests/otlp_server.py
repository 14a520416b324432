"""A real HTTP server that takes spans as OTLP over HTTP (protobuf), and keeps them."""

import gzip
import threading
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.http_server import Handler, serving


class Span(NamedTuple):
    """A span as it came: ids in hexadecimal digits, `parent_id` empty at the root."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: dict[str, Any]
    failed: bool
    nanoseconds: int


class OtlpServer:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []  # decompressed, as they came
        self._arrived = threading.Condition()
        server = self

        class Collector(Handler):
            def do_POST(self) -> None:  # noqa: N802 - of http.server
                body = self.body()
                server._take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.reply(kind="application/x-protobuf")

        self._serving = serving(Collector)

    @property
    def environment(self) -> dict[str, str]:
        """Has a process send its spans here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self._url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def wait_for(self, *names: str, timeout_s: float = 60.0) -> list[Span]:
        with self._arrived:
            come = self._arrived.wait_for(lambda: {*names} <= {span.name for span in self.spans}, timeout_s)
            assert come, sorted(span.name for span in self.spans)
            return [*self.spans]

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            self.bodies.append(body)
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes)["service.name"]
                self.spans += [_span(service, one) for scope in resource.scope_spans for one in scope.spans]
            self._arrived.notify_all()

    def __enter__(self) -> Self:
        self._url = self._serving.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)


def _span(service: str, span: Any) -> Span:
    return Span(
        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
        _attributes(span.attributes), span.status.code == 2, span.end_time_unix_nano - span.start_time_unix_nano,
    )  # fmt: skip


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
