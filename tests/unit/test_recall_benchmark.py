"""What recall_quality compares, prints and refuses, on a few made-up conversations."""

import argparse
from datetime import UTC, datetime

import pytest

from benchmarks.locomo import Conversation, Question, Turn
from benchmarks.recall_gates import Gate, missed, parse_gate
from benchmarks.recall_quality import arguments, run_all
from benchmarks.recall_report import Result, report
from recallflow.flows.settings import Settings

AT = datetime(2024, 3, 15, tzinfo=UTC)


def conversation(name: str, *texts: str, question: str, evidence: str) -> Conversation:
    turns = [Turn(f"t{number}", "1", AT, "Ann", text) for number, text in enumerate(texts)]
    return Conversation(name, turns, [Question(question, "what", frozenset([evidence]))])


def test_every_engine_answers_every_conversation() -> None:
    sets = {
        "chat": [
            conversation("one", "I baked cakes", "tea", question="Who baked?", evidence="t0"),
            conversation("two", "rain", "I sail boats", question="Who sails?", evidence="t1"),
        ]
    }
    chosen = arguments(["--embedder", "hash", "--no-mem0", "--modes", "relevance"])
    results = run_all(Settings(), chosen, sets)["chat"]
    figures = {one.engine: one.figures["overall"] for one in results if not one.skipped}
    assert [*figures] == ["cosine", "bm25", "bm25, content words", "rrf", "recallflow relevance"]
    assert figures["recallflow relevance"] == pytest.approx(dict.fromkeys(figures["bm25"], 1.0) | {"questions": 2})
    shown = report("hash", {"chat": results})
    assert "| chat | " in shown
    assert "mem0: left out (--no-mem0)" in shown


def result(engine: str, **measures: float) -> Result:
    return Result(engine, {"overall": {name.replace("_at_", "@"): value for name, value in measures.items()}})


RUNS = {
    "chat": [result("bm25", any_at_10=0.9), result("mine", any_at_10=0.91)],
    "group": [result("bm25", any_at_10=0.9), result("mine", any_at_10=0.8996)],
}


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("chat:any@10=0.91", []),
        ("chat:any@10=0.92", ["chat:any@10 0.910 < 0.920"]),
        ("*:any@10=bm25", []),
        ("*:any@10=0.905", ["group:any@10 0.900 < 0.905"]),
        ("chinese:any@10=0.1", ["chinese:any@10=0.1 was not measured"]),
        ("chat:any@10=mem0", ["chat:any@10=mem0 was not measured"]),
        ("chat:all@10=bm25", ["chat:all@10=bm25 was not measured"]),
    ],
)
def test_a_gate_says_what_is_missed(gate: str, expected: list[str]) -> None:
    assert list(missed([parse_gate(gate)], RUNS, "mine")) == expected


def test_a_gate_is_a_kind_a_measure_and_a_value() -> None:
    assert parse_gate("a/small:nDCG@10=bm25, content words") == Gate("a/small", "nDCG@10", "bm25, content words")
    with pytest.raises(argparse.ArgumentTypeError, match="no KIND:NAME=VALUE"):
        parse_gate("any@10=0.9")
