"""REST interface of Zep (version 2), for requests with an equivalent: its clients can use recallflow by changing a URL.

Zep's requests name a session, and not its user. A session is therefore stored as a record: a message without text,
which is never ranked. The record is in the memory of the session's user, or in the memory `run:SESSION` if the session
has no user. For a session with a user, a second record in `run:SESSION` names the user."""

import contextlib
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import orjson
from fastapi import APIRouter
from pydantic import AfterValidator, AliasChoices, Field, model_validator

from recallflow.connectors.http import compatible
from recallflow.connectors.http.compatible import PAGED_MEMORIES_MAX, ClientCalls, pages
from recallflow.connectors.http.errors import Problem
from recallflow.connectors.http.handler import RequestHandler
from recallflow.connectors.http.mem0_requests import MESSAGES_MAX, RUN, USER, Fields, invalid, not_found, owner_of, read
from recallflow.connectors.logs.owners import ZEP_ROLES
from recallflow.errors import InvalidRecord
from recallflow.fields import Fraction, Role
from recallflow.graphs import Fact
from recallflow.queries import K_MAX
from recallflow.service import check_forgotten

SESSION_CHARACTERS = 120  # limit of a session's id, because the owner `run:ID` may have at most 128
FACTS_MAX, QUESTION_MESSAGES = 5, 4  # facts in a session's memory; the newest messages are the query for them
OK = {"message": "OK"}
Scope = Literal["facts", "messages", "edges", "episodes"]  # the first two are of sessions, the others of the graph


def _check_path_part(text: str) -> str:
    if "/" in text:
        raise ValueError('must not contain "/": later requests have it in their path')
    return text


PathPart = Annotated[str, AfterValidator(_check_path_part)]


class UrlParameters(Fields):
    """Parameters of a URL. Zep's client sends an absent parameter as an empty value."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, parameters: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in parameters.items() if value}


class MemoryParameters(UrlParameters):
    lastn: Annotated[int, Field(ge=0, le=1_000)] = 0
    min_rating: Annotated[Fraction, Field(alias="minRating")] = 0.0


class ZepPage(UrlParameters):
    """Part of a list. `cursor` is the number of a page, from 1 on, as in Zep's server."""

    limit: Annotated[int, Field(ge=0, le=1_000)] = 0
    cursor: Annotated[int, Field(ge=1)] = 1


class Changes(Fields):
    """Changes of a session or a message. `fact_rating_instruction` has no effect."""

    metadata: dict[str, Any] | None = None
    fact_rating_instruction: Any = Field(default=None, exclude=True)


class NewSession(Changes):
    session_id: Annotated[PathPart, Field(min_length=1)]
    user_id: PathPart | None = None


class Profile(Changes):
    user_id: PathPart = Field(default="", exclude=True)
    email: str | None = None
    first_name: str | None = None
    last_name: str | None = None


class NewMessage(Fields):
    """A message of a request. The last three fields are fields of a response, and have no effect."""

    content: str
    role: str | None = None
    role_type: str | None = None
    metadata: dict[str, Any] | None = None
    created_at: str | None = None
    uuid: str | None = None
    processed: Any = None
    token_count: Any = None
    updated_at: Any = None

    def event(self, session_id: str) -> dict[str, Any]:
        """Return the event: `role_type` becomes its role, and `role` the name of its author. Raise InvalidRecord."""
        kind = self.role_type or self.role or ""
        role = ZEP_ROLES.get(kind, kind)
        if role not in get_args(Role):
            raise invalid("role_type", f"is {kind!r}: give user, assistant, system, tool or function")
        optional = {"name": self.role, "metadata": self.metadata, "timestamp": self.created_at}
        event: dict[str, Any] = {"type": "message", "role": role, "content": self.content, "session_id": session_id}
        event |= {name: value for name, value in optional.items() if value}
        return event | {"id": self.uuid or str(uuid.uuid4())}


class NewMemory(Fields):
    """Messages of a session. No language model is called, so the instructions for it have no effect."""

    messages: Annotated[list[NewMessage], Field(min_length=1, max_length=MESSAGES_MAX)]
    fact_instruction: str | None = None
    summary_instruction: str | None = None
    return_context: bool = False


class ZepSearch(Fields):
    """Search of sessions, or of the graph: its requests use the second alias. The last three fields have no effect."""

    text: Annotated[str, Field(validation_alias=AliasChoices("text", "query"))]
    scope: Annotated[Scope, Field(validation_alias=AliasChoices("search_scope", "scope"))] = "facts"
    user_id: str | None = None
    session_ids: list[str] = []
    limit: Annotated[int, Field(ge=0)] = 0
    min_fact_rating: Fraction = 0.0
    min_score: Fraction = 0.0
    mmr_lambda: Any = None
    reranker: Any = None
    search_type: Any = None

    @property
    def min_relevance(self) -> float:
        return max(self.min_fact_rating, self.min_score)


class ZepCalls(ClientCalls):
    @property
    def session_id(self) -> str:
        return str(self.request.path_params["session_id"])

    @property
    def user_id(self) -> str:
        return owner_of({USER: self.request.path_params["user_id"]})[0]

    async def add_record(self, user_id: str, **metadata: Any) -> None:
        event = {"type": "message", "content": None, "id": str(uuid.uuid4()), "metadata": metadata}
        await self.apply(user_id, [event])

    async def records(self, user_id: str, **metadata: Any) -> list[dict[str, Any]]:
        """Return the records with these values, newest first. Messages, which have a session, are no records."""
        found = pages(self, user_id, {"metadata": metadata}, PAGED_MEMORIES_MAX)
        return [one.model_dump() async for page in found for one in page.memories if one.session_id is None]

    async def record(self, user_id: str, error: InvalidRecord, **metadata: Any) -> dict[str, Any]:
        """Return the newest record with these values. Raise `error` without one."""
        for record in await self.records(user_id, **metadata):
            return record
        raise error

    async def change(self, user_id: str, record: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change metadata of a memory. Return its new version."""
        metadata = {**(record["metadata"] or {}), **changes}
        await self.apply(user_id, [{"type": "memory.update", "memory_id": record["id"], "metadata": metadata}])
        return await self.version(user_id, record["id"])

    async def forget(self, user_id: str, **target: Any) -> None:
        [(_, receipt)] = await self.apply(user_id, [{"type": "memory.forget", **target}])
        if "memory_id" in target:
            check_forgotten(receipt)

    async def owner(self, session_id: str) -> str:
        """Return the owner of a session's memories. Raise InvalidRecord (`not_found`)."""
        run = session_run(session_id)
        error = not_found("session_id", f"no session has the id {session_id!r}: add_session makes one")
        record = await self.record(run, error, zep=["session", "owner"])
        return str(record["metadata"].get("owner", run))

    async def session(self, session_id: str) -> tuple[str, dict[str, Any]]:
        """Return the owner and the record of a session. Raise InvalidRecord (`not_found`)."""
        owner = await self.owner(session_id)
        error = not_found("session_id", f"the session {session_id!r} was erased with its user")
        return owner, await self.record(owner, error, zep="session", session_id=session_id)

    async def open_session(self, session: NewSession) -> str:
        """Store a session. Return the owner of its memories."""
        run = session_run(session.session_id)
        owner = owner_of({USER: session.user_id})[0] if session.user_id else run
        await self.add_record(owner, zep="session", session_id=session.session_id, metadata=session.metadata)
        if owner != run:
            await self.add_record(run, zep="owner", owner=owner)
        return owner

    async def messages(self, owner: str, limit: int) -> list[dict[str, Any]]:
        """Return the newest messages of the session, oldest first."""
        found = pages(self, owner, {"session_ids": [self.session_id], "kinds": ["message"]}, limit)
        return [memory.model_dump() async for page in found for memory in page.memories][::-1]


def session_run(session_id: str) -> str:
    """Return the owner `run:SESSION`. Raise InvalidRecord for an id that is too long."""
    if len(session_id) > SESSION_CHARACTERS:
        raise invalid("session_id", f"is longer than {SESSION_CHARACTERS} characters")
    return owner_of({RUN: session_id})[0]


def zep_object(record: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an object in Zep's format: the common fields of a record or memory, and `fields`."""
    return {"uuid": record["id"], "created_at": record["created_at"], "updated_at": record["updated_at"], **fields}


def shown_session(owner: str, record: Mapping[str, Any]) -> dict[str, Any]:
    session_id, metadata = record["metadata"]["session_id"], record["metadata"]["metadata"]
    user_id = None if owner == session_run(session_id) else owner
    return zep_object(record, session_id=session_id, user_id=user_id, metadata=metadata)


def shown_user(user_id: str, record: Mapping[str, Any]) -> dict[str, Any]:
    return zep_object(record, user_id=user_id, **{k: v for k, v in record["metadata"].items() if k != "zep"})


def shown_message(memory: Mapping[str, Any]) -> dict[str, Any]:
    role, content = memory["role"] or "user", memory["content"]
    return zep_object(memory, content=content, role=memory["name"] or role, role_type=role, metadata=memory["metadata"])


def shown_fact(memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return a memory as a fact. The fact's id contains the owner; the text of a message begins with its author."""
    author = f"{memory['name'] or memory['role']}: " if memory["kind"] == "message" else ""
    fact_id = urlsafe_b64encode(orjson.dumps([memory["owner"], memory["id"]])).decode().rstrip("=")
    fact = {"fact": author + memory["content"], "created_at": memory["created_at"], "rating": memory.get("score")}
    return {"uuid": fact_id, **fact}


async def add_session(calls: ZepCalls) -> dict[str, Any]:
    body = read(NewSession, await calls.body())
    with contextlib.suppress(InvalidRecord):
        await calls.session(body.session_id)
        raise Problem("invalid_event", f"{body.session_id!r} exists: update_session changes it", "session_id")
    await calls.open_session(body)
    return shown_session(*await calls.session(body.session_id))


async def get_session(calls: ZepCalls) -> dict[str, Any]:
    return shown_session(*await calls.session(calls.session_id))


async def update_session(calls: ZepCalls) -> dict[str, Any]:
    """Merge new metadata into that of a session."""
    body = read(Changes, await calls.body())
    owner, record = await calls.session(calls.session_id)
    merged = {**(record["metadata"]["metadata"] or {}), **(body.metadata or {})}
    return shown_session(owner, await calls.change(owner, record, {"metadata": merged}))


async def add_memory(calls: ZepCalls) -> dict[str, Any]:
    """Store each message as one memory, in a new session without a user if there is none."""
    body = read(NewMemory, await calls.body())
    try:
        owner = await calls.owner(calls.session_id)
    except InvalidRecord as error:
        if error.code != "not_found":
            raise
        owner = await calls.open_session(NewSession(session_id=calls.session_id))
    await calls.apply(owner, [message.event(calls.session_id) for message in body.messages])
    return OK | (await _memory(calls, owner, 1, 0.0) if body.return_context else {})


async def get_memory(calls: ZepCalls) -> dict[str, Any]:
    """Return the newest messages of a session, and facts of its owner that match them."""
    parameters: MemoryParameters = calls.parameters
    return await _memory(calls, await calls.owner(calls.session_id), parameters.lastn or 6, parameters.min_rating)


async def _memory(calls: ZepCalls, owner: str, message_count: int, min_relevance: float) -> dict[str, Any]:
    newest = await calls.messages(owner, max(message_count, QUESTION_MESSAGES))
    question = "\n".join(message["content"] for message in newest[-QUESTION_MESSAGES:])
    messages, facts = newest[-message_count:], list[dict[str, Any]]()
    if question.strip():
        message_ids = {message["id"] for message in messages}
        fields: dict[str, Any] = {"k": min(FACTS_MAX + len(message_ids), K_MAX), "session_id": calls.session_id}
        recalled = await calls.recall(owner, question, min_relevance=min_relevance, **fields)
        facts = [shown_fact(memory) for memory in recalled if memory["id"] not in message_ids][:FACTS_MAX]
    context = "\n".join(f"- {fact['fact']} ({fact['created_at']})" for fact in facts)
    texts = [fact["fact"] for fact in facts]
    return {"messages": [*map(shown_message, messages)], "relevant_facts": facts, "facts": texts, "context": context}


async def delete_memory(calls: ZepCalls) -> dict[str, Any]:
    """Forget a session with its memories."""
    owner = await calls.owner(calls.session_id)
    await calls.forget(owner, filter={"session_id": calls.session_id})
    for record in await calls.records(owner, zep="session", session_id=calls.session_id):
        await calls.forget(owner, memory_id=record["id"])
    await calls.forget(session_run(calls.session_id), filter=compatible.EVERYTHING)
    return OK


async def list_messages(calls: ZepCalls) -> dict[str, Any]:
    limit, page = calls.parameters.limit or 100, calls.parameters.cursor
    every = await calls.messages(await calls.owner(calls.session_id), PAGED_MEMORIES_MAX)
    if len(every) >= PAGED_MEMORIES_MAX:
        problem = f"has {PAGED_MEMORIES_MAX:,} messages or more: GET /memories returns them by page"
        raise Problem("too_large", problem, "session_id")
    messages = [*map(shown_message, every[(page - 1) * limit : page * limit])]
    return {"messages": messages, "row_count": len(messages), "total_count": len(every)}


async def _message(calls: ZepCalls) -> tuple[str, dict[str, Any]]:
    owner, message_id = await calls.owner(calls.session_id), calls.request.path_params["message_id"]
    message = await calls.version(owner, message_id)
    if message.get("session_id") != calls.session_id:
        raise not_found("message_uuid", f"no message of the session {calls.session_id!r} has the id {message_id!r}")
    return owner, message


async def get_message(calls: ZepCalls) -> dict[str, Any]:
    return shown_message((await _message(calls))[1])


async def update_message(calls: ZepCalls) -> dict[str, Any]:
    """Merge new metadata into that of a message."""
    body = read(Changes, await calls.body())
    return shown_message(await calls.change(*await _message(calls), body.metadata or {}))


async def search_sessions(calls: ZepCalls) -> dict[str, Any]:
    """Return the best memories of a user, or of sessions, as facts or messages."""
    body = read(ZepSearch, await calls.body())
    memories = await _search(calls, body)
    name, convert = ("message", shown_message) if body.scope == "messages" else ("fact", shown_fact)
    return {"results": [{name: convert(m), "session_id": m["session_id"], "score": m["score"]} for m in memories]}


async def _search(calls: ZepCalls, body: ZepSearch) -> list[dict[str, Any]]:
    if body.user_id:
        owners = {owner_of({USER: body.user_id})[0]}
    elif body.session_ids:
        owners = {await calls.owner(session_id) for session_id in body.session_ids[:K_MAX]}
    else:
        raise invalid("user_id", "is missing: give the user or session_ids")
    filters: dict[str, Any] = {"session_ids": body.session_ids} if body.session_ids else {}
    if body.scope == "messages":
        filters["kinds"] = ["message"]
    k = min(body.limit or calls.parameters.limit or 10, K_MAX)
    fields: dict[str, Any] = {"query": body.text, "k": k, "filters": filters, "min_relevance": body.min_relevance}
    memories = [memory for owner in sorted(owners) for memory in await calls.recall(owner, **fields)]
    return memories if len(owners) == 1 else sorted(memories, key=lambda memory: -memory["score"])[:k]


async def search_graph(calls: ZepCalls) -> dict[str, Any]:
    """Return relations of a user (edges), or the best memories (episodes)."""
    body = read(ZepSearch, await calls.body())
    if body.scope == "episodes":
        memories = await _search(calls, body)
        return {"episodes": [shown_message(m) | {"session_id": m["session_id"], "score": m["score"]} for m in memories]}
    query = {"type": "graph.facts", "query": body.text, "limit": min(body.limit or 10, K_MAX)}
    response = await calls.ask(owner_of({USER: body.user_id or ""})[0], query)
    facts = [] if response.graph_facts is None else response.graph_facts.facts
    return {"edges": [_edge(fact) for fact in facts if fact.score >= body.min_relevance]}


def _edge(fact: Fact) -> dict[str, Any]:
    """Return a relation as an edge. Its text is the newest sentence that states it."""
    sentence = fact.evidence[0].quote if fact.evidence else f"{fact.source_name} {fact.type} {fact.target_name}"
    return {
        "uuid": "|".join((fact.source, fact.type, fact.target)), "name": fact.type, "fact": sentence,
        "source_node_uuid": fact.source, "target_node_uuid": fact.target, "created_at": fact.ingested_at,
        "valid_at": fact.valid_from, "invalid_at": fact.valid_to,
        "episodes": [evidence.id for evidence in fact.evidence], "attributes": fact.properties, "score": fact.score,
    }  # fmt: skip


def _memory_of_fact(calls: ZepCalls) -> tuple[str, str]:
    """Return the owner and the id of the memory from the fact id in the path. Raise InvalidRecord (`not_found`)."""
    fact_id = calls.request.path_params["fact_id"]
    try:
        owner, memory_id = map(str, orjson.loads(urlsafe_b64decode(fact_id + "=" * (-len(fact_id) % 4))))
    except (ValueError, TypeError):
        raise not_found("fact_uuid", f"{fact_id!r} is not an id of a fact") from None
    return owner, memory_id


async def get_fact(calls: ZepCalls) -> dict[str, Any]:
    owner, memory_id = _memory_of_fact(calls)
    return {"fact": shown_fact(await calls.version(owner, memory_id) | {"owner": owner})}


async def delete_fact(calls: ZepCalls) -> str:
    owner, memory_id = _memory_of_fact(calls)
    await calls.forget(owner, memory_id=memory_id)
    return "OK"


async def add_user(calls: ZepCalls) -> dict[str, Any]:
    body = read(Profile, await calls.body())
    user_id = owner_of({USER: body.user_id})[0]
    if await calls.records(user_id, zep="user"):
        raise Problem("invalid_event", f"{user_id!r} exists: user.update changes it", "user_id")
    await calls.add_record(user_id, zep="user", **body.model_dump())
    return shown_user(user_id, await _profile(calls, user_id))


async def get_user(calls: ZepCalls) -> dict[str, Any]:
    return shown_user(calls.user_id, await _profile(calls, calls.user_id))


async def _profile(calls: ZepCalls, user_id: str) -> dict[str, Any]:
    error = not_found("user_id", f"no user has the id {user_id!r}: user.add makes one")
    return await calls.record(user_id, error, zep="user")


async def update_user(calls: ZepCalls) -> dict[str, Any]:
    """Change the given fields of a user, and merge new metadata into the old."""
    changes = read(Profile, await calls.body()).model_dump(exclude_unset=True)
    record = await _profile(calls, calls.user_id)
    if "metadata" in changes:
        changes["metadata"] = {**(record["metadata"]["metadata"] or {}), **(changes["metadata"] or {})}
    return shown_user(calls.user_id, await calls.change(calls.user_id, record, changes))


async def delete_user(calls: ZepCalls) -> dict[str, Any]:
    """Erase a user, and the records that name the user of a session."""
    for record in await calls.records(calls.user_id, zep="session"):
        await calls.forget(session_run(record["metadata"]["session_id"]), filter=compatible.EVERYTHING)
    await calls.apply(calls.user_id, [{"type": "user.erase"}])
    return OK


async def list_sessions(calls: ZepCalls) -> list[Any]:
    owner = calls.user_id
    sessions = [shown_session(owner, record) for record in await calls.records(owner, zep="session")]
    # zep-python expects a list of lists, and every other client a list.
    return [sessions] if calls.request.headers.get("x-fern-sdk-name") == "zep-python" else sessions


def routes(handler: RequestHandler) -> APIRouter:
    return compatible.routes(handler, "Zep", ZepCalls, "message", OPERATIONS)


_API, _SESSION, _USER = "/api/v2", "/api/v2/sessions/{session_id}", "/api/v2/users/{user_id}"
OPERATIONS: compatible.Operations = (
    (f"POST {_API}/sessions", add_session, Fields),
    (f"POST {_API}/sessions/search", search_sessions, ZepPage),
    (f"GET {_SESSION}", get_session, Fields),
    (f"PATCH {_SESSION}", update_session, Fields),
    (f"GET {_SESSION}/memory", get_memory, MemoryParameters),
    (f"POST {_SESSION}/memory", add_memory, Fields),
    (f"DELETE {_SESSION}/memory", delete_memory, Fields),
    (f"GET {_SESSION}/messages", list_messages, ZepPage),
    (f"GET {_SESSION}/messages/{{message_id}}", get_message, Fields),
    (f"PATCH {_SESSION}/messages/{{message_id}}", update_message, Fields),
    (f"GET {_API}/facts/{{fact_id}}", get_fact, Fields),
    (f"DELETE {_API}/facts/{{fact_id}}", delete_fact, Fields),
    (f"POST {_API}/graph/search", search_graph, ZepPage),
    (f"POST {_API}/users", add_user, Fields),
    (f"GET {_USER}", get_user, Fields),
    (f"PATCH {_USER}", update_user, Fields),
    (f"DELETE {_USER}", delete_user, Fields),
    (f"GET {_USER}/sessions", list_sessions, Fields),
)
