"""Options that several commands share: accepted values and errors."""

import argparse
import json
import re
from pathlib import Path

import pytest

from recallflow.cli.options import ENGINE, PACE, add_settings, config
from recallflow.errors import UsageError
from recallflow.flows.embedded import EmbeddedEngine
from recallflow.flows.settings import Settings
from recallflow.operators.rules import Rules
from tests.unit.cli.harness import Cli, assert_error, event, jsonl

CATEGORY = {"type": "category", "tenant_id": "acme", "name": "food", "description": "What Ann eats"}


def chosen(*words: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_settings(parser, *ENGINE, *PACE)
    return config(parser.parse_args(words)).engine


def test_every_option_reaches_its_setting() -> None:
    words = ["--partitions", "3", "--episode-gap-minutes", "2.5", "--epoch-ms", "50", "--cache-bytes", "3MiB"]
    assert chosen(*words) == Settings(partitions=3, episode_gap_minutes=2.5, epoch_ms=50, cache_bytes=3 * 2**20)


@pytest.mark.usefixtures("default_partitions")
def test_similarity_edges_are_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILARITY_EDGE_THRESHOLD", "0.9")
    monkeypatch.setenv("SIMILARITY_EDGE_MAX_K", "7")
    monkeypatch.setenv("SIMILARITY_EDGE_MAX_PER_MEMORY", "0")
    assert chosen() == Settings(similarity_threshold=0.9, similarity_max_k=7, similarity_max_per_memory=0)


@pytest.mark.parametrize(
    ("variable", "text", "token"),
    [
        ("SIMILARITY_EDGE_THRESHOLD", "high", "SIMILARITY_EDGE_THRESHOLD: 'high'"),
        ("SIMILARITY_EDGE_MAX_K", "1.5", "SIMILARITY_EDGE_MAX_K: '1.5'"),
        ("SIMILARITY_EDGE_THRESHOLD", "2", "similarity_threshold"),
    ],
)
def test_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, token: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=re.escape(token)):
        chosen()


@pytest.mark.parametrize(
    ("text", "size"),
    [("2097152", 2**21), ("512MiB", 2**29), ("2 gib", 2**31), ("1.5GB", 1_500_000_000), ("9000kb", 9_000_000)],
)
def test_size_may_have_a_unit(text: str, size: int) -> None:
    assert chosen("--cache-bytes", text).cache_bytes == size


@pytest.mark.parametrize(
    ("line", "token"),
    [
        ("--cache-bytes lots", "--cache-bytes: 'lots'"),
        ("--cache-bytes 5XB", "--cache-bytes: '5XB'"),
        ("--cache-bytes -5", "--cache-bytes: '-5'"),
        ("--cache-bytes 1KiB", "cache_bytes must be at least 1 MiB"),
        ("--epoch-ms soon", "--epoch-ms: 'soon'"),
        ("--epoch-ms 0", "epoch_ms must be 10 to 60,000"),
        (f"--epoch-ms {'9' * 30}", "epoch_ms must be 10 to 60,000"),
        ("--episode-gap-minutes nan", "episode_gap_minutes"),
        ("--episode-gap-minutes inf", "episode_gap_minutes"),
        ("--processes 0", "processes must be 1 to 1,000"),
        ("--processes two", "--processes: 'two'"),
        ("--own a", "own: 'a'"),
        ("--standby -1", "standby must be 0 to 10"),
        ("--standby 1 --own 0-7", "standby"),
        ("--session-timeout-s 5", "session_timeout_s must be 6 to 1,800"),
        ("--log-format xml", "log_format"),
        ("--skip memory.events:1", "TOPIC:PARTITION:OFFSET"),
        ("--metrics-port http", "--metrics-port: 'http'"),
        ("--metrics-port 99999", "metrics_port must be 0 to 65,535"),
        ("--metrics-host 203.0.113.1 --metrics-port 9464", "203.0.113.1:9464"),
        ("--memory-topic a/b", "'a/b'"),
        ("--control-topic ..", "'..'"),
        ("--response-topic query.events", "query.events"),
        ("--reply-topic memory.events", "memory.events"),
        ("-X sasl.pasword=x", '"sasl.pasword"'),
        ("-X acks", "NAME=VALUE"),
    ],
)
def test_wrong_option_of_run_is_refused(cli: Cli, tmp_path: Path, line: str, token: str) -> None:
    done = cli("run", "--state-dir", tmp_path / "s", "--bootstrap-servers", "127.0.0.1:1", *line.split())
    assert_error(done, 2, token)
    assert not (tmp_path / "s").exists()


def test_unknown_dead_letter_code_is_refused_with_known_codes(cli: Cli) -> None:
    done = cli("dlq", "list", "--code", "bogus", "--bootstrap-servers", "127.0.0.1:1")
    assert (done.returncode, "bogus" in done.stderr, "id_conflict" in done.stderr) == (2, True, True)


@pytest.mark.parametrize(
    ("words", "token"),
    [
        (["--partitions", "0"], "--partitions"),
        (["--replication", "none"], "--replication"),
        (["--memory-topic", "a b"], "'a b'"),
    ],
)
def test_wrong_option_of_topics_is_refused_without_kafka(cli: Cli, words: list[str], token: str) -> None:
    done = cli("topics", "create", "--bootstrap-servers", "127.0.0.1:1", *words)
    assert (done.returncode, done.stdout, token in done.stderr) == (2, "", True)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[Rules]:
    """Return the rules of each engine that a command opens."""
    seen: list[Rules] = []
    rules_of = EmbeddedEngine.rules

    def noting(self: EmbeddedEngine, query_topic: str | None = None, **named: bool) -> Rules:
        seen.append(rules_of(self, query_topic, **named))
        return seen[-1]

    monkeypatch.setattr(EmbeddedEngine, "rules", noting)
    return seen


@pytest.mark.parametrize("command", [["pipe"], ["ask", "Where is the bicycle?"]], ids=["pipe", "ask"])
def test_decision_of_a_file_holds_from_its_time_on(
    cli: Cli, rules: list[Rules], filled: Path, tmp_path: Path, command: list[str]
) -> None:
    control = tmp_path / "control.jsonl"
    control.write_bytes(
        jsonl(CATEGORY | {"description": "old"}, b"", CATEGORY | {"timestamp": 5_000, "description": "new"})
    )
    done = cli(*command, "--state-dir", filled, "--control", control)
    assert done.returncode == 0, done.stderr
    decisions = rules[-1].decisions
    found = [decisions.as_of("acme", "category", "food", at_ms) for at_ms in (-1, 0, 4_999, 5_000)]
    assert [one and json.loads(one.model_dump_json())["description"] for one in found] == [None, "old", "old", "new"]


def test_without_a_file_there_are_no_decisions(cli: Cli, rules: list[Rules]) -> None:
    assert cli("pipe", stdin=jsonl(event("message", content="hello"))).returncode == 0
    assert rules[0].decisions.names("acme", "category") == []


@pytest.mark.parametrize(
    ("line", "token"),
    [
        (b"{", "control.jsonl, line 2: "),
        (b'{"type": "quota", "tenant_id": "acme", "name": "n", "limit": -1}', "line 2: limit: "),
        (b'{"type": "decree"}', "line 2: type: "),
        (None, "nothing.jsonl"),
    ],
)
def test_wrong_file_of_decisions_is_refused(cli: Cli, tmp_path: Path, line: bytes | None, token: str) -> None:
    control = tmp_path / ("nothing.jsonl" if line is None else "control.jsonl")
    if line is not None:
        control.write_bytes(jsonl(CATEGORY, line))
    assert_error(cli("pipe", "--control", control), 2, token)
