"""The everyday commands against an engine on a real broker."""

import json
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka.engine import Engine
from tests.kafka.harness import GIVE_UP_S, Start, read_topic, until

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wrap lines at the width that pytest sets."""
    monkeypatch.delenv("COLUMNS", raising=False)


def at(engine: Engine) -> list[str]:
    """Return the options of an engine, without the control topic, which these commands do not take."""
    place = engine.flags.index("--control-topic")
    return [*engine.flags[:place], *engine.flags[place + 2 :]]


@pytest.fixture
def ours(engine: Engine, user: str) -> list[str]:
    """Return the options of the engine and of a user of this test's own."""
    return [*at(engine), "--timeout-s", "60", "--tenant", "acme", "--user", user]


def test_remembered_fact_is_found_listed_shown_and_forgotten(cli: Cli, ours: list[str], engine: Engine) -> None:
    stored = cli("remember", "Ana is allergic to walnuts", "--tag", "food", *ours)
    assert (stored.returncode, stored.stderr) == (0, "")
    outcome, memory_id = stored.stdout.strip().split(": ")
    assert (outcome, memory_id.startswith(engine.topics.memory)) == ("created", True)
    asked = cli("ask", "What is Ana allergic to?", *ours)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "Ana is allergic to walnuts" in asked.stdout
    assert [line.split("\t")[1] for line in cli("list", *ours).stdout.splitlines()] == [memory_id]
    assert "food" in cli("show", memory_id, *ours).stdout
    assert cli("forget", memory_id, *ours).returncode == 0
    assert "walnuts" not in cli("list", *ours).stdout


def test_flag_overrides_the_engine_of_the_environment(
    cli: Cli, ours: list[str], engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", engine.broker.bootstrap_servers)
    monkeypatch.setenv("RECALLFLOW_STATE_DIR", str(tmp_path / "the-engines-own"))  # its settings name both
    assert cli("remember", "tea", *ours[2:]).stdout.startswith("created: ")
    assert str(tmp_path / "none") in cli("ask", "tea?", "--state-dir", tmp_path / "none").stderr
    assert cli("ask", "tea?", *ours, "--state-dir", tmp_path / "none").returncode == 2  # two engines


def test_missing_engine_topics_and_brokers_are_named(cli: Cli, deserted: Engine) -> None:
    topics = deserted.topics
    where = [*at(deserted), "--timeout-s", "0.5"]
    asked = cli("ask", "tea?", *where)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert topics.responses in asked.stderr
    stored = cli("remember", "tea", *where)
    assert (stored.returncode, stored.stdout) == (1, "")
    assert f"{topics.memory}:0:0" in stored.stderr
    assert topics.receipts in stored.stderr
    assert len(read_topic(deserted.broker, topics.memory)) == 1
    missing = cli("ask", "tea?", *where[:2], "--response-topic", "nowhere")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no topic nowhere" in missing.stderr
    away = cli("remember", "tea", "--bootstrap-servers", "127.0.0.1:1", "--timeout-s", "0.5")
    assert (away.returncode, away.stdout) == (1, "")
    assert "127.0.0.1:1" in away.stderr


def test_tail_shows_malformed_records(cli: Cli, deserted: Engine) -> None:
    topics = deserted.topics
    deserted.produce(topics.memory, "x/y", b"{no json", b"\xff\x1b[2J", b"[1]", {"type": 7, "content": {"a": 1}})
    deserted.produce(topics.responses, "x/y", {"memories": "many"}, {"processing_time_ms": "fast", "memories": [1]})
    deserted.produce(topics.dead_letters, "x/y", b"by hand")
    where = [*at(deserted), "--from", "beginning", "--count", "7"]
    shown = cli("tail", *where)
    assert (shown.returncode, shown.stderr, len(shown.stdout.splitlines())) == (0, "", 7)
    assert "\x1b" not in shown.stdout
    assert cli("tail", *where, "--json").returncode == 0
    assert len(cli("tail", *where[:-1], 1, "--only", "dead-letters").stdout.splitlines()) == 1


def test_tail_follows_new_records_until_interrupted(start: Start, deserted: Engine) -> None:
    deserted.produce(deserted.topics.memory, "a/b", {"type": "message", "content": "long before"})
    following = start("tail", *at(deserted), "--json")
    assert following.stdout is not None
    stdout = following.stdout

    def is_heard() -> bool:
        deserted.produce(deserted.topics.memory, "a/b", {"type": "message", "content": "now"})
        return bool(select.select([stdout], [], [], 0.2)[0])

    until(is_heard)
    assert json.loads(stdout.readline())["record"]["content"] == "now"
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=GIVE_UP_S)
    assert (following.returncode, errors) == (0, "")
