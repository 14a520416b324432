"""The result of a request, with events that the main flow accepts."""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from recallflow.enrichment import EnrichmentRequest, EnrichmentResult, ShownMemory, TaskFailure
from recallflow.errors import InvalidRecord
from recallflow.llm import Spent, Task
from recallflow.operators.enrichment.claims import Draft, Found
from recallflow.operators.enrichment.failures import failure
from recallflow.parsing import parse
from recallflow.records import Position

_ID_DIGITS = 32


class Asked(NamedTuple):
    """A request and its position in the topic."""

    position: Position
    request: EnrichmentRequest


class Part(NamedTuple):
    """The result of one call for the request with a number, or its failure. `model` and `version` name the model and
    the prompt."""

    number: int
    task: Task
    found: Found
    spent: Spent
    model: str = ""
    version: str = ""
    failure: TaskFailure | None = None


def result(asked: Asked, parts: Sequence[Part]) -> EnrichmentResult:
    """Return the result of a request. Equal parts give equal bytes."""
    request = asked.request
    events, refused = list[dict[str, Any]](), Counter[str]()
    for part in parts:
        refused.update(part.found.refused)
        for draft in part.found.drafts:
            event = _event(asked, draft, part, len(events))
            if _is_valid(event):
                events.append(event)
            else:
                refused["unfit"] += 1
    asking, embedding = ([one.spent for one in parts if (one.task == "embed") is embeds] for embeds in (False, True))
    return EnrichmentResult(
        type="enrichment.result",
        tenant_id=request.tenant_id,
        user_id=request.user_id,
        environment=request.environment,
        timestamp=request.timestamp,
        request=str(asked.position),
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


def unanswered(asked: Asked, why: str) -> EnrichmentResult:
    """Return the result of a request whose tasks all failed."""
    tasks = asked.request.tasks
    return result(asked, [Part(0, task, Found(), Spent(), failure=failure(task, why)) for task in tasks])


def _event(asked: Asked, draft: Draft, part: Part, number: int) -> dict[str, Any]:
    request = asked.request
    owner = {"tenant_id": request.tenant_id, "user_id": request.user_id, "environment": request.environment}
    event = {"id": _event_id(asked.position, number), **owner, **draft.fields}
    if draft.about is None:
        return event
    made = {
        **_source(draft.about),
        "others": [_source(one) for one in draft.others],
        "model": part.model,
        "prompt_version": part.version,
        "source": request.source,
    }
    return {**event, "derived_from": made}


def _event_id(position: Position, number: int) -> str:
    """Return an id that is equal for each repetition of the same event."""
    return f"{sha256(str(position).encode()).hexdigest()[:_ID_DIGITS]}-{number}"


def _source(memory: ShownMemory) -> dict[str, str]:
    return {"memory_id": memory.memory_id, "content_hash": memory.content_hash}


def _is_valid(event: dict[str, Any]) -> bool:
    """Return whether the main flow accepts the event. An invalid one would become a dead letter."""
    try:
        parse(orjson.dumps(event))
    except (InvalidRecord, orjson.JSONEncodeError):
        return False
    return True
