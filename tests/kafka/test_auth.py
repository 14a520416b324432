"""Authorisation on a real broker: verdicts while keys change, and equal verdicts in a rebuild."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from recallflow.control import Control
from recallflow.credentials import CREDENTIAL_HEADERS, ApiKeyText, Headers
from recallflow.flows.settings import TopicNames
from recallflow.state.verify import verify
from tests.kafka.harness import GIVE_UP_S, Deployment, Names, other_outputs, own_topics, read_topic, until
from tests.unit.senders import (
    EVENT,
    QUERY,
    SECRET,
    api_key,
    bearer,
    ec_jwk,
    oct_jwk,
    rsa_jwk,
    signing_keys,
    token,
    token_key,
    with_key,
)

USERS = ("ann", "bob", "cleo")
LOG_PARTITIONS = 3
CREATE_TIME = {"message.timestamp.type": "CreateTime"}
LONG_AGO_MS = 60_000
HOLDS_S = 2
HEARD_MS = 2_000  # decisions are made so far ahead: however slow the machine is, the engine has heard of them by then


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    """One where every record needs credentials. Decisions carry the times that the test gives them."""
    own = own_topics(topics)
    broker.create_topics({own.memory: LOG_PARTITIONS, own.queries: LOG_PARTITIONS})
    broker.create_topics(dict.fromkeys(own.outputs(), 1))
    broker.create_topics({own.control: 1}, CREATE_TIME)
    config, jwks = tmp_path / "recallflow.toml", tmp_path / "jwks.json"
    jwks.write_bytes(orjson.dumps({"keys": [rsa_jwk(kid="r"), ec_jwk(kid="e"), oct_jwk(kid="o")]}))
    config.write_text(f'[auth]\nmode = "required"\njwks = "{jwks}"\n')
    return Deployment(broker, own, tmp_path / "s", epoch_ms=10, flags=("--config", str(config)))


class Sender:
    """Sends records of three users, each user's to one partition."""

    def __init__(self, broker: Cluster, topics: TopicNames) -> None:
        servers = broker.bootstrap_servers
        self._producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
        self._topics = topics
        self._number = 0

    def tell(self, headers: Headers) -> None:
        """One memory of each user."""
        for user in USERS:
            self._number += 1
            event = EVENT | {"user_id": user, "id": f"m{self._number}", "receipt": True}
            self._send(self._topics.memory, event, headers)

    def ask(self, query_id: str, headers: Headers, **fields: Any) -> None:
        self._send(self._topics.queries, QUERY | {"id": query_id, **fields}, headers)

    def decide(self, *events: Control, at_ms: int) -> None:
        for event in events:
            value = event.model_dump_json(exclude_none=True).encode()
            self._producer.produce(self._topics.control, value, event.record_key, timestamp=at_ms)
        assert self._producer.flush(GIVE_UP_S) == 0

    def _send(self, topic: str, event: Mapping[str, Any], headers: Headers) -> None:
        key = f"acme/{event['user_id']}".encode()
        self._producer.produce(topic, orjson.dumps(event), key, headers=[*headers])
        assert self._producer.flush(GIVE_UP_S) == 0


def verdicts(deployment: Deployment) -> dict[str, str]:
    """By position of a memory event, the outcome of its receipt or the code of its dead letter."""
    letters = [dict(message.headers()) for message in read_topic(deployment.broker, deployment.topics.dead_letters)]
    found = {one["error.source"].decode(): one["error.code"].decode() for one in letters}
    said = [orjson.loads(one.value()) for one in read_topic(deployment.broker, deployment.topics.receipts)]
    every = found | {one["position"]: one["outcome"] for one in said}
    return {position: code for position, code in every.items() if position.startswith(deployment.topics.memory)}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_rebuild_repeats_verdicts_after_expiry_and_revocation(
    deployment: Deployment, broker: Cluster, topics: Names, tmp_path: Path
) -> None:
    sender, key = Sender(broker, deployment.topics), ApiKeyText.new()
    made = api_key(key)
    sender.decide(*map(token_key, signing_keys()), made, at_ms=now_ms() - LONG_AGO_MS)
    short: Headers = ()
    long = bearer(token(SECRET, "HS256", "o", end_users=["ann", "bob"]))
    sent = 0

    def short_lived() -> Headers:
        nonlocal short
        short = bearer(token(exp=now_ms() // 1_000 + HOLDS_S))
        return short

    def send_until(headers: Headers | Callable[[], Headers], code: str) -> None:
        """Sends with these headers until such a verdict comes."""

        def sent_and_judged() -> bool:
            nonlocal sent
            sender.tell(headers() if callable(headers) else headers)
            sent += len(USERS)
            until(lambda: len(verdicts(deployment)) == sent)
            last = max(verdicts(deployment).items(), key=lambda one: int(one[0].rpartition(":")[2]))
            return last[1] == code

        until(sent_and_judged)

    with deployment.running():
        send_until(short_lived, "created")
        send_until(with_key(key), "created")
        send_until(short, "unauthenticated")  # it has expired
        sender.decide(made.model_copy(update={"revoked": True}), at_ms=now_ms() + HEARD_MS)
        send_until(with_key(key), "unauthenticated")
        sender.decide(made, at_ms=now_ms())  # somebody sends its creation again
        send_until(with_key(key), "unauthenticated")
        send_until((), "unauthenticated")
        sender.tell(long)  # Cleo is none of its users
        sent += len(USERS)
        until(lambda: len(verdicts(deployment)) == sent)
        sender.ask("stranger", (), reply_to={"topic": deployment.topics.receipts})
        sender.ask("friend", long)
        until(lambda: len(read_topic(broker, deployment.topics.responses)) == 2)
    before = verdicts(deployment)
    assert set(before.values()) == {"created", "unauthenticated", "forbidden"}
    answers = [orjson.loads(one.value()) for one in read_topic(broker, deployment.topics.responses)]
    assert {one["query_id"]: one["status"] for one in answers} == {"stranger": "error", "friend": "ok"}
    letters = read_topic(broker, deployment.topics.dead_letters)
    assert not {name.lower() for one in letters for name, _ in one.headers()} & CREDENTIAL_HEADERS
    (said,) = deployment.errors
    assert "auth is required" in said
    kept = [said.encode(), *(bytes(str(one.headers()), "utf-8") + one.value() for one in letters)]
    assert not any(secret in text for text in kept for secret in (key.secret.encode(), SECRET, b"eyJ"))

    other = replace(
        deployment,
        topics=other_outputs(deployment.topics, topics, "other."),
        state_dir=tmp_path / "other",
        flags=(*deployment.flags, "--deployment", topics("other")),
        errors=[],
    )
    broker.create_topics({other.topics.queries: LOG_PARTITIONS} | dict.fromkeys(other.topics.outputs(), 1))
    with other.running():
        until(lambda: len(verdicts(other)) == sent)
    assert verdicts(other) == before
    assert other.hash() == deployment.hash()
    assert verify(other.state_dir).problems == []


def test_topic_with_sender_timestamps_is_refused(deployment: Deployment, topics: Names) -> None:
    own = replace(deployment, topics=replace(deployment.topics, memory=topics("backdated")))
    own.broker.create_topics({own.topics.memory: LOG_PARTITIONS}, CREATE_TIME)
    code, said = own.ends()
    assert code == 2
    assert "LogAppendTime" in said.splitlines()[-1]
