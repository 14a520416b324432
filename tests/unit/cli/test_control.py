"""Decisions about tenants, their keys among them, without Kafka."""

import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from recallflow.control import owner_mappings
from recallflow.credentials import KEY_HEADER, ApiKeyText
from recallflow.errors import InvalidRecord
from recallflow.fields import EPOCH_MS_MAX
from recallflow.flows.admission import read_control_file
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.owner import workspace_of
from recallflow.parsing import parse
from recallflow.records import Position, Record
from tests.unit.cli.harness import Cli, parsed

DecisionSender = Callable[..., str]


@pytest.fixture
def decide(cli: Cli, tmp_path: Path) -> DecisionSender:
    """Return a function that runs a command on a file of control events."""

    def run(*words: str) -> str:
        done = cli(*words, "--control", tmp_path / "control.jsonl")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_quota_is_set_changed_and_removed(decide: DecisionSender, tmp_path: Path) -> None:
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


def test_category_is_defined_changed_and_removed(decide: DecisionSender, tmp_path: Path) -> None:
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


def test_owner_is_mapped_and_unmapped(decide: DecisionSender, tmp_path: Path) -> None:
    decide("owners", "map", "acme", "acme-labs", "labs", "--by", "kim")
    decide("owners", "map", "acme", "other-owner", "lost")
    decide("owners", "map", "acme", "other-owner", "found")
    assert parsed(decide("owners", "list", "acme", "--json")) == [
        {"owner": "acme-labs", "workspace": "labs"},
        {"owner": "other-owner", "workspace": "found"},
    ]
    mappings = owner_mappings(read_control_file(tmp_path / "control.jsonl"), "acme", EPOCH_MS_MAX)
    assert workspace_of("github.com/Acme-Labs/site", mappings, (), "ann") == "labs"
    decide("owners", "unmap", "acme", "acme-labs")
    assert parsed(decide("owners", "list", "acme", "--json")) == [{"owner": "other-owner", "workspace": "found"}]
    mappings = owner_mappings(read_control_file(tmp_path / "control.jsonl"), "acme", EPOCH_MS_MAX)
    assert workspace_of("github.com/Acme-Labs/site", mappings, (), "ann") == "ann"


def test_key_of_a_file_is_believed_until_it_is_revoked(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "control.jsonl"

    def run(*words: str) -> str:
        done = cli("keys", *words, "--control", file)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def verdict(key: str, environment: str = "prod") -> str:
        """Return why a record with the key is refused, as an engine that reads the file judges it in an hour."""
        at_ms = time.time_ns() // 1_000_000 + 3_600_000
        body = {"type": "message", "tenant_id": "acme", "user_id": "ann", "environment": environment, "content": "tea"}
        record = Record(Position("m", 0, 0), orjson.dumps(body), at_ms, headers=((KEY_HEADER, key.encode()),))
        try:
            Authoriser(read_control_file(file), Trust()).check(record, parse(record.value))
        except InvalidRecord as error:
            return error.code
        return "believed"

    key = run("create", "acme", "--environment", "prod", "--by", "kim").strip()
    assert (verdict(key), verdict(key, "test")) == ("believed", "forbidden")
    assert verdict(ApiKeyText.new().text()) == "unauthenticated"
    assert key not in file.read_text()  # but a hash of its secret
    (listed,) = parsed(run("list", "acme", "--json"))
    assert (listed["environments"], listed["by"], listed["revoked"]) == (["prod"], "kim", None)
    run("revoke", "acme", listed["name"])
    assert verdict(key) == "unauthenticated"
    assert parsed(run("list", "acme", "--json"))[0]["revoked"] is not None
