"""Log lines of an engine, for people or for collectors: time, level, logger, message."""

import json
import logging
import sys
from datetime import UTC, datetime

from opentelemetry import trace

from recallflow.masking import MaskingFormatter


class Lines(MaskingFormatter):
    """`2026-01-31T12:00:00.123Z WARNING connectors.kafka.trouble: …`."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname} {_name(record)}: {super().format(record)}"


class JsonLines(MaskingFormatter):
    """One object a line, a traceback within its `message`; with the trace that it was written in, and the position and
    error code that it is about, where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": _time(record), "level": record.levelname.lower(), "logger": _name(record)}
        fields |= {name: record.__dict__[name] for name in ("position", "code", "error_id") if name in record.__dict__}
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            fields |= {"trace_id": f"{current.trace_id:032x}", "span_id": f"{current.span_id:016x}"}
        return json.dumps(fields | {"message": super().format(record)}, ensure_ascii=False)


def set_up(log_format: str) -> None:
    """Logs to standard error from here on: recallflow from INFO, libraries from WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("recallflow").setLevel(logging.INFO)


def in_json() -> bool:
    """Whether log lines are objects."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _name(record: logging.LogRecord) -> str:
    return record.name.removeprefix("recallflow.")
