"""A broker that lets in only who says the password."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.broker import Broker
from benchmarks.kafka_flow import own_topics
from recallflow.client import QueryTimeout, RecallClient
from recallflow.flows.topics import Topics

Command = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

USER, PASSWORD = "ann", "walnut-7"
ATTEMPTS = 300  # of a second each: a machine with other work starts an engine in minutes


def login(password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Where a broker listens that asks for a password."""
    with Broker(users={USER: PASSWORD}) as broker:
        yield broker.guarded_servers


def flags_of_login(monkeypatch: pytest.MonkeyPatch, password: str) -> list[str]:
    """The options of the login; the password is in the environment, where no other user sees it."""
    monkeypatch.setenv("RECALLFLOW_KAFKA_LIBRDKAFKA_SASL_PASSWORD", password)
    said = {name: value for name, value in login(password).items() if name != "sasl.password"}
    return [word for name, value in said.items() for word in ("-X", f"{name}={value}")]


def words(guarded: str, topics: Topics) -> list[str]:
    """The options that name the broker and the topics."""
    flags = {
        "--memory-topic": topics.memory,
        "--query-topic": topics.queries,
        "--control-topic": topics.control,
        "--response-topic": topics.responses,
        "--receipt-topic": topics.receipts,
        "--dead-letter-topic": topics.dead_letters,
        "--bootstrap-servers": guarded,
    }
    return [word for flag in flags.items() for word in flag]


def test_with_the_password_a_memory_is_remembered_and_recalled(
    guarded: str, command: Command, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = own_topics()
    chosen = [*words(guarded, topics), *flags_of_login(monkeypatch, PASSWORD)]
    enrichment = ["--enrichment-topic", topics.enrichment, "--result-topic", topics.results]
    made = command("topics", "create", *enrichment, *chosen)
    assert made.returncode == 0, made.stderr
    engine = start("run", "--state-dir", tmp_path / "s", *chosen)
    named = {"memory_topic": topics.memory, "query_topic": topics.queries, "response_topic": topics.responses}
    with RecallClient(guarded, "acme", options=login(PASSWORD), timeout_s=30.0, **named) as client:  # type: ignore[arg-type]
        position = client.add("The bicycle is in the cellar.", user="ann")
        for _ in range(ATTEMPTS):
            assert engine.poll() is None, engine.communicate()[1]
            try:
                answer = client.search("Where is the bicycle?", user="ann", after=position, timeout_s=1.0)
            except QueryTimeout:  # a query from before the first start
                continue
            if "stale_read" not in {warning.code for warning in answer.warnings}:  # it did not wait in vain
                break
    assert [memory.content for memory in answer] == ["The bicycle is in the cellar."]


@pytest.mark.parametrize("action", [["run"], ["topics", "create"], ["dlq", "list"]], ids=" ".join)
def test_with_another_password_a_command_says_who_refuses_it(
    guarded: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: list[str]
) -> None:
    flags = flags_of_login(monkeypatch, "walnut-8")
    where = ["--state-dir", tmp_path / "s"] if action == ["run"] else []
    done = command(*action, *where, "--bootstrap-servers", guarded, *flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Kafka refuses us" in done.stderr
    assert "Invalid username or password" in done.stderr
    assert "walnut-8" not in done.stderr
    assert "Traceback" not in done.stderr
