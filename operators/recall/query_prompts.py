"""Prompts of queries: selection of categories, sufficiency of summaries, and rewriting into subqueries."""

from collections.abc import Mapping
from typing import Any

from recallflow.limits import QUERY_CHARACTERS
from recallflow.llm import Prompt
from recallflow.operators.enrichment.prompt_frame import TEXT, TRUTH, described, fields, listed, offer, one_of, prompt

SUMMARIES_CHARACTERS = 24_000  # of all summaries; later ones are left out
SUB_QUESTIONS_MAX, SUB_QUESTION_CHARACTERS = 3, 300

_SELECT = (
    "A memory is kept in categories, each with a summary. You are given a question to that memory, and the categories "
    "with what belongs into them. List the categories whose summaries would help to answer the question, the most "
    "helpful first. Leave out all that would not help; if none would, the list is empty."
)
_SUFFICIENT = (
    "You are given a question to a memory, and summaries of what it holds. Say whether the summaries alone answer the "
    "question fully: everything it asks for must be told in them. If anything is missing, vague or must be guessed, "
    "they are not sufficient."
)
_REWRITE = (
    "You are given a question to a memory that finds texts by their likeness to a question. If the answer lies in "
    f"several texts, write the smaller questions, at most {SUB_QUESTIONS_MAX}, whose answers together answer it: each "
    "complete by itself, with names instead of pronouns, in the language of the question, and in at most "
    f"{SUB_QUESTION_CHARACTERS} characters. Add no name and no fact that the question does not have. If one text can "
    "answer it, the list is empty."
)


def select_categories(question: str, categories: Mapping[str, str]) -> Prompt:
    """Return the prompt that selects categories for a question. `categories`: names and descriptions, not empty."""
    offered = offer(categories)
    data = {"question": question[:QUERY_CHARACTERS], "categories": described(offered)}
    answer = fields(categories=listed(one_of([*offered])))
    return prompt("select_categories", "select-categories-1", _SELECT, data, answer)


def check_sufficiency(question: str, summaries: Mapping[str, str]) -> Prompt:
    """Return the prompt that asks whether summaries answer a question. `summaries` maps categories to texts."""
    data = {"question": question[:QUERY_CHARACTERS], "summaries": fitting(summaries)}
    return prompt("check_sufficiency", "check-sufficiency-1", _SUFFICIENT, data, fields(sufficient=TRUTH))


def rewrite(question: str) -> Prompt:
    data = {"question": question[:QUERY_CHARACTERS]}
    return prompt("rewrite", "rewrite-1", _REWRITE, data, fields(questions=listed(TEXT)))


def read_rewritten(answer: Mapping[str, Any], question: str) -> list[str]:
    """Return distinct subquestions other than the question, up to a limit. Empty and overlong ones are left out."""
    found = {_plain(question): ""}
    for one in answer["questions"]:
        text = " ".join(one.split())
        if text and len(text) <= SUB_QUESTION_CHARACTERS and text.isprintable():
            found.setdefault(_plain(text), text)
    return [text for text in found.values() if text][:SUB_QUESTIONS_MAX]


def fitting(summaries: Mapping[str, str]) -> dict[str, str]:
    fitting, room = dict[str, str](), SUMMARIES_CHARACTERS
    for name, text in summaries.items():
        room -= len(text)
        if room < 0:
            break
        fitting[name] = text
    return fitting


def _plain(question: str) -> str:
    """Return a form of a question that is equal for different spellings."""
    return "".join(character for character in question.casefold() if character.isalnum())
