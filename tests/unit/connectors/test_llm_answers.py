"""Answers of models that have no JSON mode: what is read as the value of a schema, and what is not."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.llm.chat import _checked, read_answer
from recallflow.connectors.llm.connection import CallFailed
from recallflow.llm import Spent
from recallflow.operators.enrichment.prompts import NUMBER, TEXT, TRUTH, fields, listed

TRUE_OR_FALSE = fields(sufficient=TRUTH)
LIST = fields(questions=listed(TEXT))
TWO = fields(questions=listed(TEXT), confidence=NUMBER)

FENCES: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: f"```json\n{text}\n```",
    lambda text: f"```\r\n{text}\r\n```\n",
    lambda text: f"Here is the answer:\n\n```JSON\n{text}\n```\nI hope that helps.",
    lambda text: f"```json\n{text}",
]


@given(st.lists(st.text()), st.booleans(), st.sampled_from(FENCES))
def test_value_is_read_bare_and_in_a_fence(texts: list[str], truth: bool, fence: Callable[[str], str]) -> None:
    whole = {"questions": texts}
    for written in (whole, texts):
        assert read_answer(fence(json.dumps(written)), LIST) == whole
    for word in (json.dumps({"sufficient": truth}), json.dumps(truth), "YES" if truth else "no."):
        assert read_answer(fence(word), TRUE_OR_FALSE) == {"sufficient": truth}


@pytest.mark.parametrize(
    ("content", "schema"),
    [
        ("YES", LIST),
        ('["a"]', TRUE_OR_FALSE),
        ('["a"]', TWO),
        ("yes, and no", TRUE_OR_FALSE),
        ("maybe", TRUE_OR_FALSE),
        ("[1]", LIST),
        ('```json\n["a"]\n```\n```json\n["b"]\n```', LIST),
        ('["a"] is the answer', LIST),
        ("", LIST),
    ],
)
def test_other_answer_breaks_the_schema(content: str, schema: dict[str, object]) -> None:
    with pytest.raises(CallFailed) as failed:
        _checked(content, schema, Spent())
    assert failed.value.code == "malformed"
