"""`recallflow quota …` without Kafka."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
Parsed = Callable[[str | bytes], list[Any]]


def test_a_limit_is_set_changed_and_taken_away(cli: Cli, parsed: Parsed, tmp_path: Path) -> None:
    control = tmp_path / "control.jsonl"

    def decide(*words: str) -> str:
        done = cli("quota", *words, "--control", control)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    said = decide("set", "acme", "memories_per_user", "100000")
    assert said == f"quota set acme memories_per_user: appended to {control}\n"
    decide("set", "acme", "events_per_s", "50", "--by", "kim", "--why", "a trial")
    decide("set", "other", "queries_per_s", "5")
    decide("set", "acme", "events_per_s", "0")
    lines = decide("list", "acme").splitlines()
    assert [line.split() for line in lines] == [
        ["quota", "limit"],
        ["events_per_s", "0"],
        ["memories_per_user", "100,000"],
    ]
    assert parsed(decide("list", "acme", "--json")) == [
        {"name": "events_per_s", "limit": 0},
        {"name": "memories_per_user", "limit": 100_000},
    ]
    decide("remove", "acme", "events_per_s")
    assert decide("list", "acme").splitlines()[1:] == ["memories_per_user  100,000"]
    assert decide("list", "other").splitlines()[1:] == ["queries_per_s      5"]
    events = parsed(control.read_bytes())
    assert {(event["type"], event["tenant_id"]) for event in events} == {("quota", "acme"), ("quota", "other")}
    assert [event["by"] for event in events if "by" in event] == ["kim"]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["set", "acme", "events"], 2, "events_per_s"),
        (["set", "acme", "events_per_s"], 2, "LIMIT"),
        (["set", "acme", "events_per_s", "many"], 2, "many"),
        (["set", "acme", "events_per_s", "-1"], 1, "limit"),
        (["set", " ", "events_per_s", "1"], 1, "tenant_id"),
        (["remove", "acme"], 2, "NAME"),
    ],
)
def test_what_is_wrong_with_a_limit_is_told(
    cli: Cli, tmp_path: Path, words: list[str], code: int, problem: str
) -> None:
    done = cli("quota", *words, "--control", tmp_path / "control.jsonl")
    assert done.returncode == code
    assert problem in done.stderr
    assert not (tmp_path / "control.jsonl").exists()


def test_lines_of_a_user_who_has_too_much_are_refused(cli: Cli, tmp_path: Path) -> None:
    control = tmp_path / "control.jsonl"
    control.write_text(
        '{"type": "quota", "tenant_id": "acme", "name": "memories_per_user", "limit": 1, "timestamp": 0}\n'
    )
    lines = [
        f'{{"type": "memory", "tenant_id": "acme", "user_id": "kim", "content": "{content}"}}\n'
        for content in ("The bicycle is in the cellar.", "The key is under the mat.")
    ]
    done = cli("pipe", "--state-dir", tmp_path / "state", "--control", control, stdin="".join(lines).encode())
    (refused,) = done.stderr.splitlines()
    assert '"line":2' in refused.replace(" ", "")
    assert "over_quota" in refused
    assert "memories_per_user" in refused
