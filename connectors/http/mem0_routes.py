"""REST interface of mem0, for requests with an equivalent: its clients can use recallflow by changing a URL.

The routes are those of mem0's platform and of its open-source server, below /mem0/TENANT. No language model is called:
messages are stored unchanged."""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from fastapi import APIRouter

from recallflow.connectors.http import compatible
from recallflow.connectors.http import mem0_requests as requests
from recallflow.connectors.http.compatible import ClientCalls, pages
from recallflow.connectors.http.errors import Problem
from recallflow.connectors.http.handler import RequestHandler
from recallflow.connectors.http.mem0_requests import AGENT_LABEL, RUN, USER, IgnoredParameters
from recallflow.errors import InvalidRecord
from recallflow.events import MemoryAdd, Message
from recallflow.fields import format_time
from recallflow.queries import K_MAX
from recallflow.service import check_forgotten


def memory_in_path(calls: ClientCalls) -> tuple[str, str]:
    """Return the owner and the id of the memory in the path. Raise InvalidRecord (`not_found`)."""
    return requests.our_id(calls.request.path_params["memory_id"])


def mem0_memory(user_id: str, version: Mapping[str, Any]) -> dict[str, Any]:
    """Return a version of a memory in mem0's format."""
    metadata = {name: value for name, value in (version.get("metadata") or {}).items() if name != AGENT_LABEL}
    category, expiration = version.get("category"), {}
    if (expires_at := version.get("expires_at")) is not None:
        last_time = datetime.fromisoformat(expires_at) - timedelta(milliseconds=1)
        expiration = {"expiration_date": last_time.date().isoformat()}
    return {
        "id": requests.mem0_id(user_id, version["id"]), "memory": version["content"],
        **requests.shown_entities(user_id, version), "metadata": metadata or None,
        "categories": [category] if category else [], **_times(version), **expiration,
    }  # fmt: skip


def _times(version: Mapping[str, Any]) -> dict[str, Any]:
    return {name: version.get(name) for name in ("created_at", "updated_at")}


async def list_versions(calls: ClientCalls) -> list[dict[str, Any]]:
    """Return the versions of a memory in mem0's format, oldest first."""
    user_id, memory_id = memory_in_path(calls)
    versions = (await calls.ask(user_id, {"type": "memory.history", "memory_id": memory_id})).versions or []
    mem0_id = requests.mem0_id(user_id, memory_id)
    earlier = [None, *(version["content"] for version in versions)]
    return [
        {
            "id": f"{mem0_id}:{version['version']}", "memory_id": mem0_id, "old_memory": before,
            "new_memory": version["content"], "event": "ADD" if before is None else "UPDATE",
            **requests.shown_entities(user_id, version), **_times(version),
        }
        for version, before in zip(versions, earlier, strict=False)
    ]  # fmt: skip


async def add(calls: ClientCalls) -> dict[str, Any]:
    """Store each message as one memory."""
    body = requests.read(requests.Add, await calls.body())
    entities = requests.entities_only(body)
    user_id, shared = requests.owner_and_fields(entities, body.metadata)
    if body.timestamp is not None:
        shared["timestamp"] = format_time(round(body.timestamp * 1000))
    expires_at = requests.expires_at(body.expiration_date)
    events = [_event(message, expires_at) | shared | {"id": str(uuid.uuid4())} for message in body.messages]
    results = []
    for event, receipt in await calls.apply(user_id, events):
        content = event.text() if isinstance(event, Message) else cast(MemoryAdd, event).content
        result = {"id": requests.mem0_id(user_id, event.id or ""), "memory": content, "event": "ADD"}
        results.append(result if receipt is not None else result | {"status": "PENDING"})
    return {"results": results}


def _event(message: dict[str, Any], expires_at: str | None) -> dict[str, Any]:
    """Return the event of a message. An expiring one becomes a memory, because messages do not expire."""
    fields = {name: message[name] for name in ("role", "content", "name") if name in message}
    if expires_at is None:
        return {"type": "message"} | fields
    event = {"type": "memory", "kind": "message", "name": fields.get("name") or fields.get("role", "user")}
    return event | {"content": fields.get("content"), "expires_at": expires_at}


async def search(calls: ClientCalls) -> dict[str, Any]:
    body = requests.read(requests.Search, await calls.body())
    user_id, filters = _owner_and_filters(body)
    found = await calls.recall(user_id, body.query, body.threshold or 0.0, k=min(body.top_k, K_MAX), filters=filters)
    results = [mem0_memory(user_id, version) | {"score": version["score"]} for version in found]
    if body.fields is not None:
        results = [{name: value for name, value in result.items() if name in body.fields} for result in results]
    return {"results": results}


def _owner_and_filters(body: requests.Search | requests.GetAll) -> tuple[str, dict[str, Any]]:
    user_id, filters = requests.parse_filters(body)
    if body.categories:
        filters = filters | {"categories": body.categories}
    if isinstance(body, requests.GetAll):
        filters = filters | requests.date_filters(body.start_date, body.end_date)
    return user_id, filters


async def get_all(calls: ClientCalls) -> dict[str, Any]:
    """Return one page of an owner's memories, newest first. Expired ones count for page numbers, but are left out."""
    body: requests.GetAll = calls.parameters
    if calls.request.method != "GET":
        body = requests.read(requests.GetAll, await calls.body())
        body = body.model_copy(update=calls.parameters.model_dump(exclude_unset=True))
    user_id, filters = _owner_and_filters(body)
    first, end = (body.page - 1) * body.page_size, body.page * body.page_size
    if end > (limit := compatible.PAGED_MEMORIES_MAX):
        raise requests.invalid("page", f"ends after {limit:,} memories: narrow the request with filters")
    results: list[dict[str, Any]] = []
    position, count, size = 0, 0, 0
    async for page in pages(calls, user_id, filters, end):
        count = page.total
        for memory in page.memories:
            if position >= first and "expired" not in memory.marks:
                size += len(memory.content)
                results.append(mem0_memory(user_id, memory.model_dump()))
            position += 1
        if size > requests.PAGE_CHARACTERS:
            raise Problem("too_large", f"over {requests.PAGE_CHARACTERS:,} characters: give a smaller one", "page_size")
    following = f"?page={body.page + 1}&page_size={body.page_size}" if count > end else None
    previous = f"?page={body.page - 1}&page_size={body.page_size}" if body.page > 1 else None
    return {"count": count, "next": following, "previous": previous, "results": results}


async def get(calls: ClientCalls) -> dict[str, Any]:
    user_id, memory_id = memory_in_path(calls)
    return mem0_memory(user_id, await calls.version(user_id, memory_id))


async def update(calls: ClientCalls) -> dict[str, Any]:
    body = requests.read(requests.Update, await calls.body())
    user_id, memory_id = memory_in_path(calls)
    before = await calls.version(user_id, memory_id)
    changes: dict[str, Any] = {}
    if body.text is not None:
        changes["content"] = body.text
    if body.metadata is not None:
        agent = (before.get("metadata") or {}).get(AGENT_LABEL)
        changes["metadata"] = body.metadata | ({} if agent is None else {AGENT_LABEL: agent})
    if "expiration_date" in body.model_fields_set:
        changes["expires_at"] = requests.expires_at(body.expiration_date)
    await calls.apply(user_id, [{"type": "memory.update", "memory_id": memory_id} | changes])
    return mem0_memory(user_id, await calls.version(user_id, memory_id))


async def delete(calls: ClientCalls) -> dict[str, Any]:
    """Forget one memory, in all its versions."""
    if calls.parameters.delete_linked:
        raise Problem("invalid_event", "is not supported: delete each memory by its own id", "delete_linked")
    user_id, memory_id = memory_in_path(calls)
    [(_, receipt)] = await calls.apply(user_id, [{"type": "memory.forget", "memory_id": memory_id}])
    check_forgotten(receipt)
    return {"message": "Memory deleted successfully!"}


async def delete_all(calls: ClientCalls) -> dict[str, Any]:
    """Forget all memories of an owner, or of one session."""
    body: requests.Body = calls.parameters
    entities = requests.entities_only(body)
    user_id, kind = requests.owner_of(entities)
    if others := entities.keys() - {kind, RUN}:
        problem = f"is not supported here: delete by {USER}, by {USER} and {RUN}, or by one entity alone"
        raise requests.invalid(min(others), problem)
    condition = {"session_id": entities[RUN]} if kind != RUN and RUN in entities else compatible.EVERYTHING
    await calls.apply(user_id, [{"type": "memory.forget", "filter": condition}])
    return {"message": "Memories deleted successfully!"}


async def ping(calls: ClientCalls) -> dict[str, Any]:
    """Check the credentials, but not their permissions: a valid key may be for other users than `anyone`."""
    try:
        calls.check("anyone", {"type": "user.stats"})
    except InvalidRecord as error:
        if error.code != "forbidden":
            raise
    return {"status": "ok", "org_id": calls.tenant_id, "project_id": calls.environment, "user_email": None}


def routes(handler: RequestHandler) -> APIRouter:
    return compatible.routes(handler, "mem0", ClientCalls, "detail", OPERATIONS)


OPERATIONS: compatible.Operations = (
    ("GET /v1/ping/", ping, IgnoredParameters),
    ("POST /v3/memories/add/, POST /v1/memories/, POST /memories", add, IgnoredParameters),
    ("POST /v3/memories/search/, POST /v2/memories/search/, POST /v1/memories/search/", search, IgnoredParameters),
    ("POST /search", search, IgnoredParameters),
    ("POST /v3/memories/, POST /v2/memories/", get_all, requests.GetAll),
    ("GET /v1/memories/, GET /memories", get_all, requests.GetAll),
    ("DELETE /v1/memories/, DELETE /memories", delete_all, requests.Body),
    ("GET /v1/memories/{memory_id}/, GET /memories/{memory_id}", get, IgnoredParameters),
    ("PUT /v1/memories/{memory_id}/, PUT /memories/{memory_id}", update, IgnoredParameters),
    ("DELETE /v1/memories/{memory_id}/, DELETE /memories/{memory_id}", delete, requests.Delete),
    ("GET /v1/memories/{memory_id}/history/, GET /memories/{memory_id}/history", list_versions, IgnoredParameters),
)
