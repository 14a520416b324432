import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import OpenAI

from benchmarks import data_formats
from benchmarks.answer_quality import AnsweringModel
from benchmarks.leaderboard import DOCS, RESULTS, compare, comparison, judge, page
from benchmarks.locomo import Conversation, Question
from recallflow.embedder import Estimate
from tests.llm_server import LlmServer

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
    (conversation,) = data_formats.longmemeval(path)
    return conversation


def test_longmemeval_turns_are_in_order_with_evidence(instance: Conversation) -> None:
    assert [turn.session for turn in instance.turns] == ["earlier", "later", "later"]
    assert instance.questions[0].evidence == {"0:0"}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def test_formats_have_sources_as_evidence_and_dates(tmp_path: Path) -> None:
    asked, spoken = {"question": "Where?", "answer": "Porto"}, {"role": "user", "time_anchor": "March-15-2024"}
    write(tmp_path / "1" / "chat.json", [{"turns": [[spoken | {"id": 7, "content": "Porto"}]]}])
    probed = {"update": [asked | {"source_chat_ids": {"new": [7]}}], "abstention": [asked]}
    write(tmp_path / "1" / "probing_questions" / "probing_questions.json", probed)
    talk = {"dia_id": "D2:1", "speaker": "Ann", "clean_text": "Porto", "date_time": "15.03.2024, 00:00:20"}
    chat = {"session_2": [talk], "qa": [asked | {"evidence": ["D2:1"], "category": 1}]}
    day = {"mid": 7, "message": "Porto", "time": "2024-03-15 Friday 00:00"}
    trajectory = {"tid": 0, "message_list": [day], "QA": asked | {"target_step_id": [7]}}
    (of_beam,) = data_formats.beam(tmp_path)
    (of_memdaily,) = data_formats.memdaily(write(tmp_path / "m", {"simple": {"roles": [trajectory]}}))
    (of_realtalk,) = data_formats.realtalk(write(tmp_path / "chat.json", chat))
    for name, category, one in (("7", "update", of_beam), ("7", "simple", of_memdaily), ("D2:1", "fact", of_realtalk)):
        assert one.questions == [Question("Where?", category, frozenset({name}), "Porto")]
        (turn,) = one.turns
        assert (turn.content, turn.time) == ("Porto", datetime(2024, 3, 15, 0, 0, 20, tzinfo=UTC))


def test_answers_are_judged_by_the_model(instance: Conversation) -> None:
    (question,) = instance.questions
    with LlmServer() as server:
        server.answer("Answered", lambda asked: {"answer": "Porto" if "Porto" in asked.user else "unknown"})
        server.answer("Verdict", lambda asked: {"is_correct": asked.user.endswith("Answer: Porto")})
        model = AnsweringModel(OpenAI(base_url=server.url, api_key="key"), "model")
        assert (
            model.share_correct([(question, instance.turns), (question, []), (replace(question, answer=""), [])]) == 0.5
        )


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
