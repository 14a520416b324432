"""What the clients refuse before anything is sent. No broker: nothing here waits for one."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recallflow import InvalidRecord, MemoryGet, Message, Recall, ReplyTo, UsageError
from recallflow.client import AsyncRecallClient, RecallClient

NOWHERE = "127.0.0.1:1"
QUIET = {"log_level": "0"}


@pytest.fixture(scope="module")
def client() -> Iterator[RecallClient]:
    with RecallClient(NOWHERE, "acme", options=QUIET) as client:
        yield client


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"tenant_id": ""}, InvalidRecord, "tenant_id: .*at least 1 character"),
        ({"environment": "a\nb"}, InvalidRecord, "environment: holds a control character"),
        ({"timeout_s": 0}, UsageError, "timeout_s must be above 0, not 0"),
        ({"options": {"acks": "1"}}, UsageError, "acks cannot be set"),
        ({"options": {"no.such.option": "1"}}, UsageError, 'Kafka options: No such configuration property: "no.such'),
    ],
)
def test_what_no_call_could_succeed_with_is_refused(arguments: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        RecallClient(**{"bootstrap_servers": NOWHERE, "tenant_id": "acme"} | arguments)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda c: c.remember("", " "), InvalidRecord, "user_id: .*; content: is blank"),
        (lambda c: c.remember("ann", "x", importance=2), InvalidRecord, "importance: "),
        (lambda c: c.remember("ann", "x", importnace=1), UsageError, "memory has no field importnace"),
        (lambda c: c.remember("ann", "x", metadata={"a": object()}), UsageError, "memory: "),
        (lambda c: c.remember("ann", "x", tenant_id="other"), UsageError, "tenant_id is 'other', .* for 'acme'"),
        (lambda c: c.message("ann", "x", role="boss"), InvalidRecord, "role: "),
        (lambda c: c.message("ann", "x", timestamp="soon"), InvalidRecord, "timestamp: not a time"),
        (lambda c: c.update("ann", "m1"), InvalidRecord, "names no field to change"),
        (lambda c: c.update("ann", "m1", content=None), InvalidRecord, "content: cannot be cleared"),
        (lambda c: c.forget("ann"), InvalidRecord, "give either memory_id or filter"),
        (lambda c: c.forget("ann", "m1", where={"tag": "x"}), InvalidRecord, "give either memory_id or filter"),
        (lambda c: c.recall("ann", ""), InvalidRecord, "query: "),
        (lambda c: c.recall("ann", "x", mode="best"), InvalidRecord, "mode: "),
        (lambda c: c.recall("ann", "x", reply_to={"topic": "t"}), UsageError, "reply_to: .* use send"),
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
    for call in (lambda: client.remember("ann", "x"), lambda: client.recall("ann", "x")):
        with pytest.raises(UsageError, match="the client is closed"):
            call()


def test_the_asyncio_client_refuses_alike() -> None:
    async def call() -> None:
        async with AsyncRecallClient(NOWHERE, "acme", options=QUIET) as client:
            await client.remember("ann", " ")

    with pytest.raises(InvalidRecord, match="content: is blank"):
        asyncio.run(call())


@pytest.mark.parametrize("name", ["remember", "message", "update", "forget", "send", "recall", "ask"])
def test_both_clients_have_the_same_calls_with_one_documentation(name: str) -> None:
    waits, awaits = getattr(RecallClient, name), getattr(AsyncRecallClient, name)
    assert inspect.signature(waits) == inspect.signature(awaits)
    assert waits.__doc__ == awaits.__doc__
    assert waits.__doc__
