"""Log lines have their time, level and logger, and no text of memories and queries."""

import json
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from recallflow.cli.telemetry import JsonFormatter, TextFormatter, set_up_logging
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.operators import writes
from tests.unit.cli.harness import Cli, event

SECRET = "aubergine"
STORY: list[dict[str, Any]] = [
    event("message", id="m1", content=f"The {SECRET} is in the kitchen", receipt=True),
    event("memory", id="m2", content=f"Ann grows one {SECRET} a year", tags=[SECRET]),
    event("memory", id="m3", content=5, tags=SECRET),
    event("memory", id="m4", content=f"our own code fails at this {SECRET}"),
    event("memory.update", memory_id="m2", content=f"Ann grows two of the {SECRET}"),
    event("memory.update", memory_id="nobody", content=SECRET),
    event("recall", id="q1", query=f"Where is the {SECRET}?", explain=True),
    event("recall", id="q2", query=f"The {SECRET}?", mode=SECRET),
    event("graph.facts", id="q3", query=SECRET),
    event(SECRET, id="x"),
    event("memory.forget", memory_id="m1"),
    event("user.erase"),
]


def record(level: int, text: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("recallflow.connectors.kafka.source", level, "file", 1, text, args, None)
    made.created = 1_767_225_600.1234
    return made


def test_text_line_has_time_level_and_logger() -> None:
    line = TextFormatter().format(record(logging.WARNING, "%s is away", "Kafka"))
    assert line == "2026-01-01T00:00:00.123Z WARNING connectors.kafka.source: Kafka is away"


def test_json_line_holds_a_traceback_in_one_object() -> None:
    failed = record(logging.ERROR, "two\nlines")
    failed.exc_info = (ValueError, ValueError("what"), None)
    line = JsonFormatter().format(failed)
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("message").startswith("two\nlines\nValueError: what")
    assert told == {"time": "2026-01-01T00:00:00.123Z", "level": "error", "logger": "connectors.kafka.source"}


def test_json_line_names_its_trace() -> None:
    assert "trace_id" not in json.loads(JsonFormatter().format(record(logging.INFO, "said")))
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False))
    token = context.attach(trace.set_span_in_context(span))
    try:
        told = json.loads(JsonFormatter().format(record(logging.INFO, "said")))
    finally:
        context.detach(token)
    assert (told["trace_id"], told["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")


def test_other_libraries_log_from_warnings_on(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text")
    logging.getLogger("recallflow.flows.kafka").info("ours")
    logging.getLogger("others").info("theirs")
    logging.getLogger("others").warning("their trouble")
    said = capfd.readouterr().err
    assert "INFO flows.kafka: ours" in said
    assert "WARNING others: their trouble" in said
    assert "theirs" not in said


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_error_that_ends_a_run_is_a_log_line(cli: Cli, tmp_path: Path, log_format: str) -> None:
    done = cli("run", "--state-dir", tmp_path / "s", "--standby", "-1", "--log-format", log_format)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "standby" in (json.loads(line)["message"] if log_format == "json" else line)


def test_no_log_line_has_a_text_of_a_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply a story of good and refused records, and one at which an operator fails, and log at every level."""
    apply = vars(writes)["apply"]

    def fails(view: object, write: object, *rest: object) -> object:
        if getattr(getattr(write, "event", None), "id", None) == "m4":
            raise ValueError(f"cannot read {SECRET}")
        return apply(view, write, *rest)

    monkeypatch.setattr(writes, "apply", fails)
    caplog.set_level(logging.DEBUG)
    lines = [*map(orjson.dumps, STORY), b"{" + SECRET.encode()]
    done = process(lines, Settings(partitions=1), tmp_path / "s")
    assert {response["query_id"] for response in done.responses} >= {"q1", "q2", "q3"}
    assert len(done.rejected) >= 4
    told = [JsonFormatter().format(one) for one in caplog.records]
    assert any(json.loads(line).get("code") == "internal_error" for line in told)
    assert not [line for line in told if SECRET in line.lower()]
