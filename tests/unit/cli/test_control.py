"""`recallflow categories …` and `recallflow quota …` without Kafka."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.harness import Cli, parsed

Decide = Callable[..., str]


@pytest.fixture
def decide(cli: Cli, tmp_path: Path) -> Decide:
    """Return a function that runs a command on a file of control events."""

    def run(*words: str) -> str:
        done = cli(*words, "--control", tmp_path / "control.jsonl")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_quota_is_set_changed_and_removed(decide: Decide, tmp_path: Path) -> None:
    said = decide("quota", "set", "acme", "memories_per_user", "100000")
    assert str(tmp_path / "control.jsonl") in said
    decide("quota", "set", "acme", "events_per_s", "50", "--by", "kim", "--why", "a trial")
    decide("quota", "set", "other", "queries_per_s", "5")
    decide("quota", "set", "acme", "events_per_s", "0")
    lines = [line.split() for line in decide("quota", "list", "acme").splitlines()]
    assert lines == [["quota", "limit"], ["events_per_s", "0"], ["memories_per_user", "100,000"]]
    assert parsed(decide("quota", "list", "acme", "--json")) == [
        {"name": "events_per_s", "limit": 0},
        {"name": "memories_per_user", "limit": 100_000},
    ]
    decide("quota", "remove", "acme", "events_per_s")
    assert decide("quota", "list", "acme").splitlines()[1:] == ["memories_per_user  100,000"]
    assert decide("quota", "list", "other").splitlines()[1:] == ["queries_per_s      5"]
    events = parsed((tmp_path / "control.jsonl").read_bytes())
    assert {(event["type"], event["tenant_id"]) for event in events} == {("quota", "acme"), ("quota", "other")}
    assert [event["by"] for event in events if "by" in event] == ["kim"]


def test_category_is_defined_changed_and_removed(decide: Decide, tmp_path: Path) -> None:
    said = decide("categories", "set", "acme", "food", "--description", "What is eaten.")
    assert str(tmp_path / "control.jsonl") in said
    decide("categories", "set", "acme", "family", "--description", "Kin.", "--by", "kim", "--why", "asked for")
    decide("categories", "set", "other", "work", "--description", "Jobs.")
    decide("categories", "set", "acme", "food", "--description", "What is eaten and drunk.")
    lines = decide("categories", "list", "acme").splitlines()
    assert lines[1:] == ["family    Kin.", "food      What is eaten and drunk."]
    assert [one["name"] for one in parsed(decide("categories", "list", "acme", "--json"))] == ["family", "food"]
    decide("categories", "remove", "acme", "family")
    assert decide("categories", "list", "acme").splitlines()[1:] == ["food      What is eaten and drunk."]
    assert decide("categories", "list", "other").splitlines()[1:] == ["work      Jobs."]
    events = parsed((tmp_path / "control.jsonl").read_bytes())
    assert {(event["type"], event["tenant_id"]) for event in events} == {("category", "acme"), ("category", "other")}
    assert [event["by"] for event in events if "by" in event] == ["kim"]


@pytest.mark.parametrize(
    ("words", "code", "token"),
    [
        (["quota", "set", "acme", "events"], 2, "events_per_s"),
        (["quota", "set", "acme", "events_per_s"], 2, "LIMIT"),
        (["quota", "set", "acme", "events_per_s", "many"], 2, "many"),
        (["quota", "set", "acme", "events_per_s", "-1"], 1, "limit"),
        (["quota", "set", " ", "events_per_s", "1"], 1, "tenant_id"),
        (["quota", "remove", "acme"], 2, "NAME"),
        (["categories", "set", "acme", "food"], 2, "--description"),
        (["categories", "set", "acme", " ", "--description", "x"], 1, "name"),
        (["categories", "set", "acme", "food", "--description", "x" * 20_001], 1, "description"),
        (["categories", "remove", "acme"], 2, "NAME"),
    ],
)
def test_invalid_decision_is_refused(cli: Cli, tmp_path: Path, words: list[str], code: int, token: str) -> None:
    done = cli(*words, "--control", tmp_path / "control.jsonl")
    assert (done.returncode, token in done.stderr) == (code, True)
    assert not (tmp_path / "control.jsonl").exists()
