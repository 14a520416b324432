import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from benchmarks import budget, data_formats
from benchmarks.answer_quality import GIVE_UP, TIMEOUT_S, AnsweringModel
from benchmarks.frameworks import full_text_options
from benchmarks.leaderboard import judge
from benchmarks.leaderboard_page import DOCS, RESULTS, compare, comparison, page, summarise
from benchmarks.locomo import Conversation, DataFormatError, Question
from recallflow.embedder import Estimate
from tests.llm_server import LlmServer


@pytest.fixture
def instance(tmp_path: Path) -> Conversation:
    """A LongMemEval instance; its second session is earlier than its first."""
    said = [
        {"role": "user", "content": "I moved to Porto." * 20, "has_answer": True},
        {"role": "assistant", "content": "Nice."},
    ]
    sample = {
        "question_id": "q1", "question_date": "2023/06/01 (Thu) 10:00",
        "question_type": "single-session-user", "question": "Where do I live?", "answer": "Porto",
        "haystack_session_ids": ["later", "earlier"],
        "haystack_dates": ["2023/05/30 (Tue) 23:40", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [said, [{"role": "user", "content": "Hello."}]],
    }  # fmt: skip
    unanswerable = sample | {"question_id": "q2_abs", "haystack_sessions": [[], []]}
    (conversation,) = data_formats.longmemeval(write(tmp_path / "longmemeval.json", [sample, unanswerable]))
    return conversation


def test_longmemeval_turns_are_in_order_with_evidence(instance: Conversation) -> None:
    assert [turn.session for turn in instance.turns] == ["earlier", "later", "later"]
    (question,) = instance.questions
    assert (question.evidence, question.asked) == (frozenset({"0:0"}), datetime(2023, 6, 1, 10, tzinfo=UTC))
    assert instance.turns[0].memory == "[20 May 2023] user: Hello."


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


ASKED = {"question": "Where?", "category": "4", "evidence": "D1:1"}
LOCOMO = {"sample_id": "1", "conversation": {}, "qa": [ASKED]}
SAID = {"dia_id": "D1:1", "speaker": "Ann", "text": "Porto"}
DATED = {"session_1": [SAID], "session_1_date_time": "1:56 pm on 8 May, 2023"}


@pytest.mark.parametrize(
    ("form", "content", "named"),
    [
        ("locomo", {}, "whole file"),
        ("locomo", [], "no question"),
        ("locomo", [LOCOMO], "no question"),
        ("locomo", [LOCOMO | {"qa": [{"category": 4}]}], "0.qa.0.question"),
        ("locomo", [LOCOMO | {"conversation": {"session_1": [SAID]}}], "session_1_date_time"),
        ("locomo", [LOCOMO | {"conversation": DATED | {"session_1": [SAID, SAID]}}], "id"),
        ("locomo", [LOCOMO | {"conversation": DATED | {"session_1": "Porto"}}], "session_1"),
        ("locomo", [LOCOMO | {"conversation": DATED, "qa": [ASKED | {"question": " "}]}], "query: is blank"),
        ("realtalk", {"session_1": [{}], "qa": []}, "session_1.0"),
        ("memdaily", {"a": {"b": [{"tid": 1, "message_list": [{"mid": 1, "message": "", "time": "soon"}]}]}}, "0.time"),
        ("recallflow", [{"sample_id": "1", "turns": [], "questions": [ASKED]}], "evidence D1:1"),
    ],
)
def test_malformed_file_is_named_with_its_field(form: str, content: Any, named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "file.json", content)
    with pytest.raises(DataFormatError, match=rf"{path}.*{named}"):
        data_formats.load(form, path)


def test_evidence_and_category_may_be_strings(tmp_path: Path) -> None:
    path = write(tmp_path / "file.json", [LOCOMO | {"conversation": DATED, "qa": [ASKED, ASKED | {"evidence": []}]}])
    (conversation,) = data_formats.load("locomo", path)
    assert [one.evidence for one in conversation.questions] == [{"D1:1"}]


def test_answers_are_judged_and_failed_calls_counted(instance: Conversation) -> None:
    (question,) = instance.questions
    shown = [(turn, turn.content) for turn in instance.turns]
    with LlmServer() as server:
        server.answer("Answered", lambda asked: {"answer": "Porto" if "Today is 2023-06-01" in asked.user else "2"})
        server.answer("Verdict", lambda asked: {"is_correct": asked.user.endswith("Answer: Porto")})
        model = AnsweringModel.checked(server.url, "model")
        right = model.answer_all([(question, shown)])
        failed = []
        for fault in ("refusal", "length", "not_json", "invalid_json", "off_schema"):
            server.fail(fault)
            failed += model.answer_all([(question, [])])
        server.fail("hang", times=None)
        hasty = AnsweringModel(model.client.with_options(timeout=0.05, max_retries=0), "model")
        hung = hasty.answer_all([(question, [])] * 3 * GIVE_UP)
        server.heal()
        server.fail("not_json", times=None)
        with pytest.raises(SystemExit):
            AnsweringModel.checked(server.url, "model")
    assert [(one.answer, one.is_correct, one.failure) for one in right] == [("Porto", True, "")]
    assert not any(one.is_correct for one in failed + hung)
    assert all(one.failure for one in failed)
    assert (hung[-1].failure[:9], model.client.timeout) == ("not asked", TIMEOUT_S)


def test_turn_larger_than_budget_is_no_evidence_in_it(instance: Conversation) -> None:
    turns, ids, count = {turn.id: turn for turn in instance.turns}, ["1:0", "0:1", "0:0"], Estimate().count_tokens
    filled = {limit: budget.fill(((name, turns[name].content) for name in ids), limit, count) for limit in (50, 500)}
    found = judge(frozenset({"0:0"}), turns, ids, ids, filled, count)
    assert (found["any@10"], found["all in 50"], found["all in 500"]) == (1, 0, 1)
    assert found["session nDCG@10"] == pytest.approx(0.631, abs=1e-3)


@pytest.mark.parametrize(("text", "tokenizer"), [("我住在波尔图。OK", "ngram"), ("I moved to 波尔图", None)])
def test_text_without_spaces_has_an_ngram_index(text: str, tokenizer: str | None, instance: Conversation) -> None:
    assert full_text_options([replace(instance.turns[0], text=text)]).get("base_tokenizer") == tokenizer


@pytest.mark.parametrize(("conversations", "p"), [(3, 0.25), (8, 2 / 2**8)])
def test_few_conversations_bound_the_p_value(conversations: int, p: float) -> None:
    groups = [str(number) for number in range(conversations) for _ in range(40)]
    (found,) = compare(np.array([[1.0], [0.0]] * (20 * conversations)), [0.0] * len(groups), groups)
    assert (found["difference"], found["low"] > 0.3, found["p, questions"] < 0.01) == (0.5, True, True)
    assert found["p, conversations"] == pytest.approx(p, abs=1e-4)


def test_missing_figures_and_failed_calls_have_no_significance() -> None:
    measures = {"any@10": 1.0, "all@10": 1.0, "nDCG@10": 1.0, "correct in 500": 0.0, "answer in 500": {"failure": ""}}
    failed = {"nDCG@10": 0.0, "answer in 500": {"failure": "timeout"}}
    of_systems = {"recallflow meaning": measures, "BM25 stemmed": measures | failed}
    data = {kind: {"questions": 1, "systems": {name: {} for name in of_systems}} for kind in ("one", "two")}
    questions = {kind: [{"conversation": "a", "systems": of_systems}] for kind in ("one", "two")}
    questions["two"] = [{"conversation": "a", "systems": {"recallflow meaning": measures}}]
    figures: dict[str, Any] = {"data": data, "questions": questions, "vectors": "hash"}
    summarise(figures)
    table = comparison("<!-- leaderboard -->\n<!-- end -->", figures)
    assert "| BM25 stemmed | 1.000 / 1.000 / .000\\* | not run |" in table
    done = figures["data"]["one"]["systems"]["BM25 stemmed"]
    assert (done["failed, correct in 500"], "correct in 500" in done["versus"]) == (1, False)


def test_pages_are_of_the_result_file() -> None:
    figures = orjson.loads(gzip.decompress(RESULTS.read_bytes()))
    assert (DOCS / "leaderboard.md").read_text() == page(figures)
    text = (DOCS / "comparison.md").read_text()
    assert comparison(text, figures) == text
    commit = {"id": "0a1b2c3d", "changed": True}
    own = page(figures | {"formats": dict.fromkeys(figures["data"], "beam"), "vectors": "hash", "commit": commit})
    assert "commit 0a1b2c3d with uncommitted changes" in own
    for note in ("fitted to these", "reads the beginning", "`minilm`", "of its 10", "`assistant`"):
        assert (note in page(figures), note in own) == (True, False)


@pytest.mark.parametrize(
    "command",
    [
        "leaderboard --budgets 0", "leaderboard --budgets 500,x", "leaderboard --systems nosuch",
        "leaderboard --kinds nosuch", "leaderboard --data nosuch=README.md", "leaderboard --data locomo",
        "leaderboard --data locomo=README.md --data beam=README.md", "leaderboard --publish --out nosuch",
        "leaderboard --left-out nosuch", "budget --tokens x", "budget --kinds nosuch", "fit_weights --kinds nosuch",
        "fit_weights --json nosuch/file", "recall_quality --stores nosuch", "recall_quality --modes nosuch",
    ],
)  # fmt: skip
def test_unusable_argument_is_a_usage_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, *arguments = command.split()
    with pytest.raises(SystemExit) as exited:
        import_module(f"benchmarks.{module}").main(arguments)
    assert (exited.value.code, arguments[0] in capsys.readouterr().err.splitlines()[-1]) == (2, True)
