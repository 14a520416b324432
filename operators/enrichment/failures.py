"""Failure codes of tasks without an answer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from recallflow.enrichment import TaskFailure
from recallflow.llm import Task

PARTIAL_DEGRADE = "GRAPH_RELATIONSHIP_PARTIAL_DEGRADE"  # metric code of each failure of these tasks
RELATIONSHIPS = frozenset[Task](("classify", "extract", "resolve"))


class Lack(NamedTuple):
    """The code of a failed task in receipts, and the text about its missing result."""

    code: str
    text: str


LACKS: Mapping[Task, Lack] = MappingProxyType(
    {
        "classify": Lack(
            "GRAPH_LLM_CLASSIFICATION_FAILED", "whether the memory contradicts or replaces similar ones is not known"
        ),
        "extract": Lack("GRAPH_LLM_SEMANTIC_EXTRACTION_FAILED", "the graph has no relations that the text states"),
        "resolve": Lack(
            "GRAPH_LLM_SEMANTIC_EXTRACTION_FAILED", "other names of entities that are known stay entities of their own"
        ),
        "facts": Lack("FACT_EXTRACTION_FAILED", "the message is remembered as it stands, without facts beside it"),
        "categorise": Lack("CATEGORY_ASSIGNMENT_FAILED", "the memory has the category that rules give it, or none"),
        "summarise_category": Lack("CATEGORY_SUMMARY_FAILED", "the category keeps the summary it had"),
        "summarise_episode": Lack("EPISODE_SUMMARY_FAILED", "the episode keeps the summary it had"),
        "embed": Lack("EMBEDDING_FAILED", "the memory is found by its words, and not by its meaning"),
    }
)


def failure(task: Task, why: str) -> TaskFailure:
    """Return the failure of a task with its reason."""
    return TaskFailure(task=task, code=LACKS[task].code, detail=f"{LACKS[task].text} ({why})")
