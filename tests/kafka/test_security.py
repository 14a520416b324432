"""A broker that asks for a password and authorises by ACLs: clients, commands and `recallflow doctor`."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from benchmarks.broker import Broker, Cluster
from benchmarks.kafka_flow import create, own_topics
from recallflow.flows.settings import TopicNames
from tests.kafka.engine import Engine

Cli = Callable[..., subprocess.CompletedProcess[str]]

ANN, BOB = ("ann", "walnut-7"), ("bob", "walnut-8")  # Ann may do everything, Bob what a test grants
WRONG = "walnut-9"
PASSWORD_VARIABLE = "RECALLFLOW_KAFKA_LIBRDKAFKA_SASL_PASSWORD"  # not on a command line, which others see


def login(user: str) -> dict[str, str]:
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}


def login_flags(user: str) -> list[str]:
    return [word for given in login(user).items() for word in ("-X", "=".join(given))]


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


def test_engine_and_client_work_with_the_password(
    guarded: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, ANN[1])
    engine = Engine(Cluster(guarded.guarded_servers), own_topics())
    create(guarded, engine.topics, 1)
    options = login(ANN[0]) | {"sasl.password": ANN[1]}
    with engine.running(tmp_path / "s", *login_flags(ANN[0])), engine.client(options=options) as client:
        position = client.add("The bicycle is in the cellar.", user="ann")
        answer = client.search("Where is the bicycle?", user="ann", after=position)
    assert [memory.content for memory in answer] == ["The bicycle is in the cellar."]


@pytest.mark.parametrize("action", [["run"], ["topics", "create"], ["dlq", "list"]], ids=" ".join)
def test_wrong_password_is_reported_and_not_shown(
    guarded: Broker, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: list[str]
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, WRONG)
    where = ["--state-dir", tmp_path / "s"] if action == ["run"] else []
    done = cli(*action, *where, "--bootstrap-servers", guarded.guarded_servers, *login_flags(ANN[0]))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Kafka refuses us" in done.stderr
    assert WRONG not in done.stderr


def test_doctor_names_missing_rights(guarded: Broker, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    named = own_topics()
    create(guarded, named, 1)
    engine = Engine(Cluster(guarded.guarded_servers), named)

    def diagnose(password: str) -> dict[str, Any]:
        monkeypatch.setenv(PASSWORD_VARIABLE, password)
        done = cli("doctor", "--json", *engine.flags, *login_flags(BOB[0]))
        assert password not in done.stdout
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return {name: one["todo"] for one in found if one["status"] == "FAIL" for name in joined(one["check"])}

    def joined(checks: str) -> list[str]:
        return re.split(", (?=rights )", checks)

    def of_flow(topics: TopicNames) -> set[str]:
        return {*topics.read(), topics.responses, topics.receipts, topics.dead_letters}

    for name in of_flow(named):
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
