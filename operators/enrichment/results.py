"""The result of a request: claims in a model's answer, the events derived from them, rejected claims, and failed tasks.

The main flow accepts all events of a result: invalid ones are rejected here."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import orjson

from recallflow.errors import InvalidRecord
from recallflow.events import EnrichmentRequest, EnrichmentResult, ShownMemory, TaskFailure
from recallflow.fields import parse_time
from recallflow.llm import Cost, Prompt, Task
from recallflow.parsing import parse
from recallflow.records import Position

CLAIMS_MAX = 200  # per answer; prompts ask for fewer
# Why a claim is rejected; docs/how-to/models.md has the meanings.
Reason = Literal[
    "unknown_id",
    "own_memory",
    "wrong_end",
    "no_evidence",
    "not_in_texts",
    "out_of_bounds",
    "low_confidence",
    "wrong_date",
    "empty",
    "too_long",
    "too_many",
    "duplicate",
    "unfit",
]
REFUSAL_REASONS: tuple[Reason, ...] = get_args(Reason)
PARTIAL_DEGRADE = "GRAPH_RELATIONSHIP_PARTIAL_DEGRADE"  # the metric code of all failed relationship tasks
RELATIONSHIPS = frozenset[Task](("classify", "extract", "resolve"))
_ID_DIGITS = 32


class Draft(NamedTuple):
    """An event without owner, id and provenance. The provenance will name the memory `source`, and the memories
    `others` that the model read with it. `source` is None for events whose own fields name their source."""

    fields: dict[str, Any]
    source: ShownMemory | None
    others: Sequence[ShownMemory] = ()


class RejectedClaim(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class AnswerClaims:
    """The event drafts and rejected claims of one answer for one request."""

    drafts: list[Draft] = field(default_factory=list)
    refused: Counter[Reason] = field(default_factory=Counter)

    @contextmanager
    def catch_rejection(self) -> Iterator[None]:
        """Catch and count the rejection of one claim, so that the next claim is read."""
        try:
            yield
        except RejectedClaim as refusal:
            self.refused[refusal.reason] += 1

    def within_limit(self, claims: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the claims to read, up to a limit that bounds the time of an answer. Count the rest as rejected."""
        if len(claims) > CLAIMS_MAX:
            self.refused["too_many"] += len(claims) - CLAIMS_MAX
        return claims[:CLAIMS_MAX]


class ModelCall(NamedTuple):
    """One call of a language model, for the requests with these numbers. `read` returns the claims for each request."""

    requests: Sequence[int]
    prompt: Prompt
    read: Callable[[Mapping[str, Any]], list[AnswerClaims]]


def check_share(number: float) -> float:
    """Return a confidence or weight. Raise RejectedClaim outside of 0 to 1."""
    if not 0 <= number <= 1:  # NaN is outside too
        raise RejectedClaim("out_of_bounds")
    return float(number)


def check_confidence(claim: Mapping[str, Any], minimum: float) -> float:
    """Return the confidence of a claim. Raise RejectedClaim below the minimum."""
    confidence = check_share(claim["confidence"])
    if confidence < minimum:
        raise RejectedClaim("low_confidence")
    return confidence


def check_text(text: str, max_characters: int) -> str:
    """Return a text on one line. Raise RejectedClaim if it is empty, too long, or has control characters."""
    line = " ".join(text.split())
    if not line:
        raise RejectedClaim("empty")
    if len(line) > max_characters:
        raise RejectedClaim("too_long")
    if not line.isprintable():
        raise RejectedClaim("unfit")
    return line


def check_time(text: str | None) -> int | None:
    """Return a model's date or time in epoch milliseconds. Raise RejectedClaim for an invalid one."""
    if text is None:
        return None
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise RejectedClaim("wrong_date") from None


_EXTRACTION_FAILED = "GRAPH_LLM_SEMANTIC_EXTRACTION_FAILED"
# Task → code of its failure in receipts, and effect of the failure.
MISSING_RESULTS: Mapping[Task, tuple[str, str]] = MappingProxyType(
    {
        "embed": ("EMBEDDING_FAILED", "the memory is found by its words, and not by its meaning"),
        "classify": ("GRAPH_LLM_CLASSIFICATION_FAILED", "contradictions of the memory were not searched"),
        "extract": (_EXTRACTION_FAILED, "the graph lacks the relations that the text states"),
        "resolve": (_EXTRACTION_FAILED, "other names of known entities stay separate entities"),
        "facts": ("FACT_EXTRACTION_FAILED", "the message is stored without extracted facts"),
        "categorise": ("CATEGORY_ASSIGNMENT_FAILED", "only rules assign a category to the memory"),
        "summarise_episode": ("EPISODE_SUMMARY_FAILED", "the episode keeps its previous summary"),
        "summarise_category": ("CATEGORY_SUMMARY_FAILED", "the category keeps its previous summary"),
    }
)


def failure(task: Task, why: str) -> TaskFailure:
    code, effect = MISSING_RESULTS[task]
    return TaskFailure(task=task, code=code, detail=f"{effect} ({why})")


class PositionedRequest(NamedTuple):
    position: Position
    request: EnrichmentRequest


class TaskResult(NamedTuple):
    """The result of one call for a request, or its failure. `version` is that of the prompt."""

    number: int
    task: Task
    claims: AnswerClaims
    spent: Cost
    model: str = ""
    version: str = ""
    failure: TaskFailure | None = None


def result(positioned: PositionedRequest, parts: Sequence[TaskResult]) -> EnrichmentResult:
    """Return the result of a request. Equal parts give equal bytes."""
    request = positioned.request
    events, refused = list[dict[str, Any]](), Counter[str]()
    for part in parts:
        refused.update(part.claims.refused)
        for draft in part.claims.drafts:
            event = _event(positioned, draft, part, len(events))
            if _is_valid(event):
                events.append(event)
            else:
                refused["unfit"] += 1
    asking = [one.spent for one in parts if one.task != "embed"]
    embedding = [one.spent for one in parts if one.task == "embed"]
    return EnrichmentResult(
        type="enrichment.result",
        tenant_id=request.tenant_id,
        user_id=request.user_id,
        environment=request.environment,
        timestamp=request.timestamp,
        request=str(positioned.position),
        source=request.source,
        memory_id=request.memories[0].memory_id,
        events=events,
        failures=[one.failure for one in parts if one.failure is not None],
        refused=dict(sorted(refused.items())),
        calls=sum(one.calls for one in asking),
        prompt_tokens=sum(one.prompt_tokens for one in asking),
        completion_tokens=sum(one.completion_tokens for one in asking),
        embedding_tokens=sum(one.prompt_tokens for one in embedding),
    )


def unanswered(positioned: PositionedRequest, why: str) -> EnrichmentResult:
    """Return the result of a request whose tasks all failed."""
    tasks = positioned.request.tasks
    parts = [TaskResult(0, task, AnswerClaims(), Cost(), failure=failure(task, why)) for task in tasks]
    return result(positioned, parts)


def _event(positioned: PositionedRequest, draft: Draft, part: TaskResult, number: int) -> dict[str, Any]:
    request = positioned.request
    owner = {"tenant_id": request.tenant_id, "user_id": request.user_id, "environment": request.environment}
    # A repeated call gives its events the same ids, so that they have no second effect.
    event_id = f"{sha256(str(positioned.position).encode()).hexdigest()[:_ID_DIGITS]}-{number}"
    event = {"id": event_id, **owner, **draft.fields}
    if draft.source is None:
        return event
    provenance = {
        **_source(draft.source),
        "others": [_source(one) for one in draft.others],
        "model": part.model,
        "prompt_version": part.version,
        "source": request.source,
    }
    return {**event, "derived_from": provenance}


def _source(memory: ShownMemory) -> dict[str, str]:
    return {"memory_id": memory.memory_id, "content_hash": memory.content_hash}


def _is_valid(event: dict[str, Any]) -> bool:
    """Return whether the main flow accepts the event. An invalid one would become a dead letter."""
    try:
        parse(orjson.dumps(event))
    except (InvalidRecord, orjson.JSONEncodeError):
        return False
    return True
