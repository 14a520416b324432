"""`recallflow graph …` without Kafka, and what of the graph and of receipts other commands let a user choose."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
MakeEvent = Callable[..., dict[str, Any]]
Jsonl = Callable[..., bytes]
Parsed = Callable[[str | bytes], list[Any]]

DECIDED = ("--by", "ops", "--why", "edges are in")
OURS = ("--tenant", "acme", "--user", "ann")


@pytest.fixture
def events(make_event: MakeEvent) -> list[dict[str, Any]]:
    people = {"relations": [{"source": "Ann", "type": "works_at", "target": "Acme"}]}
    return [
        *(make_event("memory", n, id=f"x{n}", content=f"crate {n} is in shelf {n}") for n in range(12)),
        make_event("memory", 20, id="alarm", content="Rollout alarms page the on-call"),
        make_event("memory", 21, id="red", content="Grafana turns pale"),
        make_event("memory", 22, id="p", content="Ann started at Acme in May", **people),
        make_event("graph.edges", 30, edges=[{"source": "alarm", "target": "red", "type": "caused_by"}]),
    ]


@pytest.fixture
def told(cli: Cli, events: list[dict[str, Any]], jsonl: Jsonl, tmp_path: Path) -> Path:
    """A state directory in which that is remembered."""
    done = cli("pipe", "--state-dir", tmp_path / "state", stdin=jsonl(*events))
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path / "state"


def asked(make_event: MakeEvent) -> dict[str, Any]:
    return make_event("recall", 2**42, query="rollout alarms", k=1, strategy="hybrid_graph")


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rollout_is_decided_by_a_command_and_told_with_who_and_why(
    cli: Cli, told: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed, tmp_path: Path
) -> None:
    control = tmp_path / "control.jsonl"
    decided = cli("graph", "rollout", "acme", "canary", *DECIDED, "--control", control)
    assert decided.stdout == f"rollout acme canary: appended to {control}\n"
    question = jsonl(asked(make_event))
    (answer,) = parsed(cli("pipe", "--state-dir", told, "--control", control, stdin=question).stdout)
    assert [memory["id"] for memory in answer["memories"]] == ["alarm", "red"]
    said = cli("graph", "status", "--state-dir", told, "--control", control, *OURS).stdout.splitlines()
    assert said[0].startswith("rollout  canary since 20")
    assert said[0].endswith(" by ops: edges are in")
    assert said[1] == "gate     open"
    assert "    harm_rate       too little was seen" in said
    assert "edges    1 caused_by, 1 works_at" in said

    cli("graph", "gate", "acme", "blocked", *DECIDED, "--control", control)
    (answer,) = parsed(cli("pipe", "--state-dir", told, "--control", control, stdin=question).stdout)
    assert answer["fallback"] == "quality_gate_blocked"
    said = cli("graph", "status", "--state-dir", told, "--control", control, *OURS).stdout.splitlines()
    assert said[1].startswith("gate     blocked since 20")
    cli("graph", "gate", "acme", "open", *DECIDED, "--control", control)
    (answer,) = parsed(cli("pipe", "--state-dir", told, "--control", control, stdin=question).stdout)
    assert answer["fallback"] is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["rollout", "acme", "on", *DECIDED], 2, "'on' is none of off, shadow, canary"),
        (["rollout", "acme", "canary", "--by", "ops"], 2, "--why"),
        (["rollout", " ", "canary", *DECIDED], 1, "tenant_id: is blank"),
        (["gate", "acme", "shut", *DECIDED], 2, "'shut' is none of open, blocked"),
    ],
)
def test_a_decision_that_says_too_little_is_refused(
    words: list[str], code: int, said: str, cli: Cli, tmp_path: Path
) -> None:
    done = cli("graph", *words, "--control", tmp_path / "control.jsonl")
    assert (done.returncode, (tmp_path / "control.jsonl").exists()) == (code, False)
    assert said in done.stderr


# ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trace_shows_every_step(cli: Cli, told: Path, parsed: Parsed) -> None:
    words = ("graph", "trace", "rollout alarms", "-k", 1, "--hops", 2, "--state-dir", told, *OURS)
    said = cli(*words).stdout.splitlines()
    assert said[0].startswith("from     alarm (")
    assert "    1  alarm –caused_by– red: reached" in said
    assert "adds     red (1.5): caused_by from alarm" in said
    assert said[-1] == "not in answers: rollout_off"
    (response,) = parsed(cli(*words, "--json").stdout)
    assert [memory["id"] for memory in response["graph_trace"]["expanded"]] == ["red"]


@pytest.mark.parametrize("about", [["works"], ["--entity", "Ann"], ["--type", "works_at"], []])
def test_facts_are_shown_with_what_states_them(about: list[str], cli: Cli, told: Path) -> None:
    said = cli("graph", "facts", *about, "--state-dir", told, *OURS).stdout.splitlines()
    at = said.index("Ann works_at Acme")
    assert said[at + 1] == "    “Ann started at Acme in May” p"


def test_of_nobody_nothing_is_known(cli: Cli, told: Path) -> None:
    assert cli("graph", "facts", "--state-dir", told, "--user", "bob").stdout == "nothing of that is known\n"
    said = cli("graph", "status", "--state-dir", told, "--user", "bob").stdout.splitlines()
    assert (said[0], said[-1]) == ("rollout  off", "edges    none")


def test_what_cannot_be_asked_says_why(cli: Cli, told: Path, tmp_path: Path) -> None:
    done = cli("graph", "facts", "--entity", "Nobody", "--state-dir", told, *OURS)
    assert done.returncode == 1
    assert "Nobody" in done.stdout
    done = cli("graph", "status", "--state-dir", tmp_path / "nowhere")
    assert done.returncode == 1
    assert not (tmp_path / "nowhere").exists()


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("flag", "fallback"), [("true", None), ("false", "feature_flag_disabled")])
def test_the_graph_is_turned_off_by_a_flag(
    flag: str, fallback: str | None, cli: Cli, told: Path, make_event: MakeEvent, jsonl: Jsonl, tmp_path: Path
) -> None:
    control = tmp_path / "control.jsonl"
    cli("graph", "rollout", "acme", "canary", *DECIDED, "--control", control)
    words = ("pipe", "--state-dir", told, "--control", control, "--graph-enabled", flag)
    assert orjson.loads(cli(*words, stdin=jsonl(asked(make_event))).stdout)["fallback"] == fallback


def test_receipts_stand_among_the_answers_in_the_order_of_the_lines(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    lines = jsonl(
        make_event("memory", id="a", content="tea", receipt=True),
        make_event("recall", 1, id="q", query="tea"),
        make_event("memory", id="b", content="coffee"),  # asks for none
        make_event("memory", id="a", content="tea", receipt=True),
        make_event("memory.forget", memory_id="a", receipt=True),
    )
    done = cli("pipe", "--receipts", stdin=lines)
    created, answer, again, forgotten = parsed(done.stdout)
    assert answer["query_id"] == "q"
    assert [receipt["outcome"] for receipt in (created, again, forgotten)] == ["created", "duplicate", "forgotten"]
    assert [receipt["position"] for receipt in (created, again, forgotten)] == ["stdin:0:0", "stdin:0:3", "stdin:0:4"]
    assert parsed(cli("pipe", stdin=lines).stdout)[0]["query_id"] == "q"
