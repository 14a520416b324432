"""Model calls for a query: selection of categories, sufficiency of summaries, and rewriting into subqueries. Each has a
function for the prompt and a function that reads the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from recallflow.limits import QUERY_CHARACTERS
from recallflow.llm import Prompt
from recallflow.operators.enrichment.prompts import TEXT, TRUTH, fields, listed, one_of, prompt

CATEGORIES_MAX = 100  # shown categories; their names are part of the schema
NAMES_CHARACTERS = 10_000  # of all their names
DESCRIPTION_CHARACTERS = 300
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
    """Return the prompt that selects categories for a question. `categories` maps names to descriptions, and is not
    empty."""
    offered = offer(categories)
    data = {"question": question[:QUERY_CHARACTERS], "categories": described(offered)}
    answer = fields(categories=listed(one_of([*offered])))
    return prompt("select_categories", "select-categories-1", _SELECT, data, answer)


def read_selected(answer: Mapping[str, Any], categories: Mapping[str, str]) -> list[str]:
    """Return the selected categories in the model's order, without duplicates and unknown names."""
    return [name for name in dict.fromkeys(answer["categories"]) if name in categories]


def check_sufficiency(question: str, summaries: Mapping[str, str]) -> Prompt:
    """Return the prompt that asks whether summaries answer a question. `summaries` maps categories to texts."""
    data = {"question": question[:QUERY_CHARACTERS], "summaries": fitting(summaries)}
    return prompt("check_sufficiency", "check-sufficiency-1", _SUFFICIENT, data, fields(sufficient=TRUTH))


def read_sufficient(answer: Mapping[str, Any]) -> bool:
    """Return whether the summaries answer the question."""
    return answer["sufficient"] is True


def rewrite(question: str) -> Prompt:
    """Return the prompt that splits a question into subquestions."""
    data = {"question": question[:QUERY_CHARACTERS]}
    return prompt("rewrite", "rewrite-1", _REWRITE, data, fields(questions=listed(TEXT)))


def read_rewritten(answer: Mapping[str, Any], question: str) -> list[str]:
    """Return the subquestions, up to a limit, without duplicates and copies of the question. Empty and overlong ones
    are left out."""
    found = {_plain(question): ""}
    for one in answer["questions"]:
        text = " ".join(one.split())
        if text and len(text) <= SUB_QUESTION_CHARACTERS and text.isprintable():
            found.setdefault(_plain(text), text)
    return [text for text in found.values() if text][:SUB_QUESTIONS_MAX]


def offer(categories: Mapping[str, str]) -> dict[str, str]:
    """Return the first categories that fit into a schema."""
    offered, characters = dict[str, str](), 0
    for name, description in categories.items():
        characters += len(name)
        if len(offered) == CATEGORIES_MAX or characters > NAMES_CHARACTERS:
            break
        offered[name] = description
    return offered


def described(categories: Mapping[str, str]) -> Sequence[dict[str, str]]:
    """Return categories in the form of a prompt."""
    return [{"name": name, "about": text[:DESCRIPTION_CHARACTERS]} for name, text in categories.items()]


def fitting(summaries: Mapping[str, str]) -> dict[str, str]:
    """Return the first summaries that fit into the limit."""
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
