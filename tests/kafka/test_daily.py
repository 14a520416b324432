"""The everyday commands before an engine on a real broker: what is written is read, refused, or not answered."""

import json
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from benchmarks.kafka_flow import create, own_topics, running_flow
from recallflow.flows.topics import Topics
from tests.kafka.harness import FLAGS, GIVE_UP_S, read_topic, until
from tests.starts import COMMAND

Cli = Callable[..., subprocess.CompletedProcess[str]]

HOSTILE = "before\x1b[2J\x07\u009b31m\u202eafter"


@pytest.fixture(scope="module")
def topics(broker: Cluster) -> Iterator[Topics]:
    """Topics with a main flow of their own behind them, up and answering."""
    topics = own_topics()
    create(broker, topics, partitions=2)
    with running_flow(broker, topics, "probe"):
        yield topics


@pytest.fixture(autouse=True)
def _whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody reads on a terminal, whatever pytest says of its own."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def deserted(broker: Cluster) -> Topics:
    """Topics that no engine reads."""
    topics = own_topics()
    create(broker, topics, partitions=1)
    return topics


def at(broker: Cluster, topics: Topics) -> list[str]:
    """Options that name the engine."""
    names = [
        word for flag, name in FLAGS.items() if flag != "--control-topic" for word in (flag, getattr(topics, name))
    ]
    return ["--bootstrap-servers", broker.bootstrap_servers, *names]


@pytest.fixture
def ours(broker: Cluster, topics: Topics, request: pytest.FixtureRequest) -> list[str]:
    """The same, with a user of this test's own. Time enough for a busy machine."""
    return [*at(broker, topics), "--timeout-s", "60", "--tenant", "acme", "--user", request.node.name[:100]]


def produce(broker: Cluster, topic: str, key: str, *values: dict[str, Any] | bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value if isinstance(value, bytes) else orjson.dumps(value), key.encode())
    assert producer.flush(GIVE_UP_S) == 0


# ── what is written is read ───────────────────────────────────────────────────────────────────────────────────────


def test_what_was_remembered_is_found_listed_shown_and_forgotten(cli: Cli, ours: list[str], topics: Topics) -> None:
    stored = cli("remember", "Ana is allergic to walnuts", "--tag", "food", *ours)
    assert (stored.returncode, stored.stderr) == (0, "")
    outcome, memory_id = stored.stdout.strip().split(": ")
    assert (outcome, memory_id.startswith(topics.memory)) == ("created", True)
    asked = cli("ask", "What is Ana allergic to?", *ours)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "fact: Ana is allergic to walnuts" in asked.stdout
    assert [line.split("\t")[1] for line in cli("list", *ours).stdout.splitlines()] == [memory_id]
    assert "tags         food" in cli("show", memory_id, *ours).stdout
    assert cli("forget", memory_id, *ours).stdout == "forgotten\n"
    user = ours[-1]
    assert (
        cli("list", *ours).stdout
        == f"nothing remembered yet of user {user} of tenant acme; --user and --tenant name another\n"
    )


def test_each_of_many_is_found_at_once(cli: Cli, ours: list[str]) -> None:
    """`remember` ends when its memory is applied."""
    for number in range(5):
        assert cli("remember", f"the code of locker {number} is {number * 7919}", *ours).returncode == 0
        assert f"is {number * 7919}" in cli("ask", f"code of locker {number}", *ours).stdout


def test_a_question_waits_for_the_position_that_it_names(cli: Cli, ours: list[str], topics: Topics) -> None:
    response = json.loads(cli("ask", "tea?", "--after", f"{topics.memory}:0:999999", "--json", *ours).stdout)
    assert {warning["code"] for warning in response["warnings"]} == {"stale_read", "no_memories"}


def test_what_is_refused_says_which_field(cli: Cli, ours: list[str]) -> None:
    cli("remember", "tea", "--id", "a", *ours)
    done = cli("remember", "coffee", "--id", "a", *ours)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("recallflow: id: was used before")
    assert "no current memory has the id 'nix'" in cli("show", "nix", *ours).stderr


def test_the_environment_names_the_engine(
    cli: Cli, ours: list[str], broker: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    monkeypatch.setenv("RECALLFLOW_STATE_DIR", str(tmp_path / "the-engines-own"))  # its settings name both
    assert cli("remember", "tea", *ours[2:]).stdout.startswith("created: ")
    a_flag_comes_before = cli("ask", "tea?", "--state-dir", tmp_path / "none")
    assert "there is no state directory" in a_flag_comes_before.stderr
    both = cli("ask", "tea?", *ours, "--state-dir", tmp_path / "none")
    assert (both.returncode, "give one, as they are two engines" in both.stderr) == (2, True)


# ── nobody answers ────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_an_engine_it_says_so(cli: Cli, broker: Cluster, deserted: Topics) -> None:
    where = [*at(broker, deserted), "--timeout-s", "1"]
    asked = cli("ask", "tea?", *where)
    assert (asked.returncode, asked.stdout) == (1, "")
    says = "within 1 s: is the engine running? recallflow run --bootstrap-servers"
    assert f"recallflow: nothing answered on {deserted.responses} {says}" in asked.stderr
    stored = cli("remember", "tea", *where)
    assert (stored.returncode, stored.stdout) == (1, "")
    assert f"{deserted.memory}:0:0 is stored, and nothing answered on {deserted.receipts} {says}" in stored.stderr
    assert len(read_topic(broker, deserted.memory)) == 1


def test_missing_topics_and_missing_brokers_are_told(cli: Cli, broker: Cluster) -> None:
    done = cli("ask", "tea?", "--bootstrap-servers", broker.bootstrap_servers, "--response-topic", "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no topic nowhere" in done.stderr
    assert "recallflow topics create" in done.stderr
    done = cli("remember", "tea", "--bootstrap-servers", "127.0.0.1:1", "--timeout-s", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot reach Kafka at 127.0.0.1:1" in done.stderr


# ── tail ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_went_through_the_topics_is_followed(cli: Cli, ours: list[str], broker: Cluster, topics: Topics) -> None:
    user = ours[-1]
    key = f"acme/{user}"
    cli("remember", HOSTILE, "--id", "a", *ours)
    cli("ask", "what was before?", *ours)
    cli("remember", "other", "--id", "a", *ours)
    where = [*at(broker, topics), "--from", "beginning", "--tenant", "acme", "--user", user]
    shown = cli("tail", *where, "--count", 6)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    labels = sorted(line.split()[2] for line in lines)
    assert labels == ["answer", "event", "event", "query", "receipt", "refused"]
    assert all(f" {key} " in line for line in lines)
    (refused,) = (line for line in lines if " refused " in line)
    assert "id_conflict: id: was used before" in refused
    assert not {*"\x07\x1b\u009b\u202e"} & {*shown.stdout}
    records = [json.loads(line) for line in cli("tail", *where, "--json", "--count", 6).stdout.splitlines()]
    assert {one["key"] for one in records} == {key}
    assert HOSTILE in [one["record"].get("content") for one in records]
    assert [one["error"]["code"] for one in records if "error" in one] == ["id_conflict"]


def test_records_that_are_none_of_ours_are_shown_as_they_are(cli: Cli, broker: Cluster, deserted: Topics) -> None:
    produce(broker, deserted.memory, "x/y", b"{no json", b"\xff\x1b[2J", b"[1]", {"type": 7, "content": {"a": 1}})
    produce(broker, deserted.responses, "x/y", {"memories": "many"}, {"processing_time_ms": "fast", "memories": [1]})
    produce(broker, deserted.dead_letters, "x/y", b"by hand")
    where = [*at(broker, deserted), "--from", "beginning", "--count", 7]
    shown = cli("tail", *where)
    assert (shown.returncode, shown.stderr, len(shown.stdout.splitlines())) == (0, "", 7)
    assert "\x1b" not in shown.stdout
    assert cli("tail", *where, "--json").returncode == 0
    only = cli("tail", *where[:-1], 1, "--only", "dead-letters").stdout
    assert "not written by an engine" in only


def test_it_follows_from_now_on_until_it_is_interrupted(broker: Cluster, deserted: Topics) -> None:
    produce(broker, deserted.memory, "a/b", {"type": "message", "content": "long before"})
    words = [sys.executable, "-c", COMMAND, "tail", *at(broker, deserted), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        stdout = following.stdout
        assert stdout is not None

        def is_heard() -> bool:
            produce(broker, deserted.memory, "a/b", {"type": "message", "content": "now"})
            return bool(select.select([stdout], [], [], 0.5)[0])

        try:
            until(is_heard)
            assert json.loads(stdout.readline())["record"]["content"] == "now"
            following.send_signal(signal.SIGINT)
            _, errors = following.communicate(timeout=GIVE_UP_S)
        finally:
            following.kill()
        assert (following.returncode, errors) == (0, b"")


@pytest.mark.parametrize(
    ("flags", "says"), [(["--user", "ann"], "give --tenant too"), (["--count", "0"], "give 1 or more")]
)
def test_what_cannot_be_followed_is_told(cli: Cli, flags: list[str], says: str) -> None:
    done = cli("tail", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


# ── credentials; the last, as from here on every record needs some ────────────────────────────────────────────────


def test_a_key_of_the_settings_is_sent_along(
    cli: Cli, ours: list[str], broker: Cluster, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--control-topic", topics.control]
    key = cli("keys", "create", "acme", *where).stdout.strip()
    until(lambda: cli("remember", "tea", *ours).returncode == 1)
    refused = cli("remember", "tea", *ours)
    assert "credentials" in refused.stderr
    assert key not in refused.stderr
    asked = cli("ask", "tea?", *ours)
    assert (asked.returncode, asked.stdout.startswith("error: ")) == (1, True)
    monkeypatch.setenv("RECALLFLOW_AUTH_API_KEY", key)
    assert cli("remember", "coffee", *ours).stdout.startswith("created: ")
    assert "coffee" in cli("ask", "coffee?", *ours).stdout
