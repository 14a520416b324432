"""Which intent a question has, and the mode `auto` takes for it."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.language import Intent
from recallflow.operators.recall import modes
from recallflow.operators.recall.intent import MODES, intent_of, mode_for
from recallflow.operators.recall.question import understand
from recallflow.queries import Mode

QUESTIONS: dict[str, Intent] = {
    "When did Ann move to Porto?": "temporal", "What year was the race?": "temporal",
    "How long has Bo been painting?": "temporal", "What did we talk about on 8 May 2023?": "temporal",
    "What has Ann been reading lately?": "temporal", "What did Bo say last week?": "temporal",
    "What happened three days ago?": "temporal", "Who is Bo's sister?": "entity", "“Who” else was there?": "entity",
    "Tell me about Carl": "entity", "What do you know about the churn model?": "entity",
    "What is Ann's favourite colour?": "preference", "Does she prefer tea or coffee?": "preference",
    "What kind of books does Ann like?": "preference", "What does my brother really hate?": "preference",
    "Which music would Bo's aunt like?": "preference", "What does Ann enjoy most?": "preference",
    "How do I deploy the dashboard?": "procedural", "how to reset the alarm": "procedural",
    "What are the steps for a rollback?": "procedural", "Walk me through the release": "procedural",
    "Summarise what Ann said": "summary", "Give me a recap of the meeting": "summary",
    "TL;DR of the thread": "summary", "What were the main points?": "summary", "Where does Ann work?": "factual",
    "What was the man who called selling?": "factual", "What would it be like to be there?": "factual",
    "How do you feel about it?": "factual", "Which gist did she fork?": "summary",
}  # fmt: skip


@pytest.mark.parametrize("text", QUESTIONS)
def test_the_intent_of_a_question(text: str) -> None:
    assert intent_of(understand(text, ["Ann", "Bo"])) == QUESTIONS[text]


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("Summarise what Ann said in May 2023", "summary"),  # a date, too
        ("How do I book the trip of 8 May?", "procedural"),  # a date, too
        ("When did Bo say which tea he likes?", "temporal"),  # a preference, too
        ("Who likes tea?", "preference"),  # a person, too
    ],
)
def test_requested_action_precedes_mentioned_ones(text: str, intent: Intent) -> None:
    assert intent_of(understand(text, ["Ann", "Bo"])) == intent


@pytest.mark.parametrize(
    "text", ["Wo arbeitet Anna?", "安娜在哪里工作？", "أين تعمل آنا؟", "Где работает Анна?", "👍", "a whodunit"]
)
def test_other_languages_and_odd_questions_ask_for_a_fact(text: str) -> None:
    assert intent_of(understand(text, ["Anna"])) == "factual"


@given(st.text(max_size=200))
def test_every_question_has_an_intent(text: str) -> None:
    assert intent_of(understand(text, ["Ann"])) in get_args(Intent)


def test_auto_follows_the_intent_and_explicit_modes_stay() -> None:
    assert MODES.keys() == set(get_args(Intent))
    assert set(MODES.values()) <= modes.MODES.keys()
    for mode in get_args(Mode):
        for intent in get_args(Intent):
            assert mode_for(mode, intent) == (MODES[intent] if mode == "auto" else mode)
