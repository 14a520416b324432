import json
from pathlib import Path

import orjson
import pytest

from benchmarks import kinds
from benchmarks.leaderboard import DOCS, RESULTS, compare, comparison, judge, page
from benchmarks.locomo import Conversation
from recallflow.embedder import Estimate

CONVERSATIONS = ["a"] * 40 + ["b"] * 40 + ["c"] * 40


@pytest.fixture
def instance(tmp_path: Path) -> Conversation:
    """A LongMemEval instance; its second session is earlier than its first."""
    said = [
        {"role": "user", "content": "I moved to Porto." * 20, "has_answer": True},
        {"role": "assistant", "content": "Nice."},
    ]
    sample = {
        "question_id": "q1", "question_type": "single-session-user", "question": "Where do I live?", "answer": "Porto",
        "haystack_session_ids": ["later", "earlier"],
        "haystack_dates": ["2023/05/30 (Tue) 23:40", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [said, [{"role": "user", "content": "Hello."}]],
    }  # fmt: skip
    unanswerable = sample | {"question_id": "q2_abs", "haystack_sessions": [[], []]}
    path = tmp_path / "longmemeval.json"
    path.write_text(json.dumps([sample, unanswerable]))
    (conversation,) = kinds.longmemeval(path)
    return conversation


def test_longmemeval_turns_are_in_order_with_evidence(instance: Conversation) -> None:
    assert [turn.session for turn in instance.turns] == ["earlier", "later", "later"]
    assert instance.questions[0].evidence == {"0:0"}


def test_turn_larger_than_budget_is_no_evidence_in_it(instance: Conversation) -> None:
    found = judge(instance, 0, ["1:0", "0:1", "0:0"], [50, 500], Estimate())
    assert (found["any@10"], found["all in 50"], found["all in 500"], found["session MRR"]) == (1, 0, 1, 0.5)


def test_difference_in_every_conversation_is_significant() -> None:
    found = compare([1.0, 0.0] * 60, [0.0, 0.0] * 60, CONVERSATIONS)
    assert found["difference"] == 0.5
    assert found["low"] > 0.3
    assert found["p"] < 0.01


def test_difference_in_one_conversation_of_three_is_undecided() -> None:
    found = compare([1.0] * 40 + [0.0] * 80, [0.0] * 120, CONVERSATIONS)
    assert found["low"] == 0
    assert found["p"] > 0.05


def test_pages_are_of_the_result_file() -> None:
    figures = orjson.loads((RESULTS / "leaderboard.json").read_bytes())
    assert (DOCS / "leaderboard.md").read_text() == page(figures)
    text = (DOCS / "comparison.md").read_text()
    assert comparison(text, figures) == text
