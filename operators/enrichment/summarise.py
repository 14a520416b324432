"""Summaries of categories and of episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from recallflow.events import EnrichmentRequest, ShownMemory
from recallflow.fields import written_time
from recallflow.limits import SOURCES_MAX
from recallflow.llm import Task
from recallflow.operators.enrichment.prompts import (
    BESIDE_CHARACTERS,
    TEXT,
    as_data,
    author,
    cut,
    date_words,
    fields,
    numbered,
    prompt,
    sources_of,
)
from recallflow.operators.enrichment.results import AnswerClaims, Draft, ModelCall, RejectedClaim, check_text

CATEGORY_VERSION, EPISODE_VERSION = "summarise-category-1", "summarise-episode-1"
SUMMARY_CHARACTERS, ASKED_CHARACTERS = 1_200, 800
TEXTS_CHARACTERS = 24_000  # of all shown memories
_RULES = (
    f"Write in the language of most of the texts, at most {ASKED_CHARACTERS} characters, as plain sentences without "
    "headings. People go by their names ('by' says who writes). Use only names and numbers that the texts have, as "
    "they write them, and add nothing that they do not tell. Where a later text changes what an earlier one tells, "
    "tell what holds now."
)
_CATEGORY_DUTY = (
    "You are given a category of somebody's memory and the texts in it, oldest first. Sum up what they tell that is of "
    f"use for answering questions: who, what, when, preferences, decisions. {_RULES}"
)
_EPISODE_DUTY = (
    "You are given the messages of a conversation that has ended, oldest first. Sum up what it was about, what was "
    f"decided, and what was told of people. {_RULES}"
)
_ANSWER = fields(summary=TEXT)


def summarise_category(number: int, request: EnrichmentRequest) -> ModelCall:
    """Return the model call for the summary of a request's category."""
    fields = {"type": "category.summary", "category": request.category}
    about = {"category": request.category}
    return _summarise("summarise_category", CATEGORY_VERSION, _CATEGORY_DUTY, number, request, about, fields)


def summarise_episode(number: int, request: EnrichmentRequest) -> ModelCall:
    """Return the model call for the summary of a request's episode."""
    fields = {"type": "episode.summary", "episode_id": request.episode_id}
    return _summarise("summarise_episode", EPISODE_VERSION, _EPISODE_DUTY, number, request, {}, fields)


def _summarise(
    task: Task,
    version: str,
    duty: str,
    number: int,
    request: EnrichmentRequest,
    about: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> ModelCall:
    memories = _fitting(request.memories)
    data = {**about, "texts": [as_data(*one) for one in numbered(memories).items()]}
    asked = prompt(task, version, duty, data, _ANSWER, 4)
    return ModelCall([number], asked, lambda answer: [_read(answer, memories, [*about.values()], fields)])


def _fitting(memories: Sequence[ShownMemory]) -> list[ShownMemory]:
    """Return the newest memories that fit, at least one, oldest first."""
    fitting, room = list[ShownMemory](), TEXTS_CHARACTERS
    for memory in sorted(memories, key=lambda one: -one.created_at)[: SOURCES_MAX + 1]:
        shown = cut(memory, BESIDE_CHARACTERS)
        room -= len(shown.content)
        if room < 0:
            break
        fitting.insert(0, shown)
    return fitting


def _read(
    answer: Mapping[str, Any], memories: Sequence[ShownMemory], about: Sequence[str], fields: Mapping[str, Any]
) -> AnswerClaims:
    found = AnswerClaims()
    with found.claim():
        summary = check_text(answer["summary"], SUMMARY_CHARACTERS)
        texts = [f"{author(one)}\n{one.content}" for one in memories]
        times = date_words(one.created_at for one in memories)
        if sources_of(summary, [*about, *texts, times], []) is None:
            raise RejectedClaim("not_in_texts")
        first, *others = memories
        at = written_time(max(one.created_at for one in memories))
        found.drafts.append(Draft({**fields, "timestamp": at, "summary": summary}, first, others))
    return found
