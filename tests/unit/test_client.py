"""Refusals of the clients before anything is sent, without a broker."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from recallflow import InvalidRecord, MemoryGet, Message, Recall, ReplyTo, UsageError
from recallflow.brokers import exchange
from recallflow.client import AsyncRecallClient, RecallClient
from recallflow.parsing import parse
from recallflow.records import Position
from recallflow.verbs.arguments import ClientScope

Call = Callable[[Any], object]

NOWHERE = "127.0.0.1:1"
QUIET = {"log_level": "0"}
NAN = float("nan")
AT = Position("memory.events", 0, 5)
MESSAGE = Message(type="message", tenant_id="acme", user_id="ann", content="x")


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "METADATA_S", 0.01)


@pytest.fixture(scope="module")
def client() -> Iterator[RecallClient]:
    with RecallClient(NOWHERE, "acme", options=QUIET) as client:
        yield client


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        *(({"timeout_s": value}, UsageError, "timeout_s") for value in (0, NAN, float("inf"), 10**400, "10", True)),
        ({"timeout_s": 0.0004}, UsageError, "timeout_s"),  # 0 ms is for ever to librdkafka
        *(({"tenant": value}, InvalidRecord, "tenant_id") for value in ("", None)),
        ({"tenant": b"acme"}, UsageError, "tenant_id"),
        *(({"environment": value}, InvalidRecord, "environment") for value in ("a\nb", 5)),
        *(({"bootstrap_servers": value}, UsageError, "bootstrap_servers") for value in (None, " ")),
        *(({"bootstrap_servers": value}, UsageError, "65,535") for value in ("a:9092, b:65536", "[::1]:99999")),
        ({"query_topic": ""}, UsageError, "queries"),
        ({"control_topic": None}, UsageError, "control"),
        ({"memory_topic": 7}, UsageError, "memory"),
        ({"options": "acks=1"}, UsageError, "options"),
        ({"options": {"acks": "1"}}, UsageError, "acks"),
        ({"options": {"no.such.option": "1"}}, UsageError, "no.such"),
    ],
)
def test_client_refuses_arguments_that_no_call_could_use(arguments: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        RecallClient(**{"bootstrap_servers": NOWHERE, "tenant": "acme"} | arguments)


def adding(*given: Any, **fields: Any) -> Call:
    return lambda c: c.add(*given, **{"user": "ann"} | fields)


def searching(*given: Any, **fields: Any) -> Call:
    return lambda c: c.search(*given, **{"user": "ann"} | fields)


# Calls that are invalid as an event → the fields that the error names.
INVALID: list[tuple[Call, list[str]]] = [
    (adding(" ", user=""), ["user_id", "content"]),
    (adding("", user=None), ["user_id", "content"]),
    (adding("x", importance=2), ["importance"]),
    (adding({"role": "boss", "content": "x"}), ["role"]),
    (adding({"role": "user"}), ["content"]),
    (adding({"role": "user", "content": "x"}, timestamp="soon"), ["timestamp"]),
    (lambda c: c.update("m1", user="ann"), [""]),
    (lambda c: c.update("m1", None, user="ann"), [""]),
    (lambda c: c.forget(user="ann"), [""]),
    (lambda c: c.forget("m1", user="ann", where={"tag": "x"}), [""]),
    (lambda c: c.forget(user="ann", where="all"), ["filter"]),
    (searching(""), ["query"]),
    (searching("x", mode="best"), ["mode"]),
    (searching("x", k="ten"), ["k"]),
    (searching("x", after="soon"), ["wait_for"]),
    (lambda c: c.facts(user="ann", limit=0), ["limit"]),
    (lambda c: c.graph_status(user=""), ["user_id"]),
    (lambda c: c.graph_trace("", user="ann"), ["query"]),
    (lambda c: c.graph_trace("x", user="ann", traversal_depth=4), ["traversal_depth"]),
    (lambda c: c.graph_rollout("on", by="ops", why="x"), ["mode"]),
    (lambda c: c.graph_gate("yes", by="ops", why="x"), ["blocked"]),
    (lambda c: c.send(MESSAGE.model_copy(update={"content": 5})), ["content"]),
    (lambda c: c.send(MESSAGE.model_copy(update={"content": "x" * 2**20})), [""]),
]


@pytest.mark.parametrize(("call", "fields"), INVALID)
def test_invalid_event_names_every_wrong_field(client: RecallClient, call: Call, fields: list[str]) -> None:
    with pytest.raises(InvalidRecord) as raised:
        call(client)
    assert {one.field.partition(".")[0] for one in raised.value.fields} == {*fields}


# Calls that no event can be made of → what the error names.
UNUSABLE: list[tuple[Call, str]] = [
    (adding("x", importnace=1), "importnace"),
    (adding("x", tenant_id="other"), "tenant_id"),
    (adding("x", importance=NAN), "importance"),
    (adding("x", metadata={"a": object()}), r"metadata\.a"),
    (adding("x", metadata={"a": [NAN]}), r"metadata\.a\.0"),
    (adding("x", metadata={"a": 2**64}), r"metadata\.a"),
    (adding("x", metadata={5: "a"}), "metadata"),
    (adding("x", metadata={"a": nested(300)}), "metadata"),
    (adding("x", tags={"a"}), "tags"),
    (lambda c: c.update("m", b"x", user="ann", tags=[b"y"]), r"content: .*tags\.0: "),
    (adding("x\ud800"), "content"),
    (adding("x", user="ann\ud800"), "user_id"),
    *((adding(given), "message") for given in (5, [], ["x"])),
    (adding({"content": "x"}), "role"),
    (adding({"role": "user", "content": "x", "sesion": 1}), "sesion"),
    (adding({"role": "user", "content": "x"}, kind="fact"), "kind"),
    (adding("x", type="message"), "type"),
    (searching("x", type="memory.get"), "type"),
    (lambda c: c.update(None, user="ann", summary="x"), "memory_id"),
    (lambda c: c.forget(5, user="ann"), "memory_id"),
    (lambda c: c.forget(user="ann", where={"tag": "x"}, filter={"tag": "y"}), "where"),
    *((searching("x", after=given), "after") for given in (5, [5])),
    (searching("x", after=AT, wait_for="m:0:1"), "wait_for"),
    *((searching("x", timeout_s=given), "timeout_s") for given in (NAN, "5")),
    (searching("x", reply_to={"topic": "t"}), "reply_to"),
    (lambda c: c.facts(user="ann", entity="Bob"), "entity"),
    (lambda c: c.graph_rollout("off", by="", why="x"), "by"),
    (lambda c: c.graph_rollout("off", by="ops", why=None), "why"),
    (lambda c: c.send({"type": "message"}), "dict"),
    (lambda c: c.send(None), "NoneType"),
    (lambda c: c.ask("where?"), "str"),
    (lambda c: c.send(MESSAGE.model_copy(update={"metadata": {"a": NAN}})), r"metadata\.a"),
]


@pytest.mark.parametrize(("call", "named"), UNUSABLE)
def test_unusable_call_names_the_argument(client: RecallClient, call: Call, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        call(client)


def test_an_event_of_another_scope_is_not_sent(client: RecallClient) -> None:
    message = Message(type="message", tenant_id="acme", user_id="ann", content="x", environment="staging")
    with pytest.raises(UsageError, match="environment"):
        client.send(message)
    with pytest.raises(UsageError, match="tenant_id"):
        client.ask(MemoryGet(type="memory.get", tenant_id="other", user_id="ann", memory_id="m1"))


def test_only_queries_are_asked(client: RecallClient) -> None:
    message: Any = Message(type="message", tenant_id="acme", user_id="ann", content="x")
    with pytest.raises(UsageError, match="send"):
        client.ask(message)
    elsewhere = Recall(type="recall", tenant_id="acme", user_id="ann", query="x", reply_to=ReplyTo(topic="t"))
    with pytest.raises(UsageError, match="reply_to"):
        client.ask(elsewhere)


def test_a_closed_client_refuses_and_can_be_closed_again() -> None:
    client = RecallClient(NOWHERE, "acme", options=QUIET)
    client.close()
    client.close()
    for call in (lambda: client.add("x", user="ann"), lambda: client.search("x", user="ann")):
        with pytest.raises(UsageError):
            call()


# Calls with a wrong argument → the argument that the error suggests.
MISNAMED: list[tuple[Call, str, str]] = [
    (lambda c: c.add("x", usr="ann"), "add", "user"),
    (lambda c: c.get("m", usr="ann"), "get", "user"),
    (lambda c: c.stats(users="ann"), "stats", "user"),
    (searching("x", filtrs={}), "search", "filters"),
    (searching("x", max_token=9), "search", "max_tokens"),
    (searching("x", k=1, top_k=1), "search", "k"),
    (searching("x", user_id="ann"), "search", "user"),
    (adding("x", kind="fcat"), "kind", "fact"),
    (lambda c: c.update("m", user="ann", kind="Rule"), "kind", "rule"),
    (lambda c: [*c.each(usr="ann")], "each", "user"),
    (lambda _: RecallClient(NOWHERE, tenant_id="acme"), "RecallClient", "tenant"),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("call", "named", "meant"), MISNAMED)
def test_misnamed_argument_suggests_the_right_one(client: RecallClient, call: Call, named: str, meant: str) -> None:
    with pytest.raises((UsageError, TypeError), match=rf"{named}\b.*(did you mean|give) {meant}\b"):
        call(client)


def test_the_asyncio_client_refuses_alike() -> None:
    async def call() -> None:
        async with AsyncRecallClient(NOWHERE, "acme", options=QUIET) as client:
            await client.add(" ", user="ann")

    with pytest.raises(InvalidRecord, match="content"):
        asyncio.run(call())


@pytest.mark.parametrize("name", [name for name in vars(RecallClient) if not name.startswith("_") and name != "close"])
def test_both_clients_have_the_same_calls_with_one_documentation(name: str) -> None:
    waits, awaits = getattr(RecallClient, name), getattr(AsyncRecallClient, name)
    assert inspect.signature(waits) == inspect.signature(awaits)
    assert waits.__doc__ == awaits.__doc__
    assert waits.__doc__


def test_accepted_events_arrive_unchanged() -> None:
    given = {
        "content": "Grüße 🦦",
        "timestamp": datetime(1970, 2, 1, tzinfo=UTC),  # its milliseconds look like seconds
        "metadata": {"at": AT, "when": date(2026, 1, 2), "of": (1, 2.5, None, True), "by": ReplyTo(topic="t")},
    }
    event = ClientScope("acme", "prod").event("message", "ann", given)
    again = parse(event.model_dump_json(exclude_unset=True).encode())
    assert again == event
    assert again.timestamp == 2_678_400_000
    assert isinstance(again, Message)
    assert again.metadata == {
        "at": "memory.events:0:5", "when": "2026-01-02", "of": [1, 2.5, None, True], "by": {"topic": "t"}
    }  # fmt: skip
