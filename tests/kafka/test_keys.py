"""Keys, tokens, passwords, encryption and an erasure of a protected deployment on a real broker."""

import base64
import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from jwt import PyJWK

from benchmarks.kafka_flow import create
from benchmarks.kafka_flow import own_topics as new_topics
from recallflow.client import QueryFailed, QueryTimeout, RecallClient
from recallflow.credentials import ApiKeyText
from recallflow.flows.settings import TopicNames
from recallflow.flows.topic_checks import check_control
from recallflow.kafka_options import KafkaOptions
from recallflow.verbs.results import SearchResults
from tests.jwks_server import JwksServer, document, es256
from tests.kafka.engine import Engine
from tests.kafka.harness import GIVE_UP_S, Command, Deployment, Names, deployed, own_topics, read_topic, until
from tools.broker import Broker, Cluster

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
    control = deployment.options({"--control-topic": "control"})
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
    with own.start() as process, own.client() as sender:
        await_begin(own)
        assert said(sender) == "0"
        sender.create_key()
        ended = process.ended()
    assert ended.code == 2
    assert "message.timestamp.type=LogAppendTime" in ended.error


def token(key: dict[str, Any]) -> str:
    claims = {"sub": "shop", "tenant_id": "acme", "exp": now_ms() // 1_000 + 600}
    return jwt.encode(claims, PyJWK(key, "ES256").key, "ES256", headers={"kid": key["kid"]})


def announced(deployment: Deployment) -> list[tuple[str, bool]]:
    events = [orjson.loads(one.value()) for one in read_topic(deployment.broker, deployment.topics.control)]
    return [(event["name"], event["revoked"]) for event in events]


def test_signing_keys_change_under_a_running_engine(
    deployment: Deployment, jwks_server: JwksServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALLFLOW_AUTH_JWKS", jwks_server.url)
    monkeypatch.setenv("RECALLFLOW_AUTH_JWKS_REFRESH_S", "1")
    one, two, three = es256("one"), es256("two"), es256("three")
    jwks_server.body = document(one)
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
            assert (len(first.search("tea", user="ann", after=at)), said(second)) == (1, REFUSED)
            jwks_server.body = document(one, two)
            until(lambda: said(second) == "1")
            jwks_server.failures = 2  # which changes nothing
            until(lambda: jwks_server.failures == 0)
            assert (said(first), said(second), said(forged)) == ("1", "1", REFUSED)
            jwks_server.body = document(two)
            until(lambda: said(first) == REFUSED)
            assert (said(second), said(forged)) == ("1", REFUSED)
        seen = announced(deployment)
        assert seen == [("one", False), ("two", False), ("one", True)]
        jwks_server.status = 500  # a restart goes on with what is known
        with deployment.running():
            assert (said(first), said(second)) == (REFUSED, "1")
    assert announced(deployment) == seen


ANN, BOB = ("ann", "walnut-7"), ("bob", "walnut-8")  # Ann may do everything, Bob what a test grants
WRONG = "walnut-9"
PASSWORD_VARIABLE = "RECALLFLOW_KAFKA_LIBRDKAFKA_SASL_PASSWORD"  # not on a command line, which others see


def login(user: str) -> dict[str, str]:
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    with Broker(users=dict((ANN, BOB)), authorizes=True) as started:
        for kind in (ResourceType.TOPIC, ResourceType.GROUP):
            grant(started, ANN[0], kind, "*", "ALL")
        yield started


def grant(broker: Broker, user: str, kind: ResourceType, name: str, *operations: str) -> None:
    every = (ResourcePatternType.LITERAL, f"User:{user}", "*")
    acls = [AclBinding(kind, name, *every, AclOperation[one], AclPermissionType.ALLOW) for one in operations]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for created in admin.create_acls(acls).values():
        created.result()


def test_doctor_names_missing_rights(guarded: Broker, cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    named = new_topics()
    create(guarded, named, 1)
    engine = Engine(Cluster(guarded.guarded_servers), named)
    flags = [word for given in login(BOB[0]).items() for word in ("-X", "=".join(given))]

    def diagnose(password: str) -> dict[str, Any]:
        monkeypatch.setenv(PASSWORD_VARIABLE, password)
        done = cli("doctor", "--json", *engine.flags, *flags)
        assert password not in done.stdout
        failed = [one for one in map(json.loads, done.stdout.splitlines()) if one["status"] == "FAIL"]
        return {name: one["todo"] for one in failed for name in re.split(", (?=rights )", one["check"])}

    for name in {*named.read_topics(), named.responses, named.receipts, named.dead_letters}:
        grant(guarded, BOB[0], ResourceType.TOPIC, name, "READ", "DESCRIBE_CONFIGS")
        if name != named.receipts:
            grant(guarded, BOB[0], ResourceType.TOPIC, name, "WRITE")
    found = diagnose(BOB[1])
    group = f"recallflow-{named.memory}"
    # without the latter no topic is read
    lacking = {f"rights of group {group}", "rights of group recallflow", "control events"}
    assert found.keys() == {f"rights {named.receipts}", *lacking}
    assert f"grant WRITE on topic {named.receipts}" in found[f"rights {named.receipts}"]
    assert "grant READ on group" in found[f"rights of group {group}"]
    grant(guarded, BOB[0], ResourceType.TOPIC, named.receipts, "WRITE")
    grant(guarded, BOB[0], ResourceType.GROUP, group, "READ")
    grant(guarded, BOB[0], ResourceType.GROUP, "recallflow", "DESCRIBE")
    assert not diagnose(BOB[1])
    assert diagnose(WRONG).keys() == {"broker"}


CONTROL_SECRET = "what decisions are signed with, and nobody else has"
ANN_LONG = "ann.of.green.gables@example.com"  # long enough to be told from chance in a file
SAID = [f"{word} {number} is what Ann likes" for number, word in enumerate(("walnut", "lantern", "harbour"))]
BOBS = "violin is what Bob plays"
WORDS = ("walnut", "lantern", "harbour", "violin", "likes", ANN_LONG)
ALLOWED = 4  # memories of a user


@dataclass
class Secure:
    engine: Deployment
    command: Command
    config: Path

    def run(self, *words: str | Path) -> str:
        done = self.command(*words, "--config", self.config)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def give(self, api_key: str) -> None:
        """Our own commands send it from now on."""
        self.config.write_text(self.config.read_text().replace("[auth]", f'[auth]\napi_key = "{api_key}"'))

    def client(self, tenant_id: str, api_key: str | None = None) -> RecallClient:
        return self.engine.client(tenant_id, api_key=api_key, timeout_s=30.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the engine until the end of the block; it is killed then."""
        with self.engine.start() as process:
            yield
            assert process.running(), process.said()

    def codes(self) -> list[str]:
        letters = [dict(one.headers()) for one in read_topic(self.engine.broker, self.engine.topics.dead_letters)]
        return [one["error.code"].decode() for one in letters]

    def written(self) -> bytes:
        messages = [one for topic in self.engine.topics.outputs() for one in read_topic(self.engine.broker, topic)]
        return b"\n".join(repr((one.key(), one.value(), one.headers())).encode() for one in messages)


@pytest.fixture
def secure(broker: Cluster, topics: Names, tmp_path: Path, command: Command) -> Secure:
    requests, results = topics("enrichment.requests"), topics("enrichment.results")
    own = replace(own_topics(topics), audit=topics("audit.log"), enrichment=requests, results=results)
    key, config = tmp_path / "master.key", tmp_path / "recallflow.toml"
    key.write_bytes(base64.b64encode(bytes(range(32))))
    config.write_text(f"""
state_dir = "{tmp_path / "s"}"

[kafka]
bootstrap_servers = "{broker.bootstrap_servers}"

[topics]
{_named(own)}

[auth]
mode = "required"
control_secret = "{CONTROL_SECRET}"

[encryption]
master_key_file = "{key}"
""")
    made = Secure(Deployment(broker, own, tmp_path / "s", flags=("--config", str(config))), command, config)
    compacted = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    broker.create_topics({own.responses: 2}, compacted)
    made.run("topics", "create", "--partitions", "2")
    return made


def _named(topics: TopicNames) -> str:
    names = ("memory", "queries", "control", "responses", "receipts", "enrichment", "results", "dead_letters", "audit")
    return "\n".join(f'{name} = "{getattr(topics, name)}"' for name in names)


def contents(found: SearchResults) -> list[str]:
    return sorted(memory.content for memory in found)


def answered(client: RecallClient, user_id: str) -> list[str]:
    """Return a user's memories once the engine answers and the key is valid."""
    found: list[list[str]] = []

    def is_answered() -> bool:
        try:
            found.append(contents(client.search("What is it?", user=user_id, k=50, timeout_s=2.0)))
        except QueryTimeout:
            return False
        except QueryFailed as failed:
            if failed.error.code != "unauthenticated":
                raise
            return False
        return True

    until(is_answered)
    return found[0]


def shows_only(wanted: list[str], found: SearchResults) -> bool:
    """Return whether an answer is current; one that is behind must be empty."""
    shown = contents(found)
    assert shown in ([], wanted)
    return shown == wanted


def refused(client: RecallClient, user_id: str) -> str:
    with pytest.raises(QueryFailed) as error:
        client.search("What is it?", user=user_id)
    for word in WORDS:
        assert word not in str(error.value)
    return error.value.error.code


def test_protected_deployment_survives_kills_and_an_erasure(secure: Secure, tmp_path: Path) -> None:
    key, anns_key, strangers_key, operators_key = (
        secure.run("keys", "create", *words).strip()
        for words in (("acme",), ("acme", "--end-user", ANN_LONG), ("globex",), ("*",))
    )
    secure.run("quota", "set", "acme", "memories_per_user", str(ALLOWED))
    with (
        secure.client("acme", key) as acme,
        secure.client("acme", anns_key) as ann,
        secure.client("acme", strangers_key) as stranger,
        secure.client("acme") as nobody,
        secure.client("globex", strangers_key) as globex,
    ):
        with secure.running():
            assert answered(acme, ANN_LONG) == []
            for text in SAID:
                acme.add(text, user=ANN_LONG)
            acme.add(BOBS, user="bob")
            # Others try. What they write comes before what is asked for below.
            assert (refused(stranger, ANN_LONG), refused(nobody, ANN_LONG), refused(ann, "bob")) == (
                "unauthenticated", "unauthenticated", "forbidden",
            )  # fmt: skip
            for other, user in ((stranger, ANN_LONG), (nobody, ANN_LONG), (ann, "bob")):
                other.add("something that is not theirs to say", user=user)
            extra = [acme.add(f"extra {number}", user=ANN_LONG) for number in range(3)]
            assert contents(acme.search("What?", user=ANN_LONG, k=50, after=extra[-1])) == ["extra 0", *sorted(SAID)]
            assert contents(globex.search("What is it?", user=ANN_LONG)) == []
            assert answered(ann, ANN_LONG) == ["extra 0", *sorted(SAID)]
            until(lambda: len(secure.codes()) >= 8)
            assert sorted(secure.codes()) == [*["forbidden"] * 2, *["over_quota"] * 2, *["unauthenticated"] * 4]
        # Killed: nothing that anybody said can be read on disk, and all of it is there after a start.
        files = {path: path.read_bytes().lower() for path in (tmp_path / "s").rglob("*") if path.is_file()}
        assert sum(map(len, files.values())) > 10_000
        assert [(path, word) for path, content in files.items() for word in WORDS if word.encode() in content] == []
        with secure.running():
            assert answered(acme, ANN_LONG) == ["extra 0", *sorted(SAID)]
            assert answered(acme, "bob") == [BOBS]
            nobodys = secure.command("erase", "acme", ANN_LONG, "--config", secure.config)
            assert (nobodys.returncode, nobodys.stdout) == (1, "")
            assert "the erasure was refused: unauthenticated" in nobodys.stderr
            assert answered(ann, ANN_LONG) == ["extra 0", *sorted(SAID)]
            secure.give(operators_key)
            said = secure.run("erase", "acme", ANN_LONG, "--verify", "--compact-kafka", "--timeout-s", "25")
            assert f"user {ANN_LONG} of tenant acme is erased" in said
            assert re.search(rf"^  {re.escape(str(secure.engine.topics.audit))}: [1-9]\d* records, ", said, re.M)
            assert (said.count("nothing was found\n"), answered(acme, ANN_LONG)) == (1, [])
        # Killed once more: nothing that the person said, and no name, is in the directory, nor is it told.
        assert secure.run("erase", "acme", ANN_LONG, "--verify-only").count("nothing was found\n") == 1
        told_of = secure.run("export", "acme", ANN_LONG, "--state-dir", tmp_path / "s").splitlines()
        assert [json.loads(one)["type"] for one in told_of] == ["erased"]
        # The whole log is read again, into a directory that knows nothing of what was.
        for folder in (tmp_path / "s").glob("p*"):
            shutil.rmtree(folder)
        assert secure.run("erase", "acme", ANN_LONG, "--verify-only").count("nothing was found\n") == 1
        with secure.running():
            told = acme.add("lighthouse", user=ANN_LONG)
            until(lambda: shows_only(["lighthouse"], acme.search("What?", user=ANN_LONG, k=50, after=told)))
            until(lambda: answered(acme, "bob") == [BOBS])  # his partition may still be catching up
            assert refused(stranger, ANN_LONG) == "unauthenticated"
    audited = [one.value() for one in read_topic(secure.engine.broker, str(secure.engine.topics.audit))]
    assert len(audited) >= 9
    assert {json.loads(one)["principal"] for one in audited} >= {key.split("_")[1], anns_key.split("_")[1], None}
    for word in set(WORDS) - {ANN_LONG}:
        assert not any(word.encode() in one for one in audited)
    written = secure.written()
    for secret in (key, anns_key, strangers_key, operators_key):
        assert secret.split("_", 2)[2].encode() not in written  # a secret may hold an underscore
