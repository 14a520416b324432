"""What mem0's operations do here. No language model is asked: messages are stored as they stand."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

from recallflow.connectors.http.errors import Problem
from recallflow.connectors.http.mem0 import bodies
from recallflow.connectors.http.mem0.calls import Calls
from recallflow.connectors.http.mem0.entities import (
    AGENT_LABEL,
    RUN,
    USER,
    invalid,
    mem0_id,
    our_id,
    owned,
    owner_of,
)
from recallflow.connectors.http.mem0.filters import Asked, asked, entities_alone
from recallflow.connectors.http.mem0.shown import history, shown
from recallflow.events import MemoryAdd, MemoryEvent, Message
from recallflow.fields import EPOCH_MS_MAX, format_time
from recallflow.queries import K_MAX
from recallflow.responses import MemoryPage
from recallflow.service import check_forgotten

_KEPT = ("role", "content", "name")  # of a message
_EVER = format_time(EPOCH_MS_MAX)


async def add(calls: Calls, body: bodies.Add) -> dict[str, Any]:
    """Each message becomes one memory."""
    whose = owned(entities_alone(body.filters, body.entities), body.metadata)
    shared = dict(whose.fields)
    if body.timestamp is not None:
        shared["timestamp"] = format_time(round(body.timestamp * 1000))
    expires_at = bodies.expires_at(body.expiration_date)
    events = [_event(message, expires_at) | shared | {"id": str(uuid.uuid4())} for message in body.messages]
    results = [
        {"id": mem0_id(whose.user_id, event.id or ""), "memory": _text(event), "event": "ADD"}
        | ({} if receipt is not None else {"status": "PENDING"})
        for event, receipt in await calls.apply(whose.user_id, events)
    ]
    return {"results": results}


def _event(message: dict[str, Any], expires_at: str | None) -> dict[str, Any]:
    """A message; one that is to expire is stored as a memory, as messages do not."""
    kept = {name: message[name] for name in _KEPT if name in message}
    if expires_at is None:
        return {"type": "message"} | kept
    author = kept.get("name") or kept.get("role", "user")
    return {
        "type": "memory",
        "kind": "message",
        "name": author,
        "content": kept.get("content"),
        "expires_at": expires_at,
    }


def _text(event: MemoryEvent) -> str:
    if isinstance(event, Message):
        return event.text()
    return event.content if isinstance(event, MemoryAdd) else ""


async def search(calls: Calls, body: bodies.Search) -> dict[str, Any]:
    """The best memories, each with its score."""
    user_id, filters = _narrowed(body)
    query = {"type": "recall", "query": body.query, "k": min(body.top_k, K_MAX), "filters": filters}
    response = await calls.ask(user_id, query)
    recalled = {memory.id: memory.relevance for memory in response.memories or []}
    wanted = [memory_id for memory_id, sure in recalled.items() if sure >= (body.threshold or 0.0)]
    results = [
        shown(user_id, version) | {"score": recalled[version["id"]]}
        for version in await calls.versions(user_id, wanted)
        if version is not None
    ]
    if body.fields is not None:
        results = [{name: value for name, value in result.items() if name in body.fields} for result in results]
    return {"results": results}


def _narrowed(body: bodies.Search | bodies.GetAll) -> Asked:
    """Whose memories, and which, with what is asked for beside the filters."""
    user_id, filters = asked(body.filters, body.entities)
    if body.categories:
        filters = filters | {"categories": body.categories}
    if isinstance(body, bodies.GetAll):
        filters = filters | bodies.between(body.start_date, body.end_date)
    return Asked(user_id, filters)


async def get_all(calls: Calls, body: bodies.GetAll) -> dict[str, Any]:
    """One page of an owner's memories, the newest first. What has expired is counted, and left out."""
    user_id, filters = _narrowed(body)
    first, behind = (body.page - 1) * body.page_size, body.page * body.page_size
    if behind > bodies.DEEPEST:
        raise invalid("page", f"ends behind {bodies.DEEPEST:,} memories: narrow it down with filters")
    results: list[dict[str, Any]] = []
    place, count, size = 0, 0, 0
    async for page in _pages(calls, user_id, filters, behind):
        count = page.total
        for memory in page.memories:
            if place >= first and "expired" not in memory.marks:
                size += len(memory.content)
                results.append(shown(user_id, memory.model_dump()))
            place += 1
        if size > bodies.PAGE_CHARACTERS:
            raise Problem("too_large", f"over {bodies.PAGE_CHARACTERS:,} characters: give a smaller one", "page_size")
    following = body.page + 1 if count > behind else None
    before = body.page - 1 if body.page > 1 else None
    return {"count": count, "next": _link(following, body), "previous": _link(before, body), "results": results}


async def _pages(calls: Calls, user_id: str, filters: dict[str, Any], most: int) -> AsyncIterator[MemoryPage]:
    """The pages of an owner's memories, up to so many of these."""
    query: dict[str, Any] = {"type": "memories.list", "filters": filters}
    while most > 0:
        response = await calls.ask(user_id, query | {"limit": min(most, bodies.PAGE_MAX)})
        page = response.memory_page
        if page is None:
            return
        yield page
        if page.after is None:
            return
        most -= len(page.memories)
        query["after"] = page.after


def _link(page: int | None, body: bodies.GetAll) -> str | None:
    return None if page is None else f"?page={page}&page_size={body.page_size}"


async def get(calls: Calls, given: str) -> dict[str, Any]:
    """One memory."""
    user_id, memory_id = our_id(given)
    return shown(user_id, await calls.version(user_id, memory_id))


async def update(calls: Calls, given: str, body: bodies.Update) -> dict[str, Any]:
    """A new version of a memory, and what it is then."""
    user_id, memory_id = our_id(given)
    before = await calls.version(user_id, memory_id)
    changes: dict[str, Any] = {}
    if body.text is not None:
        changes["content"] = body.text
    if body.metadata is not None:
        agent = (before.get("metadata") or {}).get(AGENT_LABEL)
        changes["metadata"] = body.metadata | ({} if agent is None else {AGENT_LABEL: agent})
    if "expiration_date" in body.model_fields_set:
        changes["expires_at"] = bodies.expires_at(body.expiration_date)
    await calls.apply(user_id, [{"type": "memory.update", "memory_id": memory_id} | changes])
    return shown(user_id, await calls.version(user_id, memory_id))


async def delete(calls: Calls, given: str) -> dict[str, Any]:
    """Forgets one memory, in all its versions."""
    user_id, memory_id = our_id(given)
    [(_, receipt)] = await calls.apply(user_id, [{"type": "memory.forget", "memory_id": memory_id}])
    check_forgotten(receipt)
    return {"message": "Memory deleted successfully!"}


async def delete_all(calls: Calls, body: bodies.DeleteAll) -> dict[str, Any]:
    """Forgets all memories of an owner, or those of one session."""
    entities = entities_alone(body.filters, body.entities)
    user_id, kind = owner_of(entities)
    if others := entities.keys() - {kind, RUN}:
        raise invalid(min(others), f"is not supported here: delete by {USER}, by {USER} and {RUN}, or by one alone")
    which = {"session_id": entities[RUN]} if kind != RUN and RUN in entities else {"older_than": _EVER}
    await calls.apply(user_id, [{"type": "memory.forget", "filter": which}])
    return {"message": "Memories deleted successfully!"}


async def list_versions(calls: Calls, given: str) -> list[dict[str, Any]]:
    """All versions of one memory."""
    user_id, memory_id = our_id(given)
    response = await calls.ask(user_id, {"type": "memory.history", "memory_id": memory_id})
    return history(user_id, response.versions or [])
