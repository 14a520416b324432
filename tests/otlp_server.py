"""A real HTTP server that takes spans as OTLP over HTTP (protobuf), and keeps them."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


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

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server._take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """Has a process send its spans here, soon."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

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
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


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
