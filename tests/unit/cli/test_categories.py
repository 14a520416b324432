"""`recallflow categories …` without Kafka."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
Parsed = Callable[[str | bytes], list[Any]]


def test_a_category_is_defined_described_anew_and_removed(cli: Cli, parsed: Parsed, tmp_path: Path) -> None:
    control = tmp_path / "control.jsonl"

    def decide(*words: str) -> str:
        done = cli("categories", *words, "--control", control)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert decide("set", "acme", "food", "--description", "What is eaten.") == (
        f"categories set acme food: appended to {control}\n"
    )
    decide("set", "acme", "family", "--description", "Kin.", "--by", "kim", "--why", "asked for")
    decide("set", "other", "work", "--description", "Jobs.")
    decide("set", "acme", "food", "--description", "What is eaten and drunk.")
    assert decide("list", "acme").splitlines()[1:] == ["family    Kin.", "food      What is eaten and drunk."]
    assert [one["name"] for one in parsed(decide("list", "acme", "--json"))] == ["family", "food"]
    decide("remove", "acme", "family")
    assert decide("list", "acme").splitlines()[1:] == ["food      What is eaten and drunk."]
    assert decide("list", "other").splitlines()[1:] == ["work      Jobs."]
    events = parsed(control.read_bytes())
    assert {(event["type"], event["tenant_id"]) for event in events} == {("category", "acme"), ("category", "other")}
    assert [event["by"] for event in events if "by" in event] == ["kim"]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["set", "acme", "food"], 2, "--description"),
        (["set", "acme", " ", "--description", "x"], 1, "name: is blank"),
        (["set", "acme", "food", "--description", "x" * 20_001], 1, "description"),
        (["remove", "acme"], 2, "NAME"),
    ],
)
def test_what_is_wrong_with_a_category_is_told(
    cli: Cli, tmp_path: Path, words: list[str], code: int, problem: str
) -> None:
    done = cli("categories", *words, "--control", tmp_path / "control.jsonl")
    assert done.returncode == code
    assert problem in done.stderr
    assert not (tmp_path / "control.jsonl").exists()
