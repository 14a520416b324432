"""Refusals, credentials, pending queries and own writes of the clients, without a broker."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from typing import Any, cast

import pytest

from recallflow import ApiKey, CatchingUp, InvalidRecord, MemoryGet, Message, Recall, ReplyTo, UsageError, kafka_clients
from recallflow.client import AsyncRecallClient, KafkaVerbs, OwnWrites, PendingQueries, PendingQuery, RecallClient
from recallflow.control import Control
from recallflow.credentials import ApiKeyText, ClientCredentials, hash_secret, is_signed
from recallflow.parsing import parse, parse_control
from recallflow.records import Position
from recallflow.responses import ErrorBody, Response
from recallflow.verbs.arguments import ClientScope
from recallflow.verbs.results import new_future

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
    monkeypatch.setattr(kafka_clients, "METADATA_S", 0.01)


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
    assert (again, again.timestamp) == (event, 2_678_400_000)
    assert isinstance(again, Message)
    assert again.metadata == {
        "at": "memory.events:0:5", "when": "2026-01-02", "of": [1, 2.5, None, True], "by": {"topic": "t"}
    }  # fmt: skip


KEY = ApiKeyText.new()
TOKEN = "eyJh.eyJz.c2ln"
SECRET = "s" * 32
DECIDED_AT = Position("control.events", 0, 7)


class Sent(list[tuple[str, bytes, bytes, dict[str, bytes]]]):
    def decisions(self) -> list[Control]:
        return [parse_control(value) for topic, _, value, _ in self if topic == "control.events"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent = Sent()

    def produce(_: KafkaVerbs, topic: str, value: bytes, key: bytes, headers: Any) -> Any:
        sent.append((topic, key, value, dict(headers)))
        done = new_future()
        done.set_result(DECIDED_AT)
        return done

    monkeypatch.setattr(KafkaVerbs, "_produce", produce)
    return sent


@pytest.fixture
def opened() -> Iterator[Callable[..., RecallClient]]:
    made: list[RecallClient] = []

    def open_client(tenant_id: str = "acme", **given: Any) -> RecallClient:
        made.append(RecallClient(NOWHERE, tenant_id, options={"log_level": "0"}, **given))
        return made[-1]

    yield open_client
    for client in made:
        client.close()


Open = Callable[..., RecallClient]


def test_each_record_is_sent_with_the_key(sent: Sent, opened: Open) -> None:
    client = opened(api_key=KEY.text())
    client.add("x", user="ann")
    client.send(Message(type="message", tenant_id="acme", user_id="ann", content="x"))
    client.send(MemoryGet(type="memory.get", tenant_id="acme", user_id="ann", memory_id="m"))
    assert [headers for _, _, _, headers in sent] == [{"x-api-key": KEY.text().encode()}] * 3


def test_a_fresh_token_is_asked_for_each_record(sent: Sent, opened: Open) -> None:
    tokens = iter(["a.b.c", "d.e.f"])
    client = opened(token=lambda: next(tokens))
    client.add("x", user="ann")
    client.add("y", user="ann")
    assert [headers["authorization"] for *_, headers in sent] == [b"Bearer a.b.c", b"Bearer d.e.f"]
    opened(token=TOKEN).add("z", user="ann")
    assert sent[-1][3] == {"authorization": f"Bearer {TOKEN}".encode()}


def test_client_of_one_user_serves_no_other(sent: Sent, opened: Open) -> None:
    client = opened(api_key=KEY.text(), end_user="ann")
    client.add("x", user="ann")
    assert sent[0][3]["x-end-user-id"] == b"ann"
    for call in (client.add, client.search):
        with pytest.raises(UsageError, match="bob"):
            call("x", user="bob")
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"api_key": "secret-thing"}, "api_key"), ({"api_key": KEY.text() + "x"}, "api_key"),
        ({"api_key": 5}, "api_key"), ({"api_key": KEY.text(), "token": TOKEN}, "token"),
        ({"token": "secret thing"}, "token"), ({"token": ""}, "token"), ({"token": b"secret"}, "token"),
        ({"control_secret": "secret"}, "control_secret"),
    ],
)  # fmt: skip
def test_unusable_credentials_are_refused_without_being_shown(opened: Open, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        opened(**given)
    assert "secret-thing" not in str(raised.value)
    assert "secret thing" not in str(raised.value)
    assert KEY.secret not in str(raised.value)


def test_a_token_that_is_none_is_the_calls_error(sent: Sent, opened: Open) -> None:
    client = opened(token=lambda: "secret\r\nthing")
    for call in (client.add, client.search):
        with pytest.raises(UsageError, match="token") as raised:
            call("x", user="ann")
        assert "thing" not in str(raised.value)
    assert sent == []


def test_repr_of_credentials_hides_secrets() -> None:
    assert KEY.secret not in repr(ClientCredentials(KEY.text()))
    assert TOKEN not in repr(ClientCredentials(token=TOKEN))


def test_creating_a_key_sends_only_its_hash(sent: Sent, opened: Open) -> None:
    made = opened().create_key(projects=["p"], end_users=["ann", "bob"], by="kim", why="the shop")
    [event] = sent.decisions()
    assert event == made.event
    given = ApiKeyText.parse(made.text)
    assert given is not None
    assert isinstance(event, ApiKey)
    assert (event.name, event.hash) == (given.name, hash_secret(event.salt, given.secret))
    assert (event.projects, event.environments, event.end_users) == (["p"], None, ["ann", "bob"])
    assert (event.by, event.why, event.revoked, made.position) == ("kim", "the shop", False, DECIDED_AT)
    assert given.secret.encode() not in sent[0][2]
    assert given.secret not in repr(made)


def test_key_is_revoked_by_name_or_text(sent: Sent, opened: Open) -> None:
    client = opened("*")
    made = client.create_key(environments=["prod"], by="kim")
    client.revoke_key(made.event, why="leaked")
    _, event = sent.decisions()
    changed = {"revoked": True, "timestamp": event.timestamp, "by": None, "why": "leaked"}
    assert event == made.event.model_copy(update=changed)
    for other in (made.event.model_copy(update={"tenant_id": "acme"}), made.text, None):
        with pytest.raises(UsageError, match="ApiKey") as raised:
            client.revoke_key(other)  # type: ignore[arg-type]
        assert KEY.secret not in str(raised.value)
    assert len(sent) == 2


def test_signed_decisions_have_rising_times(sent: Sent, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)  # a clock that stands still
    client = opened(control_secret=SECRET)
    client.category("food", "what is eaten")
    client.graph_rollout("off", by="ops", why="x")
    client.create_key()
    times = [event.timestamp for event in sent.decisions()]
    assert times == [1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002]
    assert all(is_signed(SECRET, key, value, tuple(headers.items())) for _, key, value, headers in sent)
    opened().category("food", "what is eaten")
    assert sent[-1][3] == {}


def test_second_query_with_pending_id_is_refused() -> None:
    outstanding = PendingQueries()
    first = PendingQuery("q", b"acme/ann", 1.0, 0.0)
    outstanding.add(first)
    with pytest.raises(UsageError):
        outstanding.add(PendingQuery("q", b"acme/ann", 1.0, 0.0))
    outstanding.add(PendingQuery("q", b"acme/bob", 1.0, 0.0))  # another user's query
    assert outstanding.pop(b"acme/ann", "q") is first
    outstanding.add(PendingQuery("q", b"acme/ann", 1.0, 0.0))  # answered, so the id is free


def test_catching_up_error_is_an_exception_of_its_own() -> None:
    error = ErrorBody(code="catching_up", message="ask again")
    with pytest.raises(CatchingUp):
        Response(query_id="q", status="error", error=error).checked()


def at(offset: int, partition: int = 0) -> Position:
    return Position("memory.events", partition, offset)


def test_last_write_is_known_in_any_acknowledgement_order() -> None:
    known = OwnWrites()
    assert known.last("ann") is None
    for offset in (3, 5, 4):
        known.add("ann", at(offset))
    known.add("bob", at(9))
    assert (known.last("ann"), known.last("bob")) == (at(5), at(9))
    known.add("ann", at(1, partition=2))  # the topic was made anew, or has grown
    assert known.last("ann") == at(1, partition=2)


def test_only_the_latest_users_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.client.USERS_MAX", 2)
    known = OwnWrites()
    for number, user in enumerate(["ann", "bob", "ann", "cid"]):
        known.add(user, at(number))
    assert [known.last(user) for user in ("ann", "bob", "cid")] == [at(2), None, at(3)]


def test_a_write_is_known_before_its_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, is_on = new_future(), list[bool]()
    monkeypatch.setattr(kafka_clients, "METADATA_S", 0.01)  # no broker is there
    with closing(RecallClient("127.0.0.1:1", "acme")) as client:
        verbs = cast(KafkaVerbs, client._verbs)
        monkeypatch.setattr(verbs, "_send", lambda *_: sent)
        note = OwnWrites.add

        def looked(known: OwnWrites, user: str, position: Position) -> Position:
            is_on.append(put.done())
            return note(known, user, position)

        monkeypatch.setattr(OwnWrites, "add", looked)
        put = verbs.forget("m1", user="ann")
        sent.set_result(at(3))
        assert (is_on, put.result(), verbs._written("ann")) == ([False], at(3), at(3))
