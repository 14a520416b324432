"""The language model calls that requests need, for one memory each or for several.

Facts and categories of many messages can be found in one call, which pays for instructions and schema once.
Relationships are classified one memory per call: each memory needs its own neighbours in the prompt, and verdicts on
other pairs would influence the answer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from recallflow.enrichment import EnrichmentRequest
from recallflow.llm import Task
from recallflow.operators.enrichment.categorise import categorise
from recallflow.operators.enrichment.claims import Step
from recallflow.operators.enrichment.classify import classify
from recallflow.operators.enrichment.extract import extract
from recallflow.operators.enrichment.facts import facts
from recallflow.operators.enrichment.resolve import resolve
from recallflow.operators.enrichment.shown import CHARACTERS
from recallflow.operators.enrichment.summarise import summarise_category, summarise_episode

BATCH_MAX = 16  # messages per call; the answers for more would be truncated
BATCH_CHARACTERS = 24_000  # of all messages of a call
_BATCHED: tuple[Task, ...] = ("facts", "categorise")


class Thresholds(NamedTuple):
    """The least confidence of relationships and resolved entities, and of other results."""

    relationship_confidence: float = 0.70
    semantic_confidence: float = 0.60


def plan(requests: Sequence[EnrichmentRequest], thresholds: Thresholds, categories: Mapping[str, str]) -> list[Step]:
    """Return the calls for the requests of one owner and session, in a deterministic order."""
    steps = [
        step
        for number, request in enumerate(requests)
        for task in request.tasks
        if (step := _of_one(task, number, request, thresholds)) is not None
    ]
    for task in _BATCHED:
        for numbers in _batches(task, requests):
            steps += _of_many(task, numbers, requests, thresholds, categories)
    return steps


def alone(
    step: Step, requests: Sequence[EnrichmentRequest], thresholds: Thresholds, categories: Mapping[str, str]
) -> list[Step]:
    """Return one call per request in place of a call for several."""
    task = step.prompt.task
    return [one for number in step.requests for one in _of_many(task, [number], requests, thresholds, categories)]


def _of_one(task: Task, number: int, request: EnrichmentRequest, thresholds: Thresholds) -> Step | None:
    match task:
        case "classify":
            return classify(number, request, thresholds.relationship_confidence)
        case "extract":
            return extract(number, request, thresholds.semantic_confidence)
        case "resolve":
            return resolve(number, request, thresholds.relationship_confidence)
        case "summarise_category":
            return summarise_category(number, request)
        case "summarise_episode":
            return summarise_episode(number, request)
    return None


def _of_many(
    task: Task,
    numbers: Sequence[int],
    requests: Sequence[EnrichmentRequest],
    thresholds: Thresholds,
    categories: Mapping[str, str],
) -> list[Step]:
    chosen = [requests[number] for number in numbers]
    if task == "facts":
        return [facts(numbers, chosen, thresholds.semantic_confidence)]
    return [categorise(numbers, chosen, categories, thresholds.semantic_confidence)] if categories else []


def _batches(task: Task, requests: Sequence[EnrichmentRequest]) -> Iterator[list[int]]:
    """Yield the numbers of the requests for a task, in groups of one call."""
    batch, room = list[int](), BATCH_CHARACTERS
    for number, request in enumerate(requests):
        if task not in request.tasks:
            continue
        size = min(len(request.memories[0].content), CHARACTERS)
        if batch and (size > room or len(batch) == BATCH_MAX):
            yield batch
            batch, room = [], BATCH_CHARACTERS
        batch.append(number)
        room -= size
    if batch:
        yield batch
