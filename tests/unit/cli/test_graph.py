"""`recallflow graph …` without Kafka, and how other commands turn on the graph and receipts."""

import shutil
from pathlib import Path

import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from tests.unit.cli.harness import Cli, event, jsonl, parsed

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


@pytest.mark.parametrize(
    ("words", "code", "token"),
    [
        (["rollout", "acme", "on", *DECIDED], 2, "'on'"), (["rollout", "acme", "canary", "--by", "ops"], 2, "--why"),
        (["rollout", " ", "canary", *DECIDED], 1, "tenant_id"), (["gate", "acme", "shut", *DECIDED], 2, "'shut'"),
    ],
)  # fmt: skip
def test_incomplete_decision_is_refused(words: list[str], code: int, token: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("graph", *words, "--control", tmp_path / "control.jsonl")
    assert (done.returncode, (tmp_path / "control.jsonl").exists()) == (code, False)
    assert token in done.stderr


@pytest.mark.parametrize(("flag", "fallback"), [("true", None), ("false", "feature_flag_disabled")])
def test_flag_turns_the_graph_off(flag: str, fallback: str | None, cli: Cli, told: Path, tmp_path: Path) -> None:
    control = ("--control", tmp_path / "control.jsonl")
    cli("graph", "rollout", "acme", "canary", *DECIDED, *control)
    (answer,) = parsed(cli("pipe", "--state-dir", told, *control, "--graph-enabled", flag, stdin=ASK).stdout)
    assert answer["fallback"] == fallback


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
    assert (done.returncode, "Nobody" in done.stdout) == (1, True)
    assert cli("graph", "status", "--state-dir", tmp_path / "nowhere").returncode == 1
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
