"""Options that several commands share: what they accept, and what they say to what is wrong."""

import argparse
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallflow import __version__
from recallflow.cli.options import ENGINE, PACE, add_settings, config
from recallflow.errors import UsageError
from recallflow.flows.embedded import Embedded
from recallflow.flows.settings import Settings
from recallflow.operators.rules import Rules

Cli = Callable[..., subprocess.CompletedProcess[str]]
MakeEvent = Callable[..., dict[str, Any]]
Jsonl = Callable[..., bytes]

CATEGORY = {"type": "category", "tenant_id": "acme", "name": "food", "description": "What Ann eats"}


def chosen(*words: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_settings(parser, *ENGINE, *PACE)
    return config(parser.parse_args(words)).engine


def test_without_options_the_defaults_hold() -> None:
    assert chosen() == Settings()


def test_every_option_reaches_its_setting() -> None:
    words = ["--partitions", "3", "--episode-gap-minutes", "2.5", "--epoch-ms", "50", "--cache-bytes", "3MiB"]
    assert chosen(*words) == Settings(partitions=3, episode_gap_minutes=2.5, epoch_ms=50, cache_bytes=3 * 2**20)


def test_similarity_edges_are_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILARITY_EDGE_THRESHOLD", "0.9")
    monkeypatch.setenv("SIMILARITY_EDGE_MAX_K", "7")
    monkeypatch.setenv("SIMILARITY_EDGE_MAX_PER_MEMORY", "0")
    assert chosen() == Settings(similarity_threshold=0.9, similarity_max_k=7, similarity_max_per_memory=0)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("SIMILARITY_EDGE_THRESHOLD", "high", "SIMILARITY_EDGE_THRESHOLD: 'high' is not a number"),
        ("SIMILARITY_EDGE_MAX_K", "1.5", "SIMILARITY_EDGE_MAX_K: '1.5' is not a whole number"),
        ("SIMILARITY_EDGE_THRESHOLD", "2", "similarity_threshold must be above 0, and at most 1, not 2.0"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, says: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=re.escape(says)):
        chosen()


@pytest.mark.parametrize(
    ("text", "size"),
    [("2097152", 2**21), ("512MiB", 2**29), ("2 gib", 2**31), ("1.5GB", 1_500_000_000), ("9000kb", 9_000_000)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert chosen("--cache-bytes", text).cache_bytes == size


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--cache-bytes", "lots"], "--cache-bytes: 'lots' is no size"),
        (["--cache-bytes", "5XB"], "--cache-bytes: '5XB' is no size"),
        (["--cache-bytes", "-5"], "--cache-bytes: '-5' is no size"),
        (["--cache-bytes", "1KiB"], "cache_bytes must be at least 1 MiB, not 1024"),
        (["--epoch-ms", "soon"], "--epoch-ms: 'soon' is not a whole number"),
        (["--epoch-ms", "0"], "epoch_ms must be 10 to 60,000, not 0"),
        (["--epoch-ms", "9" * 30], "epoch_ms must be 10 to 60,000"),
        (["--episode-gap-minutes", "nan"], "episode_gap_minutes must be above 0"),
        (["--episode-gap-minutes", "inf"], "episode_gap_minutes must be above 0, and at most a year"),
        (["--processes", "0"], "processes must be 1 to 1,000, not 0"),
        (["--processes", "two"], "--processes: 'two' is not a whole number, nor auto"),
        (["--own", "a"], "own: 'a' names no numbers as in 0-7,9"),
        (["--standby", "-1"], "standby must be 0 to 10, not -1"),
        (["--standby", "1", "--own", "0-7"], "standby: nobody takes over partitions that are assigned by hand"),
        (["--session-timeout-s", "5"], "session_timeout_s must be 6 to 1,800, not 5.0"),
        (["--log-format", "xml"], "log_format must be text or json, not xml"),
        (["--skip", "memory.events:1"], "--skip memory.events:1: give TOPIC:PARTITION:OFFSET"),
        (["--metrics-port", "http"], "--metrics-port: 'http' is not a whole number"),
        (["--metrics-port", "99999"], "metrics_port must be 0 to 65,535, not 99999"),
        (["--metrics-host", "203.0.113.1", "--metrics-port", "9464"], "cannot serve metrics at 203.0.113.1:9464"),
        (["--memory-topic", "a/b"], "no topic name: 'a/b'"),
        (["--control-topic", ".."], "no topic name: '..'"),
        (["--response-topic", "query.events"], "query.events: each topic that is read needs a name of its own"),
        (["--reply-topic", "memory.events"], "memory.events: each topic that is read needs a name of its own"),
        (["-X", "sasl.pasword=x"], 'No such configuration property: "sasl.pasword"'),
        (["-X", "acks"], "-X acks: give NAME=VALUE"),
    ],
)
def test_run_says_in_one_line_what_is_wrong(cli: Cli, tmp_path: Path, words: list[str], says: str) -> None:
    done = cli("run", "--state-dir", tmp_path / "s", "--bootstrap-servers", "127.0.0.1:1", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.startswith("recallflow: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_reason_that_nothing_is_refused_for_is_named_with_those_there_are(cli: Cli) -> None:
    done = cli("dlq", "list", "--code", "bogus", "--bootstrap-servers", "127.0.0.1:1")
    assert done.returncode == 2
    assert "bogus" in done.stderr
    assert "id_conflict" in done.stderr


def test_the_version_is_the_installed_one(cli: Cli) -> None:
    assert cli("--version").stdout == f"recallflow {__version__}\n"


@pytest.mark.parametrize("words", [["--partitions", "0"], ["--replication", "none"], ["--memory-topic", "a b"]])
def test_topics_create_checks_before_it_asks_kafka(cli: Cli, words: list[str]) -> None:
    done = cli("topics", "create", "--bootstrap-servers", "127.0.0.1:1", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert words[0] in done.stderr or "no topic name" in done.stderr


# ── control events from a file ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[Rules]:
    """What the engine of a command is made with."""
    seen: list[Rules] = []
    rules_of = Embedded.rules

    def noting(self: Embedded, query_topic: str | None = None, **named: bool) -> Rules:
        seen.append(rules_of(self, query_topic, **named))
        return seen[-1]

    monkeypatch.setattr(Embedded, "rules", noting)
    return seen


@pytest.mark.parametrize("command", [["pipe"], ["ask", "Where is the bicycle?"]], ids=["pipe", "ask"])
def test_decisions_in_a_file_are_known_from_their_time_on(
    cli: Cli, rules: list[Rules], tmp_path: Path, jsonl: Jsonl, command: list[str]
) -> None:
    (tmp_path / "control.jsonl").write_bytes(
        jsonl(CATEGORY | {"description": "old"}, b"", CATEGORY | {"timestamp": 5_000, "description": "new"})
    )
    cli("remember", "A bicycle stands in the cellar", "--state-dir", tmp_path / "s")
    rules.clear()
    done = cli(*command, "--state-dir", tmp_path / "s", "--control", tmp_path / "control.jsonl")
    assert done.returncode == 0, done.stderr
    decisions = rules[0].decisions
    found = [decisions.as_of("acme", "category", "food", at_ms) for at_ms in (-1, 0, 4_999, 5_000)]
    assert [one and json.loads(one.model_dump_json())["description"] for one in found] == [None, "old", "old", "new"]


def test_without_a_file_nothing_is_decided(cli: Cli, rules: list[Rules], make_event: MakeEvent, jsonl: Jsonl) -> None:
    assert cli("pipe", stdin=jsonl(make_event("message", content="hello"))).returncode == 0
    assert rules[0].decisions.names("acme", "category") == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "control.jsonl, line 2: Invalid JSON"),
        (b'{"type": "quota", "tenant_id": "acme", "name": "n", "limit": -1}', "line 2: limit: "),
        (b'{"type": "decree"}', "line 2: type: "),
    ],
)
def test_a_wrong_decision_names_line_and_field(cli: Cli, tmp_path: Path, jsonl: Jsonl, line: bytes, says: str) -> None:
    (tmp_path / "control.jsonl").write_bytes(jsonl(CATEGORY, line))
    done = cli("pipe", "--control", tmp_path / "control.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_of_decisions_that_is_not_there_is_named(cli: Cli, tmp_path: Path) -> None:
    done = cli("pipe", "--control", tmp_path / "nothing.jsonl")
    assert done.returncode == 2
    assert f"--control: cannot read {tmp_path / 'nothing.jsonl'}: No such file" in done.stderr
