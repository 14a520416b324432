"""What a language model is asked about a question, and how its answers are read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.llm import Prompt
from recallflow.operators.enrichment.prompts import DATA, DATA_END
from recallflow.operators.enrichment.questions import (
    CATEGORIES_MAX,
    NAMES_CHARACTERS,
    SUB_QUESTION_CHARACTERS,
    SUB_QUESTIONS_MAX,
    SUMMARIES_CHARACTERS,
    check_sufficiency,
    read_rewritten,
    select_categories,
)


def data_of(prompt: Prompt) -> dict[str, object]:
    begin, data, end = prompt.user.split("\n")
    assert (begin, end) == (DATA, DATA_END)
    found: dict[str, object] = json.loads(data)
    return found


@pytest.mark.parametrize("name_characters", [1, 500])
def test_categories_that_are_offered_are_bounded(name_characters: int) -> None:
    many = {f"{n:04}".rjust(name_characters, "x"): "about " * 1_000 for n in range(1_000)}
    prompt = select_categories("What?", many)
    offered = prompt.schema["properties"]["categories"]["items"]["enum"]
    assert offered == [*many][: len(offered)]
    assert 0 < len(offered) <= CATEGORIES_MAX
    assert sum(map(len, offered)) <= NAMES_CHARACTERS
    assert len(prompt.user) < 60_000


def test_summaries_that_do_not_fit_are_left_out_whole() -> None:
    summaries = {"a": "x" * (SUMMARIES_CHARACTERS - 10), "b": "y" * 10, "c": "z"}
    assert data_of(check_sufficiency("What?", summaries))["summaries"] == {name: summaries[name] for name in "ab"}


@given(st.lists(st.text()), st.text())
def test_subquestions_are_few_short_and_different(texts: list[str], question: str) -> None:
    found = read_rewritten({"questions": texts}, question)
    assert len(found) <= SUB_QUESTIONS_MAX
    assert all(0 < len(one) <= SUB_QUESTION_CHARACTERS and one.isprintable() for one in found)
    assert len({one.casefold() for one in [*found, " ".join(question.split())]}) == len(found) + 1
