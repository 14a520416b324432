"""What the recall benchmarks read of each kind of chat, and the stores and facts they make of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.facts import facts_of
from benchmarks.kinds import KINDS, by_session, load, read, small_stores
from benchmarks.locomo import Conversation, Question, Turn

AT = datetime(2024, 3, 15, tzinfo=UTC)


def said(number: int, author: str, text: str, at: str | None = None, session: str = "1") -> dict[str, Any]:
    return {"id": f"t{number}", "session_id": session, "author": author, "timestamp": at, "text": text}


def asked(evidence: list[str], category: str = "Who") -> dict[str, Any]:
    return {"question": f"{category}, {' '.join(evidence)}?", "evidence": evidence, "category": category}


TURNS = [
    said(0, "user", "I moved to Oslo.", "2024-03-15T00:00:00"),
    said(1, "assistant", "How is Oslo?", "2024-03-15T00:00:00"),
    said(2, "user", "   ", "2024-03-16T00:00:00"),
    said(3, "user", "It rains.", "2024-03-14T00:00:00"),
    said(4, "Ann Lee", "I love rain.", "2024-03-17T00:00:00", session="2"),
    said(5, "user", "Well.", None, session="2"),
]
QUESTIONS = [asked(["t0"]), asked(["t0", "t1"]), asked(["t5"]), asked(["t9"]), asked(["t0"], "summarization")]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "some_dev.json"
    path.write_bytes(orjson.dumps([{"sample_id": "one", "turns": TURNS, "questions": QUESTIONS}]))
    return path


def test_turns_have_their_authors_and_times_that_go_on(written: Path) -> None:
    (one,) = read(written)
    assert [(turn.id, turn.role, turn.speaker) for turn in one.turns] == [
        ("t0", "user", None),
        ("t1", "assistant", None),
        ("t3", "user", None),
        ("t4", "user", "Ann Lee"),
        ("t5", "user", None),
    ]
    later = datetime(2024, 3, 17, tzinfo=UTC)
    seconds = timedelta(seconds=20)
    assert [turn.time for turn in one.turns] == [AT, AT + seconds, AT + 2 * seconds, later, later + seconds]


def test_questions_without_evidence_or_of_no_evidence_are_not_asked(written: Path) -> None:
    (one,) = read(written)
    assert [question.evidence for question in one.questions] == [{"t0"}, {"t0", "t1"}, {"t5"}]


def test_user_turns_keep_questions_they_answer_whole(written: Path) -> None:
    (one,) = read(written, user_only=True)
    assert [turn.id for turn in one.turns] == ["t0", "t3", "t5"]
    assert [question.evidence for question in one.questions] == [{"t0"}, {"t5"}]


def test_session_keeps_questions_it_answers_whole(written: Path) -> None:
    (one,) = read(written)
    assert [(store.id, [turn.id for turn in store.turns], len(store.questions)) for store in by_session(one)] == [
        ("one 1", ["t0", "t1", "t3"], 2),
        ("one 2", ["t4", "t5"], 1),
    ]


def test_small_stores_have_one_to_ten_memories() -> None:
    turns = [Turn(f"t{number}", "1", AT, "Ann", "Rain.") for number in range(30)]
    questions = [Question("Where?", "where", frozenset(["t3"]))] * 12
    stores = small_stores([Conversation("one", turns, questions), Conversation("two", turns, questions)])
    assert [len(store.turns) for store in stores] == [*range(1, 11), *range(1, 11), 1, 2, 3, 4]
    assert len({store.id for store in stores}) == len(stores)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("I love rainy days!", ["Ann loves rainy days."]),
        ("Well, I really prefer my old car. Bye.", ["Ann prefers their old car."]),
        ("I moved to Oslo and I work at a bank.", ["Ann moved to Oslo.", "Ann works at a bank."]),
        ("The cake I made for you", []),
        ("I love it.", []),
        ("Do I like rain?", []),
    ],
)
def test_facts_are_made_of_what_someone_says_of_themselves(text: str, facts: list[str]) -> None:
    made = list(facts_of(Turn("t", "1", AT, "Ann", text)))
    assert [fact.text for fact in made] == facts
    assert all(fact.role is None and fact.speaker is None for fact in made)


@pytest.mark.models
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_loads_with_evidence_among_its_turns(kind: str) -> None:
    conversations = load(kind)
    asked_of = [(one, question) for one in conversations for question in one.questions]
    expected = {"locomo": 505, "assistant": 100, "assistant_long": 120, "group": 538, "chinese": 320, "mixed": 1043}
    assert len(asked_of) == expected.get(kind, len(asked_of)) > 0
    assert all(question.evidence & {turn.id for turn in one.turns} for one, question in asked_of)
