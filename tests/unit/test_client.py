"""What the clients refuse before anything is sent. No broker: nothing here waits for one."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from recallflow import InvalidRecord, MemoryGet, Message, Recall, ReplyTo, UsageError
from recallflow.client import AsyncRecallClient, RecallClient
from recallflow.parsing import parse
from recallflow.records import Position
from recallflow.verbs.scope import Scope

NOWHERE = "127.0.0.1:1"
QUIET = {"log_level": "0"}
NAN = float("nan")
AT = Position("memory.events", 0, 5)
MESSAGE = Message(type="message", tenant_id="acme", user_id="ann", content="x")


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


@pytest.fixture(scope="module")
def client() -> Iterator[RecallClient]:
    with RecallClient(NOWHERE, "acme", options=QUIET) as client:
        yield client


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"tenant": ""}, InvalidRecord, "tenant_id: is empty; give some text"),
        ({"environment": "a\nb"}, InvalidRecord, "environment: is blank, or holds a control character"),
        ({"timeout_s": 0}, UsageError, "timeout_s must be a number of seconds above 0, .* not 0"),
        ({"timeout_s": float("nan")}, UsageError, "timeout_s must be a number of seconds .* not nan"),
        ({"timeout_s": float("inf")}, UsageError, "timeout_s must be a number of seconds .* not inf"),
        ({"timeout_s": 0.0004}, UsageError, "timeout_s must be"),  # 0 ms is for ever to librdkafka
        ({"timeout_s": 10**400}, UsageError, "timeout_s must be"),
        ({"timeout_s": "10"}, UsageError, "timeout_s must be a number of seconds .* not '10'"),
        ({"timeout_s": True}, UsageError, "timeout_s must be"),
        ({"tenant": None}, InvalidRecord, "tenant_id: "),
        ({"tenant": b"acme"}, UsageError, "tenant_id: bytes cannot be sent"),
        ({"environment": 5}, InvalidRecord, "environment: "),
        ({"bootstrap_servers": None}, UsageError, "bootstrap_servers must be text, not None"),
        ({"bootstrap_servers": " "}, UsageError, "bootstrap_servers must be text"),
        ({"bootstrap_servers": "a:9092, b:65536"}, UsageError, "b:65536: ports are 1 to 65,535"),
        ({"bootstrap_servers": "[::1]:99999"}, UsageError, "ports are 1 to 65,535"),
        ({"query_topic": ""}, UsageError, "the queries topic must be text"),
        ({"control_topic": None}, UsageError, "the control topic must be text"),
        ({"memory_topic": 7}, UsageError, "the memory topic must be text, not 7"),
        ({"options": "acks=1"}, UsageError, "options must map librdkafka's names"),
        ({"options": {"acks": "1"}}, UsageError, "acks cannot be set"),
        ({"options": {"no.such.option": "1"}}, UsageError, 'Kafka options: No such configuration property: "no.such'),
    ],
)
def test_what_no_call_could_succeed_with_is_refused(arguments: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        RecallClient(**{"bootstrap_servers": NOWHERE, "tenant": "acme"} | arguments)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda c: c.add(" ", user=""), InvalidRecord, "user_id: .*; content: is blank"),
        (lambda c: c.add("x", user="ann", importance=2), InvalidRecord, "importance: "),
        (lambda c: c.add("x", user="ann", importnace=1), UsageError, "memory has no field importnace"),
        (lambda c: c.add("x", user="ann", metadata={"a": object()}), UsageError, r"memory: metadata\.a: object cannot"),
        (lambda c: c.add("x", user="ann", tenant_id="other"), UsageError, "tenant_id is 'other', .* for 'acme'"),
        (lambda c: c.add({"role": "boss", "content": "x"}, user="ann"), InvalidRecord, "role: "),
        (
            lambda c: c.add({"role": "user", "content": "x"}, user="ann", timestamp="soon"),
            InvalidRecord,
            "timestamp: not a time",
        ),
        (lambda c: c.update("m1", user="ann"), InvalidRecord, "names no field to change"),
        (lambda c: c.update("m1", None, user="ann"), InvalidRecord, "names no field to change"),
        (lambda c: c.forget(user="ann"), InvalidRecord, "give either memory_id or filter"),
        (lambda c: c.forget("m1", user="ann", where={"tag": "x"}), InvalidRecord, "give either memory_id or filter"),
        (lambda c: c.add("x", user="ann", importance=NAN), UsageError, "memory: importance: nan is no number in JSON"),
        (lambda c: c.add("x", user="ann", metadata={"a": [NAN]}), UsageError, r"metadata\.a\.0: nan is no number"),
        (lambda c: c.add("x", user="ann", metadata={"a": 2**64}), UsageError, r"metadata\.a: .* beyond 64 bits"),
        (lambda c: c.add("x", user="ann", metadata={5: "a"}), UsageError, "metadata: the key 5 is no text"),
        (lambda c: c.add("x", user="ann", metadata={"a": nested(300)}), UsageError, "metadata.*more than 201 levels"),
        (lambda c: c.add("x", user="ann", tags={"a"}), UsageError, "tags: set cannot be sent; give text"),
        (
            lambda c: c.update("m", b"x", user="ann", tags=[b"y"]),
            UsageError,
            r"content: bytes .*; tags\.0: bytes cannot be sent",
        ),
        (lambda c: c.add("x\ud800", user="ann"), UsageError, "content: holds half a character"),
        (lambda c: c.add("x", user="ann\ud800"), UsageError, "user_id: holds half a character"),
        (lambda c: c.add("", user=None), InvalidRecord, "user_id: .*; content: "),
        (lambda c: c.add(5, user="ann"), UsageError, "give a text, a message .* or a list of messages, not int"),
        (lambda c: c.add([], user="ann"), UsageError, "the list of messages is empty"),
        (lambda c: c.add(["x"], user="ann"), UsageError, "give a text, a message .* not str"),
        (lambda c: c.add({"content": "x"}, user="ann"), UsageError, "a message needs its role"),
        (lambda c: c.add({"role": "user"}, user="ann"), InvalidRecord, "content: "),
        (lambda c: c.add({"role": "user", "content": "x", "sesion": 1}, user="ann"), UsageError, "has no field sesion"),
        (lambda c: c.add({"role": "user", "content": "x"}, user="ann", kind="fact"), UsageError, "has no field kind"),
        (lambda c: c.add("x", user="ann", type="message"), UsageError, "type is the call's own"),
        (lambda c: c.search("x", user="ann", type="memory.get"), UsageError, "type is the call's own"),
        (
            lambda c: c.update(None, user="ann", summary="x"),
            UsageError,
            "memory_id must be text or the Position .* not None",
        ),
        (lambda c: c.forget(5, user="ann"), UsageError, "memory_id must be text or the Position .* not 5"),
        (lambda c: c.forget(user="ann", where="all"), InvalidRecord, "filter: "),
        (
            lambda c: c.forget(user="ann", where={"tag": "x"}, filter={"tag": "y"}),
            UsageError,
            "are one thing",
        ),
        (lambda c: c.search("x", user="ann", after=5), UsageError, "after must be the Position of a write"),
        (lambda c: c.search("x", user="ann", after=[5]), UsageError, "after must be the Position of a write"),
        (lambda c: c.search("x", user="ann", after="soon"), InvalidRecord, "wait_for.*: not a position"),
        (
            lambda c: c.search("x", user="ann", after=AT, wait_for="m:0:1"),
            UsageError,
            "are one thing",
        ),
        (lambda c: c.search("x", user="ann", timeout_s=NAN), UsageError, "timeout_s must be a number of seconds"),
        (lambda c: c.search("x", user="ann", timeout_s="5"), UsageError, "timeout_s must be a number of seconds"),
        (lambda c: c.search("x", user="ann", k="ten"), InvalidRecord, "k: "),
        (lambda c: c.facts(user="ann", limit=0), InvalidRecord, "limit: "),
        (lambda c: c.facts(user="ann", entity="Bob"), UsageError, "graph.facts has no field entity"),
        (lambda c: c.graph_status(user=""), InvalidRecord, "user_id: "),
        (lambda c: c.graph_trace("", user="ann"), InvalidRecord, "query: "),
        (lambda c: c.graph_trace("x", user="ann", traversal_depth=4), InvalidRecord, "traversal_depth: "),
        (lambda c: c.graph_rollout("on", by="ops", why="x"), InvalidRecord, "mode: "),
        (lambda c: c.graph_rollout("off", by="", why="x"), UsageError, "by must be text, not ''"),
        (lambda c: c.graph_rollout("off", by="ops", why=None), UsageError, "why must be text, not None"),
        (lambda c: c.graph_gate("yes", by="ops", why="x"), InvalidRecord, "blocked: "),
        (lambda c: c.send({"type": "message"}), UsageError, "not an event but dict; give one of recallflow's"),
        (lambda c: c.send(None), UsageError, "not an event but NoneType"),
        (lambda c: c.ask("where?"), UsageError, "not an event but str"),
        (lambda c: c.send(MESSAGE.model_copy(update={"content": 5})), InvalidRecord, "content"),
        (lambda c: c.send(MESSAGE.model_copy(update={"metadata": {"a": NAN}})), UsageError, r"metadata\.a: nan is no"),
        (lambda c: c.send(MESSAGE.model_copy(update={"content": "x" * 2**20})), InvalidRecord, "over 1048576 bytes"),
        (lambda c: c.search("", user="ann"), InvalidRecord, "query: "),
        (lambda c: c.search("x", user="ann", mode="best"), InvalidRecord, "mode: "),
        (lambda c: c.search("x", user="ann", reply_to={"topic": "t"}), UsageError, "reply_to: .* use send"),
    ],
)
def test_a_wrong_call_says_every_wrong_field(
    client: RecallClient, call: Callable[[RecallClient], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call(client)


def test_an_event_of_another_scope_is_not_sent(client: RecallClient) -> None:
    message = Message(type="message", tenant_id="acme", user_id="ann", content="x", environment="staging")
    with pytest.raises(UsageError, match="environment is 'staging', and this client is for 'prod'"):
        client.send(message)
    with pytest.raises(UsageError, match="tenant_id is 'other'"):
        client.ask(MemoryGet(type="memory.get", tenant_id="other", user_id="ann", memory_id="m1"))


def test_only_queries_are_asked(client: RecallClient) -> None:
    message: Any = Message(type="message", tenant_id="acme", user_id="ann", content="x")
    with pytest.raises(UsageError, match=r"message asks nothing: use send"):
        client.ask(message)
    elsewhere = Recall(type="recall", tenant_id="acme", user_id="ann", query="x", reply_to=ReplyTo(topic="t"))
    with pytest.raises(UsageError, match="reply_to"):
        client.ask(elsewhere)


def test_a_closed_client_refuses_and_can_be_closed_again() -> None:
    client = RecallClient(NOWHERE, "acme", options=QUIET)
    client.close()
    client.close()
    for call in (lambda: client.add("x", user="ann"), lambda: client.search("x", user="ann")):
        with pytest.raises(UsageError, match="the client is closed"):
            call()


def test_the_asyncio_client_refuses_alike() -> None:
    async def call() -> None:
        async with AsyncRecallClient(NOWHERE, "acme", options=QUIET) as client:
            await client.add(" ", user="ann")

    with pytest.raises(InvalidRecord, match="content: is blank"):
        asyncio.run(call())


@pytest.mark.parametrize("name", [name for name in vars(RecallClient) if not name.startswith("_") and name != "close"])
def test_both_clients_have_the_same_calls_with_one_documentation(name: str) -> None:
    waits, awaits = getattr(RecallClient, name), getattr(AsyncRecallClient, name)
    assert inspect.signature(waits) == inspect.signature(awaits)
    assert waits.__doc__ == awaits.__doc__
    assert waits.__doc__


def test_whatever_is_refused_by_nobody_arrives_as_it_was_given() -> None:
    """Times as times, our own models, positions, texts in any script, and nothing dropped."""
    given = {
        "content": "Grüße 🦦",
        "timestamp": datetime(1970, 2, 1, tzinfo=UTC),  # its milliseconds look like seconds
        "metadata": {"at": AT, "when": date(2026, 1, 2), "of": (1, 2.5, None, True), "by": ReplyTo(topic="t")},
    }
    event = Scope("acme", "prod").event("message", "ann", given)
    again = parse(event.model_dump_json(exclude_unset=True).encode())
    assert again == event
    assert again.timestamp == 2_678_400_000
    assert isinstance(again, Message)
    assert again.metadata == {
        "at": "memory.events:0:5", "when": "2026-01-02", "of": [1, 2.5, None, True], "by": {"topic": "t"}
    }  # fmt: skip
