"""What a language model is asked about a question: which categories tell of it, whether summaries answer it, and which
smaller questions it is made of. Each has a function that makes the prompt, and one that reads the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from recallflow.limits import QUERY_CHARACTERS
from recallflow.llm import Prompt
from recallflow.operators.enrichment.prompts import TEXT, TRUTH, fields, listed, one_of, prompt

CATEGORIES_MAX = 100  # shown, the first ones; all their names become part of the schema
NAMES_CHARACTERS = 10_000  # of them
DESCRIPTION_CHARACTERS = 300
SUMMARIES_CHARACTERS = 24_000  # of all summaries: those that come later are left out
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
    """Asks which categories help to answer a question. `categories`: name → description, at least one."""
    offered = offer(categories)
    data = {"question": question[:QUERY_CHARACTERS], "categories": described(offered)}
    answer = fields(categories=listed(one_of([*offered])))
    return prompt("select_categories", "select-categories-1", _SELECT, data, answer)


def read_selected(answer: Mapping[str, Any], categories: Mapping[str, str]) -> list[str]:
    """The categories that were selected out of those given, each once, in the model's order; none where none helps."""
    return [name for name in dict.fromkeys(answer["categories"]) if name in categories]


def check_sufficiency(question: str, summaries: Mapping[str, str]) -> Prompt:
    """Asks whether summaries answer a question. `summaries`: category → text."""
    data = {"question": question[:QUERY_CHARACTERS], "summaries": fitting(summaries)}
    return prompt("check_sufficiency", "check-sufficiency-1", _SUFFICIENT, data, fields(sufficient=TRUTH))


def read_sufficient(answer: Mapping[str, Any]) -> bool:
    """Whether the summaries answer the question."""
    return answer["sufficient"] is True


def rewrite(question: str) -> Prompt:
    """Asks which smaller questions a question is made of."""
    data = {"question": question[:QUERY_CHARACTERS]}
    return prompt("rewrite", "rewrite-1", _REWRITE, data, fields(questions=listed(TEXT)))


def read_rewritten(answer: Mapping[str, Any], question: str) -> list[str]:
    """The smaller questions: as many as may be, different from each other and from the question. One that is empty or
    too long is left out."""
    found = {_plain(question): ""}
    for one in answer["questions"]:
        text = " ".join(one.split())
        if text and len(text) <= SUB_QUESTION_CHARACTERS and text.isprintable():
            found.setdefault(_plain(text), text)
    return [text for text in found.values() if text][:SUB_QUESTIONS_MAX]


def offer(categories: Mapping[str, str]) -> dict[str, str]:
    """The categories that a model chooses from: the first, as many as a schema takes."""
    offered, characters = dict[str, str](), 0
    for name, description in categories.items():
        characters += len(name)
        if len(offered) == CATEGORIES_MAX or characters > NAMES_CHARACTERS:
            break
        offered[name] = description
    return offered


def described(categories: Mapping[str, str]) -> Sequence[dict[str, str]]:
    """Categories as a prompt shows them."""
    return [{"name": name, "about": text[:DESCRIPTION_CHARACTERS]} for name, text in categories.items()]


def fitting(summaries: Mapping[str, str]) -> dict[str, str]:
    """Whole summaries, the first ones, as many as there is room for."""
    fitting, room = dict[str, str](), SUMMARIES_CHARACTERS
    for name, text in summaries.items():
        room -= len(text)
        if room < 0:
            break
        fitting[name] = text
    return fitting


def _plain(question: str) -> str:
    """What two spellings of a question have in common."""
    return "".join(character for character in question.casefold() if character.isalnum())
