"""`recallflow pipe`: a tenant's clock is its own, and each query line has its answer in its place."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import orjson

Cli = Callable[..., CompletedProcess[str]]


def piped(cli: Cli, folder: Path, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers to these events, of Ann's at acme."""
    owner = {"tenant_id": "acme", "user_id": "ann"}
    lines = b"".join(orjson.dumps(owner | event) + b"\n" for event in events)
    ended = cli("pipe", "--state-dir", folder, "--partitions", "1", stdin=lines)
    assert ended.returncode == 0, ended.stderr
    return [orjson.loads(line) for line in ended.stdout.splitlines()]


def test_another_tenants_date_does_not_move_a_clock(cli: Cli, tmp_path: Path) -> None:
    far = {"type": "message", "tenant_id": "other", "user_id": "bob", "content": "far"}
    near = {"type": "message", "id": "m", "content": "A walnut.", "timestamp": "2026-05-20T09:00:00Z"}
    asked = {"type": "recall", "query": "walnut", "as_of": {"ingestion_time": "2027-01-01T00:00:00Z"}}
    (answer,) = piped(
        cli,
        tmp_path / "state",
        far | {"timestamp": "9999-12-31T00:00:00Z"},
        near,
        asked | {"timestamp": "2027-01-01T00:00:00Z"},
    )
    assert [memory["id"] for memory in answer["memories"]] == ["m"]


def test_a_waiting_query_is_answered_in_its_place(cli: Cli, tmp_path: Path) -> None:
    waits = {1: "stdin:0:9999", 3: "elsewhere:3:1"}
    events: list[dict[str, Any]] = []
    for number in range(5):
        events.append({"type": "message", "id": f"m{number}", "content": f"walnut {number}"})
        wait = {"wait_for": waits[number]} if number in waits else {}
        events.append({"type": "recall", "query": "walnut", "id": f"q{number}"} | wait)
    answers = piped(cli, tmp_path / "state", *events)
    assert [answer["query_id"] for answer in answers] == [f"q{number}" for number in range(5)]
    for number in waits:
        warned = [warning["code"] for warning in answers[number].get("warnings", [])]
        assert answers[number]["status"] == "error" or "stale_read" in warned
