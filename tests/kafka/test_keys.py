"""API keys and signing keys on a real broker, with a main flow that asks for them."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
from confluent_kafka import Producer
from jwt import PyJWK

from benchmarks.broker import Cluster
from recallflow.brokers.options import KafkaOptions
from recallflow.client import QueryFailed, RecallClient
from recallflow.credentials import ApiKeyText
from recallflow.flows.topic_checks import check_control
from tests.jwks_server import JwksServer, document, es256
from tests.kafka.harness import GIVE_UP_S, Command, Deployment, Names, deployed, read_topic, until, watched

REFUSED = "unauthenticated"


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    return deployed(broker, topics, tmp_path / "s")


@contextlib.contextmanager
def running(deployment: Deployment) -> Iterator[None]:
    with deployment.running():
        await_begin(deployment)
        yield


def await_begin(deployment: Deployment) -> None:
    producer = Producer({"bootstrap.servers": deployment.broker.bootstrap_servers})
    producer.produce(deployment.topics.memory, b"no event")
    assert producer.flush(GIVE_UP_S) == 0
    until(lambda: len(read_topic(deployment.broker, deployment.topics.dead_letters)) == 1)


def named(deployment: Deployment, *flags: str) -> list[str]:
    names = {"--control-topic": deployment.topics.control, "--memory-topic": deployment.topics.memory}
    names |= {"--dead-letter-topic": deployment.topics.dead_letters, "--query-topic": deployment.topics.queries}
    names |= {"--response-topic": deployment.topics.responses}
    where = ["--bootstrap-servers", deployment.broker.bootstrap_servers]
    return where + [word for flag in ("--control-topic", *flags) for word in (flag, names[flag])]


def said(client: RecallClient, user: str = "ann") -> str:
    try:
        return str(len(client.search("tea", user=user)))
    except QueryFailed as failed:
        return failed.error.code


def written(deployment: Deployment) -> bytes:
    topics = (deployment.topics.control, *deployment.topics.outputs())
    found = [message for topic in topics for message in read_topic(deployment.broker, topic)]
    return b"".join((one.value() or b"") + repr(one.headers()).encode() for one in found)


def test_a_key_is_shown_once_holds_and_is_revoked(deployment: Deployment, command: Command) -> None:
    control = named(deployment)
    with running(deployment), deployment.client() as anybody:
        assert said(anybody) == "0"  # there is no key yet, and everybody is believed
        made = command("keys", "create", "acme", "--end-user", "ann", "--by", "kim", "--why", "the shop", *control)
        assert made.returncode == 0, made.stderr
        key = ApiKeyText.parse(made.stdout.removesuffix("\n"))
        assert key is not None
        assert key.secret not in made.stderr
        assert f"{deployment.topics.control}:0:0" in made.stderr
        until(lambda: said(anybody) == REFUSED)
        with (
            deployment.client(api_key=key.text()) as ours,
            deployment.client(api_key=key.text(), end_user="ann") as anns,
        ):
            at = ours.add("green tea", user="ann")
            assert len(ours.search("tea", user="ann", after=at)) == 1
            assert (said(anns), said(ours, "bob")) == ("1", "forbidden")
            anybody.add("black tea", user="ann")  # nobody knows whose
            listed = command("keys", "list", "acme", *control)
            assert [word in listed.stdout for word in (key.name, "ann", "kim", "the shop")] == [True] * 4
            for name in (key.text(), "0" * 16):
                wrong = command("keys", "revoke", "acme", name, *control)
                assert (wrong.returncode, key.secret in wrong.stderr) == (2, False)
            revoked = command("keys", "revoke", "acme", key.name, "--by", "kim", *control)
            assert f"{deployment.topics.control}:0:1" in revoked.stdout
            until(lambda: said(ours) == REFUSED)
        again = command("keys", "revoke", "acme", key.name, *control)
        assert f"{deployment.topics.control}:0" not in again.stdout
        assert "revoked" in command("keys", "list", "acme", *control).stdout
        assert command("keys", "list", "zenith", *control).stdout == ""
    assert key.secret.encode() not in written(deployment)
    assert key.secret not in "".join(deployment.errors)


def test_our_own_commands_send_our_key(
    deployment: Deployment, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALLFLOW_AUTH_MODE", "required")
    made = command("keys", "create", "*", *named(deployment))
    key = made.stdout.strip()
    log = tmp_path / "log.jsonl"
    log.write_bytes(
        orjson.dumps({"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "green tea", "role": "user"})
    )
    with running(deployment), deployment.client(api_key=key) as ours:
        until(lambda: said(ours) == "0")
        sent = command(
            "replay", log, *named(deployment, "--memory-topic")[:2], "--memory-topic", deployment.topics.memory
        )
        assert "1 events sent" in sent.stdout, sent.stderr
        until(lambda: len(read_topic(deployment.broker, deployment.topics.dead_letters)) == 2)  # without a key
        dead = named(deployment, "--dead-letter-topic", "--memory-topic", "--query-topic")[4:]
        dead = [*named(deployment)[:2], *dead]
        monkeypatch.setenv("RECALLFLOW_AUTH_API_KEY", key)
        left = command("dlq", "replay", *dead)
        assert (left.returncode, left.stdout) == (1, "1 sent again\n")  # the record that is no event
        assert command("dlq", "replay", "--code", REFUSED, *dead).stdout == "1 sent again\n"
        until(lambda: said(ours) == "1")
        status = command(
            "graph", "status", "--tenant", "acme", "--user", "ann",
            *named(deployment)[:2], *named(deployment, "--query-topic", "--response-topic")[4:],
        )  # fmt: skip
        assert status.returncode == 0, status.stdout
        printed = command("run", "--print-config", *named(deployment))
        assert 'api_key = "***"' in printed.stdout
        assert key not in printed.stdout
    assert ApiKeyText.parse(key) is not None
    assert key.encode() not in written(deployment)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("setting", [{"cleanup.policy": "compact,delete"}, {}], ids=str)
def test_a_control_topic_that_forgets_is_reported(
    broker: Cluster, topics: Names, setting: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics("control.events")
    kept = {"retention.ms": "-1"} if setting else {"retention.ms": "604800000"}
    broker.create_topics({topic: 1}, {"message.timestamp.type": "CreateTime", **kept, **setting})
    check_control(KafkaOptions(broker.bootstrap_servers), topic)
    forgets, backdated = caplog.messages
    assert topic in forgets
    assert "cleanup.policy=delete, retention.ms=-1, retention.bytes=-1" in forgets
    assert "message.timestamp.type=LogAppendTime" in backdated


def test_first_key_stops_an_engine_with_producer_timestamps(deployment: Deployment, topics: Names) -> None:
    own = replace(deployment, topics=replace(deployment.topics, memory=topics("backdated")))
    own.broker.create_topics({own.topics.memory: 1}, {"message.timestamp.type": "CreateTime"})
    process = own.start()
    with watched(process), own.client() as sender:
        await_begin(own)
        assert said(sender) == "0"
        sender.create_key()
        _, errors = process.communicate()
    assert process.returncode == 2
    assert "message.timestamp.type=LogAppendTime" in errors.decode().splitlines()[-1]


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server() -> Iterator[JwksServer]:
    server = JwksServer()
    yield server
    server.close()


def token(key: dict[str, Any]) -> str:
    claims = {"sub": "shop", "tenant_id": "acme", "exp": now_ms() // 1_000 + 600}
    return jwt.encode(claims, PyJWK(key, "ES256").key, "ES256", headers={"kid": key["kid"]})


def announced(deployment: Deployment) -> list[tuple[str, bool]]:
    events = [orjson.loads(one.value()) for one in read_topic(deployment.broker, deployment.topics.control)]
    return [(event["name"], event["revoked"]) for event in events]


def test_signing_keys_change_under_a_running_engine(
    deployment: Deployment, server: JwksServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALLFLOW_AUTH_JWKS", server.url)
    monkeypatch.setenv("RECALLFLOW_AUTH_JWKS_REFRESH_S", "1")
    one, two, three = es256("one"), es256("two"), es256("three")
    server.body = document(one)
    with (
        deployment.client(token=lambda: token(one)) as first,
        deployment.client(token=lambda: token(two)) as second,
        deployment.client(token=lambda: token(three | {"kid": "two"})) as forged,
        deployment.client() as anybody,
    ):
        with running(deployment):
            until(lambda: said(anybody) == REFUSED)  # a signing key asks for credentials
            until(lambda: said(first) == "0")
            at = first.add("green tea", user="ann")
            assert len(first.search("tea", user="ann", after=at)) == 1
            assert said(second) == REFUSED
            server.body = document(one, two)
            until(lambda: said(second) == "1")
            server.failures = 2  # which changes nothing
            until(lambda: server.failures == 0)
            assert (said(first), said(second), said(forged)) == ("1", "1", REFUSED)
            server.body = document(two)
            until(lambda: said(first) == REFUSED)
            assert (said(second), said(forged)) == ("1", REFUSED)
        seen = announced(deployment)
        assert seen == [("one", False), ("two", False), ("one", True)]
        server.status = 500  # a restart goes on with what is known
        with deployment.running():
            assert (said(first), said(second)) == (REFUSED, "1")
    assert announced(deployment) == seen
