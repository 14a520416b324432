"""Credentials of clients, which no message shows; records are caught before the broker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recallflow import ApiKey, MemoryGet, Message, UsageError
from recallflow.brokers import exchange
from recallflow.client import RecallClient
from recallflow.client.kafka import Credentials, KafkaVerbs
from recallflow.control import Control
from recallflow.credentials import ApiKeyText, hash_of, is_signed
from recallflow.parsing import parse_control
from recallflow.records import Position
from recallflow.verbs.results import new_future

NOWHERE = "127.0.0.1:1"
KEY = ApiKeyText.new()
TOKEN = "eyJh.eyJz.c2ln"
SECRET = "s" * 32
AT = Position("control.events", 0, 7)


class Sent(list[tuple[str, bytes, bytes, dict[str, bytes]]]):
    def decisions(self) -> list[Control]:
        return [parse_control(value) for topic, _, value, _ in self if topic == "control.events"]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "METADATA_S", 0.01)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent = Sent()

    def produce(_: KafkaVerbs, topic: str, value: bytes, key: bytes, headers: Any) -> Any:
        sent.append((topic, key, value, dict(headers)))
        done = new_future()
        done.set_result(AT)
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


def test_without_credentials_none_are_sent(sent: Sent, opened: Open) -> None:
    opened().add("x", user="ann")
    assert sent[0][3] == {}


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
    assert KEY.secret not in repr(Credentials(KEY.text()))
    assert TOKEN not in repr(Credentials(token=TOKEN))


def test_creating_a_key_sends_only_its_hash(sent: Sent, opened: Open) -> None:
    made = opened().create_key(projects=["p"], end_users=["ann", "bob"], by="kim", why="the shop")
    [event] = sent.decisions()
    assert event == made.event
    given = ApiKeyText.parse(made.text)
    assert given is not None
    assert isinstance(event, ApiKey)
    assert (event.name, event.hash) == (given.name, hash_of(event.salt, given.secret))
    assert (event.projects, event.environments, event.end_users) == (["p"], None, ["ann", "bob"])
    assert (event.by, event.why, event.revoked, made.position) == ("kim", "the shop", False, AT)
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
    assert all(is_signed(SECRET, key, value, headers.items()) for _, key, value, headers in sent)
    opened().category("food", "what is eaten")
    assert sent[-1][3] == {}
