"""The costliest inputs that language models and embedding services have a part in, for `benchmarks/worst_case.py`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from recallflow import limits
from recallflow.control import Category, ControlHistory
from recallflow.events import content_hash
from recallflow.llm import Completion, Cost, Prompt
from recallflow.operators.enrichment.prompt_frame import CATEGORIES_MAX
from recallflow.operators.recall.model_calls import SUB_QUESTION_CHARACTERS, SUB_QUESTIONS_MAX

Event = dict[str, Any]

CATEGORIES = 1_000  # that there is a summary of
SUMMARY = "A summary of much that was said about word1, word7 and all the others. "
PARENTS = ("parent", "another parent")
OTHER = {"user_id": "other"}  # whose memories are large; among those of the first they would be in every answer
NEW_WORDS = {"user_id": "new words"}  # whose memories have a million different words
LARGE = [f"large {number}" for number in range(limits.SOURCES_MAX + 1)]  # memories of texts as long as may be
TENANT_FROM_MS = 0
AUTHORS_QUERY = " ".join(f"Author{number}" for number in range(900))
NESTED_FILTERS = {
    "any": [
        {"not": {"names": [f"Author{number + n}" for n in range(limits.FILTER_VALUES_MAX)]}}
        for number in range(limits.FILTER_CONDITIONS_MAX // 2 - 1)
    ],
    "entities": ["everybody"],
}


class Fluent:
    """A language model that answers at once, and makes as much work as it may."""

    name = "fluent"

    async def complete(self, _tenant_id: str, prompt: Prompt) -> Completion:
        shown = orjson.loads(prompt.user.split("<data>")[1].split("</data>")[0])
        match prompt.task:
            case "rewrite":
                output: Event = {"questions": _parts(shown["question"])}
            case "select_categories":
                output = {"categories": [one["name"] for one in shown["categories"]]}
            case _:
                output = {"sufficient": False}
        return Completion(output, Cost(1, 1, 1))


def text_of(large: str) -> str:
    """The text of a large memory."""
    return f"{large} " * ((limits.RECORD_BYTES - 1_000) // (len(large) + 1))


def _parts(question: str) -> list[str]:
    """Different parts of a question; of a short one the question with a word more."""
    size = SUB_QUESTION_CHARACTERS - 10
    starts = range(0, SUB_QUESTIONS_MAX * size, size)
    return [" ".join(f"{question[start:][:size] or question[:size]} word{start}".split()) for start in starts]


def decisions() -> ControlHistory:
    """A tenant with as many categories as a model is shown."""
    history = ControlHistory()
    for number in range(CATEGORIES_MAX):
        event = Category(type="category", tenant_id="bench", name=f"category {number}", description="tea " * 75)
        history.add(TENANT_FROM_MS, event)
    return history


# ---------------------------------------------------------------------- shapes


def shapes() -> Iterator[list[Event]]:
    """Summaries of very many categories, memories of which others were made, as many as may be, and large ones."""
    long = (SUMMARY * 400)[: limits.SUMMARY_CHARACTERS]
    for first in range(0, CATEGORIES, 50):
        summaries = [long, *[SUMMARY] * 49]
        yield [
            {"type": "category.summary", "category": f"category {number}", "summary": summary}
            for number, summary in enumerate(summaries, first)
        ]
    for large in LARGE:
        yield [{"type": "memory", "id": large, "content": text_of(large)} | OTHER]
    for number in range(50):
        words = " ".join(f"{number}z{n:x}" for n in range(limits.RECORD_BYTES // 8))
        yield [{"type": "memory", "id": f"words {number}", "content": words[: limits.RECORD_BYTES - 1_000]} | NEW_WORDS]
    for parent in PARENTS:
        yield [{"type": "memory", "id": parent, "content": f"{parent} of word1"}]
        source = {"memory_id": parent, "content_hash": content_hash(f"{parent} of word1")}
        yield [
            {"type": "memory", "id": f"{parent} {number}", "content": f"{parent} {number}", "derived_from": source}
            for number in range(limits.MADE_MAX)
        ]


# ---------------------------------------------------------------------- inputs


def recall_at(now_ms: int, query: str = "What of word1 and word7?", **fields: Any) -> list[Event]:
    """Return a recall query."""
    return [{"type": "recall", "query": query, "timestamp": now_ms} | fields]


def questions(now_ms: int) -> Iterator[tuple[str, list[Event]]]:
    """Questions that a language model has a part in."""
    recall = partial(recall_at, now_ms)
    known = " ".join(f"word{number}" for number in range(1_000))
    selecting: Event = {"select_categories": True, "check_sufficiency": True}
    yield "a question made into four", recall(rewrite=True)
    yield "one of known words, made into four", recall(known, rewrite=True, k=50, max_tokens=1_000_000)
    yield "one of names, made into four", recall(AUTHORS_QUERY, rewrite=True, k=50)
    yield "one with filters that nest, made into four", recall(rewrite=True, filters=NESTED_FILTERS)
    yield "one of the past, made into four", recall(rewrite=True, as_of={"ingestion_time": now_ms})
    yield "one with expansion, made into four", recall("@everybody", rewrite=True, k=50, strategy="hybrid_graph")
    yield "one about texts of 1 MB, made into four", recall("large", rewrite=True, k=50, **OTHER)
    yield "summaries selected and judged", recall(**selecting)
    yield "all three, in a large context", recall(known, rewrite=True, k=50, max_tokens=1_000_000, **selecting)


def writes(vector_of: str, episode_id: str) -> Iterator[tuple[str, list[Event]]]:
    """Events that models' answers become. `vector_of`: the text of the memory `m0`; `episode_id`: of a large episode
    of the session `long`."""
    first, *others = [{"memory_id": large, "content_hash": content_hash(text_of(large))} for large in LARGE]
    made = {"derived_from": first | {"others": others}} | OTHER
    edge = {"source": LARGE[0], "target": LARGE[1], "type": "contradicts"}
    category = {"type": "category.summary", "category": "work", "summary": "tea"}
    vector = {"embedding": [1.0] * 384, "model": "hash-384", "content_hash": content_hash(vector_of)}
    of_episode = {"session_id": "long", "episode_id": episode_id}
    summary = {"type": "episode.summary", "summary": "tea " * 4_000} | of_episode
    yield "a memory made from 51 of 1 MB", [{"type": "memory", "content": "tea"} | made]
    yield "a category's summary made from 51 of 1 MB", [category | made]
    yield "an edge made from 51 of 1 MB", [{"type": "graph.edges", "edges": [edge]} | made]
    yield "a vector of a memory", [{"type": "memory.embedding", "memory_id": "m0"} | vector]
    yield "the summary of a large episode", [summary]


def large_changes() -> Iterator[tuple[str, list[Event]]]:
    """What changes all that was made of a memory."""
    edited = {"type": "memory.update", "memory_id": PARENTS[0], "content": "no longer"}
    yield "an edit of what 100 were made of", [edited]
    yield "a forget of what 100 were made of", [{"type": "memory.forget", "memory_id": PARENTS[1]}]
