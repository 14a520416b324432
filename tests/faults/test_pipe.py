"""The embedded ways: one tenant's clock is its own, and every query line has its answer in its place."""

import subprocess
from pathlib import Path
from typing import Any

import orjson

from benchmarks.torture.engine import GIVE_UP_S, command, surroundings, words_of

EVENT = {"tenant_id": "acme", "user_id": "ann"}


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(EVENT | event) + b"\n" for event in events)


def answers(out: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in out.splitlines()]


def test_another_tenant_s_date_does_not_reach_this_one(tmp_path: Path) -> None:
    far = {
        "type": "message",
        "tenant_id": "other",
        "user_id": "bob",
        "content": "far",
        "timestamp": "9999-12-31T00:00:00Z",
    }
    near = {"type": "message", "id": "m", "content": "A walnut.", "timestamp": "2026-05-20T09:00:00Z"}
    asked = {"type": "recall", "query": "walnut", "as_of": {"ingestion_time": "2027-01-01T00:00:00Z"}}
    one = ("--create", "--state-dir", tmp_path / "state", "--partitions", "1")
    ended = command("pipe", *one, text=lines(far, near, asked | {"timestamp": "2027-01-01T00:00:00Z"}))
    assert ended.code == 0, ended
    (answer,) = answers(ended.out)
    assert [memory["id"] for memory in answer["memories"]] == ["m"], answer


def test_a_query_that_waits_is_answered_in_its_place(tmp_path: Path) -> None:
    told = [{"type": "message", "id": f"m{number}", "content": f"walnut {number}"} for number in range(5)]
    asked = [{"type": "recall", "query": "walnut", "id": f"q{number}"} for number in range(5)]
    asked[1]["wait_for"] = "stdin:0:9999"
    asked[3]["wait_for"] = "elsewhere:3:1"
    events = [event for pair in zip(told, asked, strict=True) for event in pair]
    ended = command("pipe", "--create", "--state-dir", tmp_path / "state", text=lines(*events))
    assert ended.code == 0, ended
    assert [answer["query_id"] for answer in answers(ended.out)] == [f"q{number}" for number in range(5)]
    for answer in (answers(ended.out)[1], answers(ended.out)[3]):
        assert answer["status"] == "error" or "stale_read" in [warning["code"] for warning in answer["warnings"]]


def test_the_same_lines_give_the_same_answers_at_any_pace(tmp_path: Path) -> None:
    """A co-process sends a line, reads its answer, and sends the next one; or all of it comes at once."""
    events: list[dict[str, Any]] = []
    for number in range(12):
        at = {"timestamp": f"2026-05-{number + 1:02}T09:00:00Z"}
        events.append({"type": "message", "id": f"m{number}", "content": f"walnut {number} is in the garden"} | at)
        events.append(
            {"type": "recall", "id": f"q{number}", "query": "Where is the walnut?", "strategy": "hybrid_graph"} | at
        )
    assert [*map(comparable, one_by_one(tmp_path, events))] == [*map(comparable, all_at_once(tmp_path, events))]


def test_a_gate_s_verdict_is_in_force_at_the_same_line_at_any_pace(tmp_path: Path) -> None:
    """Queries without time for the graph make the quality gate block it, from one line on."""
    rollout = {"type": "graph.rollout", "name": "default", "mode": "canary", "timestamp": "2026-05-01T00:00:00Z"}
    control = tmp_path / "control.jsonl"
    control.write_bytes(lines(rollout))
    edges = [{"source": "m0", "target": f"m{number}", "type": "RELATES_TO"} for number in range(1, 12)]
    told = [{"type": "message", "id": f"m{number}", "content": f"walnut {number}"} for number in range(12)]
    events: list[dict[str, Any]] = [*told, {"type": "graph.edges", "edges": edges}]
    for number in range(60):
        late = {"sla_target_ms": 0.000001} if number < 30 else {}
        asked = {"type": "recall", "id": f"q{number}", "query": "walnut 0", "k": 3, "strategy": "hybrid_graph"}
        events.append(asked | late)
    events = [event | {"timestamp": f"2026-05-02T09:{at // 60:02}:{at % 60:02}Z"} for at, event in enumerate(events)]
    slowly = [*map(comparable, one_by_one(tmp_path, events, "--control", control))]
    assert slowly == [*map(comparable, all_at_once(tmp_path, events, "--control", control))]
    assert {answer["fallback"] for answer in slowly} >= {"rollout_guardrail", "quality_gate_blocked"}


def all_at_once(tmp_path: Path, events: list[dict[str, Any]], *options: str | Path) -> list[str]:
    ended = command("pipe", "--create", "--state-dir", tmp_path / "at-once", *options, text=lines(*events))
    assert ended.code == 0, ended
    return ended.out.splitlines()


def one_by_one(tmp_path: Path, events: list[dict[str, Any]], *options: str | Path) -> list[str]:
    words = words_of("pipe", "--create", "--state-dir", tmp_path / "slowly", *options)
    talk: list[str] = []
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, env=surroundings(), **streams) as process:  # type: ignore[call-overload]
        try:
            for event in events:
                process.stdin.write(lines(event))
                process.stdin.flush()
                if event["type"] == "recall":
                    talk.append(process.stdout.readline().decode())
            process.stdin.close()
            assert process.wait(GIVE_UP_S) == 0
        finally:
            process.kill()
    return talk


def comparable(line: str) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads(line)
    timing = ("processing_time_ms", "sla_met", "routing_info")
    return {name: value for name, value in answer.items() if name not in timing}
