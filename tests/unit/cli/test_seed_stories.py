"""What the seeds show by example, as whole conversations through `recallflow pipe`."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
MakeEvent = Callable[..., dict[str, Any]]
Jsonl = Callable[..., bytes]
Parsed = Callable[[str | bytes], list[Any]]

MINUTE_MS, DAY_MS = 60_000, 86_400_000
MODEL = "urn:acme:model:leaver"


def ids(answer: dict[str, Any]) -> list[str]:
    return [memory["id"] for memory in answer["memories"]]


def test_a_conversation_is_told_in_order_with_its_key_entity(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    """Seed 004: a question about a model, in a session, with the model as key entity: the conversation about it comes
    whole and in order, before one that only has the question's words; what is told of it later is at its end."""
    meeting = [
        ("m1", "Mia", "Morning, shall we begin?"),
        ("m2", "Mia", "Our Leaver flags accounts that are about to cancel."),
        ("m3", "Raj", "Yes, and Leaver got better with the support tickets."),
        ("m4", "Mia", "Fine. We decided to retrain it every 14 days."),
        ("m5", "Raj", "See you."),
    ]
    chatter = [("c1", "Raj", "A customer forgot a hat here."), ("c2", "Mia", "No idea.")]
    told = [
        make_event("message", day * DAY_MS + at * MINUTE_MS, id=name, session_id=session, name=author, content=text)
        for day, session, said in ((1, "review", meeting), (2, "lunch", chatter))
        for at, (name, author, text) in enumerate(said)
    ]
    entity = {"name": "Leaver", "type": "model", "urn": MODEL}
    fact = make_event(
        "memory", 3 * DAY_MS, id="f1", session_id="review", content="Its owner is Mia.", entities=[entity]
    )
    question = {"query": "What do we know about the customer model?", "session_id": "next", "mode": "episode", "k": 20}
    asked = [
        make_event("recall", 5 * DAY_MS, **question),
        make_event("recall", 5 * DAY_MS, **question, entity_urns=[MODEL]),
    ]
    done = cli("pipe", stdin=jsonl(*told, fact, *asked))
    assert done.stderr == ""
    by_words, by_entity = parsed(done.stdout)
    whole = [*(name for name, *_ in meeting), "f1"]
    assert ids(by_words) == ["c1", "c2", *whole], "words alone lead to the forgotten hat"
    assert ids(by_entity) == [*whole, "c1", "c2"]
    first, _ = by_entity["episodes"]
    assert (first["session_id"], first["size"], first["members_returned"]) == ("review", 6, 6)
    assert "We decided to retrain it every 14 days." in first["summary"]
    assert "See you." not in first["summary"]
    scores = [memory["score"] for memory in by_entity["memories"]]
    assert scores == sorted(scores, reverse=True)


@pytest.fixture
def canary(cli: Cli, tmp_path: Path) -> Path:
    """The control events of a tenant whose answers the graph may add to."""
    control = tmp_path / "control.jsonl"
    done = cli("graph", "rollout", "acme", "canary", "--by", "kim", "--why", "a story", "--control", control)
    assert done.returncode == 0, done.stderr
    return control


def test_a_question_about_alerts_reaches_what_shares_a_board_with_them(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed, canary: Path
) -> None:
    """Seed 002, first example: what helps has no word of the question, and shares a topic with what does."""
    told = [
        make_event("memory", 1, id="pager", content="Deploy alerts wake whoever is on duty", topics=["dashboard"]),
        make_event("memory", 2, id="panel", content="Anything orange means the queue is full", topics=["dashboard"]),
        make_event("memory", 3, id="lunch", content="Soup is served at noon", topics=["kitchen"]),
    ]
    question = {"query": "deploy alerts", "k": 1}
    asked = [
        make_event("recall", 9, **question),
        make_event("recall", 9, **question, strategy="hybrid_graph"),
    ]
    baseline, answer = parsed(cli("pipe", "--control", canary, stdin=jsonl(*told, *asked)).stdout)
    assert ids(baseline) == ["pager"]
    assert ids(answer) == ["pager", "panel"], "behind the baseline, and nothing else"
    (reason,) = answer["memories"][1]["why"]
    assert (reason["code"], reason["edge"]["node"]) == ("linked", "topic:dashboard")


def test_a_question_about_a_strategy_reaches_the_decision_and_the_rule_behind_it(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed, canary: Path
) -> None:
    """Seed 002, second example: edges lead to a decision and a rule that share no word with the question; a cause comes
    before what it depends on."""
    told = [
        make_event("memory", 1, id="plan", content="Lookups take the mixed strategy from now on"),
        make_event("memory", 2, id="cause", kind="decision", content="Plain search missed one ticket in three"),
        make_event("memory", 3, id="rule", kind="rule", content="Never answer slower than half a second"),
        make_event("memory", 4, id="lunch", content="Soup is served at noon"),
        make_event(
            "graph.edges",
            5,
            edges=[
                {"source": "plan", "target": "rule", "type": "depends_on"},
                {"source": "plan", "target": "cause", "type": "caused_by"},
            ],
        ),
    ]
    asked = make_event("recall", 9, query="mixed strategy", k=1, strategy="hybrid_graph")
    (answer,) = parsed(cli("pipe", "--control", canary, stdin=jsonl(*told, asked)).stdout)
    assert ids(answer) == ["plan", "cause", "rule"]
    assert [memory["score"] for memory in answer["memories"][1:]] == [1.5, 0.9]
