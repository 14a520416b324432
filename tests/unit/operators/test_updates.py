"""A statement that replaces another one precedes it, unless the question is about the past."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall import updates
from tests.unit.operators.harness import HOUR_MS, Event, make_event, run_flow

BEGIN_MS = 1_700_000_000_000
TALK = (
    "The bus was late again this morning.", "I had lentil soup for lunch.", "That film was far too long.",
    "It rained the whole afternoon.", "Our printer is out of paper.", "The garden smells wonderful today.",
)  # fmt: skip


def told(texts: Sequence[str], **fields: Any) -> list[Event]:
    fields = {"user_id": "kim", "session_id": "s", "role": "user"} | fields
    return [
        make_event("message", BEGIN_MS + at * HOUR_MS, id=f"m{at}", content=text, **fields)
        for at, text in enumerate(texts)
    ]


def asked(query: str, **fields: Any) -> Event:
    fields = {"user_id": "kim", "id": "q", "explain": True} | fields
    return make_event("recall", BEGIN_MS + 1_000 * HOUR_MS, query=query, **fields)


def answer(texts: Sequence[str], query: str, **fields: Any) -> dict[str, Any]:
    done = run_flow([*told(texts), asked(query, **fields)], embedder="meaning")
    assert not done.rejected
    return done.responses[0]


def contents(response: dict[str, Any]) -> list[str]:
    return [memory["content"] for memory in response["memories"]]


REPLACED = [
    ("My phone number is 555 1000.", "My new phone number is 555 2000.", "What is my phone number?"),
    ("I live in Leeds.", "I moved to Bristol last week.", "Where do I live?"),
    ("My birthday is on 4 May.", "Sorry, I mistyped: my birthday is on 14 May, not the 4th.", "When is my birthday?"),
    ("Ich wohne in Bonn.", "Ich bin nach Leipzig umgezogen.", "Wo wohne ich jetzt?"),
    ("Mi número es 555 1000.", "Mi nuevo número es 555 2000.", "¿Cuál es mi número?"),
    ("Je travaille chez Renault.", "Je travaille maintenant chez Airbus.", "Où est-ce que je travaille ?"),
    ("Мой номер 555 1000.", "Мой новый номер 555 2000.", "Какой у меня номер?"),
    ("我的电话号码是5551000。", "我的新电话号码是5552000。", "我的电话号码是多少？"),
]


def test_statement_that_says_less_replaces_nothing() -> None:
    response = answer(["Ana moved to Porto in May", "Ana moved"], "Where does Ana live?")
    assert not any("updated_by" in memory for memory in response["memories"])


@pytest.mark.parametrize(("old", "new", "question"), REPLACED)
def test_newer_statement_precedes_the_one_it_replaces(old: str, new: str, question: str) -> None:
    response = answer([TALK[0], old, *TALK[1:4], new, *TALK[4:]], question)
    assert contents(response)[0] == new
    older = next(memory for memory in response["memories"] if memory["content"] == old)
    assert older["updated_by"]["id"] == "m5"
    assert updates.UPDATED <= older["updated_by"]["probability"] <= 1


@pytest.mark.parametrize(
    ("old", "new", "question"),
    [
        ("I live in Leeds.", "I moved to Bristol last week.", "Where did I live before?"),
        ("My phone number is 555 1000.", "My new phone number is 555 2000.", "What was my old phone number?"),
    ],
)
def test_question_about_the_past_reverses_the_order(old: str, new: str, question: str) -> None:
    assert contents(answer([TALK[0], old, *TALK[1:4], new], question))[0] == old


@pytest.mark.parametrize(
    ("own", "later", "question"),
    [
        ("I live in Leeds.", "My sister moved to Porto.", "Where do I live?"),
        ("My phone number is 555 9021.", "Mum's new phone number is 555 4477.", "What's my phone number?"),
        ("I play volleyball in a club.", "I also play tennis.", "Which team sport do I play?"),
    ],
)
def test_change_of_another_person_and_addition_replace_nothing(own: str, later: str, question: str) -> None:
    response = answer([TALK[0], own, *TALK[1:4], later], question)
    assert contents(response)[0] == own
    assert all("updated_by" not in memory for memory in response["memories"] if memory["content"] == own)


def test_context_says_until_when_a_replaced_statement_was_true() -> None:
    texts = ["My phone number is 555 1000.", TALK[0], "My new phone number is 555 2000."]
    context = answer(texts, "What is my phone number?", max_tokens=200)["context"]
    first, second = context["relevant_items"][:2]
    assert first["content"] == texts[2]
    assert second["content"] == "until 15 November 2023: My phone number is 555 1000."
    assert second["until"] == "2023-11-15T00:13:20Z"


def test_reason_names_the_replaced_statement() -> None:
    texts = ["My phone number is 555 1000.", TALK[0], "My new phone number is 555 2000."]
    first = answer(texts, "What is my phone number?")["memories"][0]
    (reason,) = [reason for reason in first["why"] if reason["code"] == "updates"]
    assert reason["neighbour"]["id"] == "m0"


@given(
    st.integers(2, 9).flatmap(
        lambda count: st.tuples(st.just(count), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12))
    ),
    st.booleans(),
)
def test_order_satisfies_every_pair(drawn: tuple[int, list[tuple[int, int]]], about_past: bool) -> None:
    count, pairs = drawn
    age = [*range(count)]
    likely = np.zeros((count, count))
    for older, newer in pairs:
        if older < newer < count:
            likely[older, newer] = 0.9
    order = updates.reordered(age, likely, count, about_past=about_past)
    assert sorted(order) == age
    for older, newer in np.argwhere(likely > 0).tolist():
        first, second = (older, newer) if about_past else (newer, older)
        assert order.index(first) < order.index(second)
