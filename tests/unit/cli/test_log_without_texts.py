"""No line of any level has what memories and questions say: of a whole story, with records that are refused, and one at
which our own code fails."""

import json
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from recallflow.cli.log import JsonLines
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.operators import writes

OWNER = {"tenant_id": "acme", "user_id": "ann"}
MARK = "aubergine"
STORY: list[dict[str, Any]] = [
    {"type": "message", "id": "m1", "content": f"The {MARK} is in the kitchen", "receipt": True},
    {"type": "memory", "id": "m2", "content": f"Ann grows one {MARK} a year", "tags": [MARK]},
    {"type": "memory", "id": "m3", "content": 5, "tags": MARK},
    {"type": "memory", "id": "m4", "content": f"our own code fails at this {MARK}"},
    {"type": "memory.update", "memory_id": "m2", "content": f"Ann grows two of the {MARK}"},
    {"type": "memory.update", "memory_id": "nobody", "content": MARK},
    {"type": "recall", "id": "q1", "query": f"Where is the {MARK}?", "explain": True},
    {"type": "recall", "id": "q2", "query": f"The {MARK}?", "mode": MARK},
    {"type": "graph.facts", "id": "q3", "query": MARK},
    {"type": MARK, "id": "x"},
    {"type": "memory.forget", "memory_id": "m1"},
    {"type": "user.erase"},
]


def test_no_line_of_a_story_has_a_text_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = vars(writes)["apply"]

    def fails(view: object, write: object, *rest: object) -> object:
        if getattr(getattr(write, "event", None), "id", None) == "m4":
            raise ValueError(f"cannot read {MARK}")
        return apply(view, write, *rest)

    monkeypatch.setattr(writes, "apply", fails)
    caplog.set_level(logging.DEBUG)
    lines = [orjson.dumps(OWNER | event) for event in STORY]
    done = process([*lines, b"{" + MARK.encode()], Settings(partitions=1), tmp_path / "s")
    assert {response["query_id"] for response in done.responses} >= {"q1", "q2", "q3"}
    assert len(done.rejected) >= 4
    told = [JsonLines().format(record) for record in caplog.records]
    assert any(json.loads(line).get("code") == "internal_error" for line in told)
    assert not [line for line in told if MARK in line.lower()]


def test_a_line_says_in_which_trace_it_was_written() -> None:
    record = logging.LogRecord("recallflow.x", logging.INFO, "file", 1, "said", (), None)
    assert "trace_id" not in json.loads(JsonLines().format(record))
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False))
    token = context.attach(trace.set_span_in_context(span))
    try:
        told = json.loads(JsonLines().format(record))
    finally:
        context.detach(token)
    assert (told["trace_id"], told["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
