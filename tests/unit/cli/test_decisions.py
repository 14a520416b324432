"""Decisions about tenants, keys and the graph, and wrong options."""

import argparse
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from recallflow.cli.flags import CACHE_AND_SYNC, ENGINE, add_settings, config
from recallflow.control import owner_mappings
from recallflow.credentials import KEY_HEADER, ApiKeyText
from recallflow.errors import InvalidRecord, UsageError
from recallflow.fields import EPOCH_MS_MAX
from recallflow.flows.admission import read_control_file
from recallflow.flows.embedded import EmbeddedEngine, process
from recallflow.flows.settings import Settings
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.rules import Rules
from recallflow.owner import workspace_of
from recallflow.parsing import parse
from recallflow.records import Position, Record
from tests.unit.cli.harness import Cli, assert_error, event, jsonl, parsed

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
        {"name": "events_per_s", "limit": 0}, {"name": "memories_per_user", "limit": 100_000},
    ]  # fmt: skip
    decide("quota", "remove", "acme", "events_per_s")
    assert decide("quota", "list", "acme").splitlines()[1:] == ["memories_per_user  100,000"]
    assert decide("quota", "list", "other").splitlines()[1:] == ["queries_per_s      5"]
    events = parsed((tmp_path / "control.jsonl").read_bytes())
    assert {(event["type"], event["tenant_id"]) for event in events} == {("quota", "acme"), ("quota", "other")}
    assert [event["by"] for event in events if "by" in event] == ["kim"]


@pytest.mark.parametrize(
    ("words", "token"),
    [
        (["quota", "set", "acme", "events"], "events_per_s"), (["quota", "set", "acme", "events_per_s"], "LIMIT"),
        (["quota", "set", "acme", "events_per_s", "many"], "many"),
        (["quota", "set", "acme", "events_per_s", "-1"], "limit"),
        (["quota", "set", " ", "events_per_s", "1"], "tenant_id"), (["quota", "remove", "acme"], "NAME"),
        (["categories", "set", "acme", "food"], "--description"),
        (["categories", "set", "acme", " ", "--description", "x"], "name"),
        (["categories", "set", "acme", "food", "--description", "x" * 20_001], "description"),
        (["categories", "remove", "acme"], "NAME"),
    ],
)  # fmt: skip
def test_invalid_decision_is_refused(cli: Cli, tmp_path: Path, words: list[str], token: str) -> None:
    done = cli(*words, "--control", tmp_path / "control.jsonl")
    assert (done.returncode, token in done.stderr) == (2, True)
    assert not (tmp_path / "control.jsonl").exists()


def test_owner_is_mapped_and_unmapped(decide: DecisionSender, tmp_path: Path) -> None:
    decide("owners", "map", "acme", "acme-labs", "labs", "--by", "kim")
    decide("owners", "map", "acme", "other-owner", "lost")
    decide("owners", "map", "acme", "other-owner", "found")
    assert parsed(decide("owners", "list", "acme", "--json")) == [
        {"owner": "acme-labs", "workspace": "labs"}, {"owner": "other-owner", "workspace": "found"},
    ]  # fmt: skip
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


DECIDED = ("--by", "ops", "--why", "edges are in")
OURS = ("--tenant", "acme", "--user", "ann")
ASK = jsonl(event("recall", 2**42, query="rollout alarms", k=1, strategy="hybrid_graph"))


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    people = {"relations": [{"source": "Ann", "type": "works_at", "target": "Acme"}]}
    events = [
        *(event("memory", n, id=f"x{n}", content=f"crate {n} is in shelf {n}") for n in range(12)),
        event("memory", 20, id="alarm", content="Rollout alarms page the on-call"),
        event("memory", 21, id="red", content="Grafana turns pale"),
        event("memory", 22, id="p", content="Ann started at Acme in May", **people),
        event("graph.edges", 30, edges=[{"source": "alarm", "target": "red", "type": "caused_by"}]),
    ]
    state_dir = tmp_path_factory.mktemp("graph") / "s"
    assert process(jsonl(*events).splitlines(), Settings(partitions=1), state_dir).rejected == []
    return state_dir


@pytest.fixture
def told(remembered: Path, tmp_path: Path) -> Path:
    return shutil.copytree(remembered, tmp_path / "state")


def test_rollout_and_gate_decide_whether_answers_use_the_graph(cli: Cli, told: Path, tmp_path: Path) -> None:
    options = ("--state-dir", told, "--control", tmp_path / "control.jsonl")

    def decide(*words: str) -> None:
        done = cli("graph", *words, *DECIDED, *options[2:])
        assert (done.returncode, str(options[3]) in done.stdout) == (0, True)

    def status() -> list[str]:
        return cli("graph", "status", *options, *OURS).stdout.splitlines()

    decide("rollout", "acme", "canary")
    (answer,) = parsed(cli("pipe", *options, stdin=ASK).stdout)
    assert [memory["id"] for memory in answer["memories"]] == ["alarm", "red"]
    rollout, gate, *rest = status()
    assert rollout.startswith("rollout  canary since 20")
    assert rollout.endswith(" by ops: edges are in")
    assert gate == "gate     open"
    assert "edges    1 caused_by, 1 works_at" in rest
    assert any("harm_rate" in line for line in rest)
    decide("gate", "acme", "blocked")
    (answer,) = parsed(cli("pipe", *options, stdin=ASK).stdout)
    assert answer["fallback"] == "quality_gate_blocked"
    assert status()[1].startswith("gate     blocked since 20")
    decide("gate", "acme", "open")
    (answer,) = parsed(cli("pipe", *options, stdin=ASK).stdout)
    assert answer["fallback"] is None


def test_trace_shows_every_step(cli: Cli, told: Path) -> None:
    words = ("graph", "trace", "rollout alarms", "-k", 1, "--hops", 2, "--state-dir", told, *OURS)
    said = cli(*words).stdout.splitlines()
    assert said[0].startswith("from     alarm (")
    assert "    1  alarm –caused_by– red: reached" in said
    assert "adds     red (1.5): caused_by from alarm" in said
    assert said[-1] == "not in answers: rollout_off"
    (response,) = parsed(cli(*words, "--json").stdout)
    assert [memory["id"] for memory in response["graph_trace"]["expanded"]] == ["red"]


@pytest.mark.parametrize("about", [["works"], ["--entity", "Ann"], ["--type", "works_at"], []])
def test_facts_are_shown_with_their_source(about: list[str], cli: Cli, told: Path) -> None:
    said = cli("graph", "facts", *about, "--state-dir", told, *OURS).stdout.splitlines()
    assert said[said.index("Ann works_at Acme") + 1] == "    “Ann started at Acme in May” p"


def test_unknown_user_has_no_graph(cli: Cli, told: Path) -> None:
    assert "Ann" not in cli("graph", "facts", "--state-dir", told, "--user", "bob").stdout
    said = cli("graph", "status", "--state-dir", told, "--user", "bob").stdout.splitlines()
    assert (said[0], said[-1]) == ("rollout  off", "edges    none")


def test_unanswerable_question_fails(cli: Cli, told: Path, tmp_path: Path) -> None:
    done = cli("graph", "facts", "--entity", "Nobody", "--state-dir", told, *OURS)
    assert (done.returncode, "Nobody" in done.stderr) == (1, True)
    assert cli("graph", "status", "--state-dir", tmp_path / "nowhere").returncode == 2
    assert not (tmp_path / "nowhere").exists()


def test_receipts_are_printed_among_answers_in_line_order(cli: Cli) -> None:
    lines = jsonl(
        event("memory", id="a", content="tea", receipt=True),
        event("recall", 1, id="q", query="tea"),
        event("memory", id="b", content="coffee"),  # asks for no receipt
        event("memory", id="a", content="tea", receipt=True),
        event("memory.forget", memory_id="a", receipt=True),
    )
    created, answer, again, forgotten = parsed(cli("pipe", "--receipts", stdin=lines).stdout)
    assert answer["query_id"] == "q"
    assert [receipt["outcome"] for receipt in (created, again, forgotten)] == ["created", "duplicate", "forgotten"]
    assert [receipt["position"] for receipt in (created, again, forgotten)] == ["stdin:0:0", "stdin:0:3", "stdin:0:4"]
    assert parsed(cli("pipe", stdin=lines).stdout)[0]["query_id"] == "q"


CATEGORY = {"type": "category", "tenant_id": "acme", "name": "food", "description": "What Ann eats"}


def chosen(*words: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_settings(parser, *ENGINE, *CACHE_AND_SYNC)
    return config(parser.parse_args(words)).engine


def test_every_option_reaches_its_setting() -> None:
    words = ["--partitions", "3", "--episode-gap-minutes", "2.5", "--sync-ms", "50", "--cache-bytes", "3MiB"]
    assert chosen(*words) == Settings(partitions=3, episode_gap_minutes=2.5, sync_ms=50, cache_bytes=3 * 2**20)


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
        ("--cache-bytes lots", "--cache-bytes: 'lots'"), ("--cache-bytes 5XB", "--cache-bytes: '5XB'"),
        ("--cache-bytes -5", "--cache-bytes: '-5'"), ("--cache-bytes 1KiB", "cache_bytes must be at least 1 MiB"),
        ("--sync-ms soon", "--sync-ms: 'soon'"), ("--sync-ms 0", "sync_ms must be 10 to 60,000"),
        (f"--sync-ms {'9' * 30}", "sync_ms must be 10 to 60,000"),
        ("--episode-gap-minutes nan", "episode_gap_minutes"), ("--episode-gap-minutes inf", "episode_gap_minutes"),
        ("--processes 0", "processes must be 1 to 1,000"), ("--processes two", "--processes: 'two'"),
        ("--own a", "own: 'a'"), ("--standby -1", "standby must be 0 to 10"), ("--standby 1 --own 0-7", "standby"),
        ("--session-timeout-s 5", "session_timeout_s must be 6 to 1,800"), ("--log-format xml", "log_format"),
        ("--skip memory.events:1", "TOPIC:PARTITION:OFFSET"), ("--metrics-port http", "--metrics-port: 'http'"),
        ("--metrics-port 99999", "metrics_port must be 0 to 65,535"),
        ("--metrics-host 203.0.113.1 --metrics-port 9464", "203.0.113.1:9464"), ("--memory-topic a/b", "'a/b'"),
        ("--control-topic ..", "'..'"), ("--response-topic query.events", "query.events"),
        ("--reply-topic memory.events", "memory.events"), ("-X sasl.pasword=x", '"sasl.pasword"'),
        ("-X acks", "NAME=VALUE"),
    ],
)  # fmt: skip
def test_wrong_option_of_run_is_refused(cli: Cli, tmp_path: Path, line: str, token: str) -> None:
    done = cli("run", "--state-dir", tmp_path / "s", "--bootstrap-servers", "127.0.0.1:1", *line.split())
    assert_error(done, 2, token)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("words", "token"),
    [
        (["--partitions", "0"], "--partitions"), (["--replication", "none"], "--replication"),
        (["--memory-topic", "a b"], "'a b'"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("line", "token"),
    [
        (b"{", "control.jsonl, line 2: "),
        (b'{"type": "quota", "tenant_id": "acme", "name": "n", "limit": -1}', "line 2: limit: "),
        (b'{"type": "decree"}', "line 2: type: "), (None, "nothing.jsonl"),
    ],
)  # fmt: skip
def test_wrong_file_of_decisions_is_refused(cli: Cli, tmp_path: Path, line: bytes | None, token: str) -> None:
    control = tmp_path / ("nothing.jsonl" if line is None else "control.jsonl")
    if line is not None:
        control.write_bytes(jsonl(CATEGORY, line))
    assert_error(cli("pipe", "--control", control), 2, token)
