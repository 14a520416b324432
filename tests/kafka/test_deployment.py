"""Engines share a deployment: each works on its partitions, goes on where another ended, and sends nothing of what is
another's."""

import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.broker import HOST, Broker, Cluster, free_ports
from benchmarks.crash.outputs import read_topic
from benchmarks.kafka_flow import own_topics

Command = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

PARTITIONS = 2
GIVE_UP_S = 45.0
SESSION_S = 6  # the shortest that a broker takes by default


class Site:
    """A deployment's topics, and what is asked and answered on them."""

    def __init__(self, broker: Cluster) -> None:
        self.topics = own_topics()
        self._servers = broker.bootstrap_servers
        named = {self.topics.memory, self.topics.queries, self.topics.control, *self.topics.outputs()}
        broker.create_topics(dict.fromkeys(named, PARTITIONS))
        self._producer = Producer({"bootstrap.servers": self._servers, "partitioner": "murmur2_random"})
        self._asked = 0

    def words(self, state_dir: Path, *more: str) -> list[str]:
        flags = {
            "--memory-topic": self.topics.memory,
            "--query-topic": self.topics.queries,
            "--control-topic": self.topics.control,
            "--response-topic": self.topics.responses,
            "--receipt-topic": self.topics.receipts,
            "--dead-letter-topic": self.topics.dead_letters,
            "--bootstrap-servers": self._servers,
            "--session-timeout-s": str(SESSION_S),
            "--state-dir": str(state_dir),
        }
        return ["run", "--create", *(word for flag in flags.items() for word in flag), *more]

    def ask(self, count: int = 1) -> None:
        for _ in range(count):
            user = f"user{self._asked}"
            query = {"type": "user.stats", "id": f"q{self._asked}", "tenant_id": "acme", "user_id": user}
            self._producer.produce(self.topics.queries, orjson.dumps(query), key=f"acme/{user}")
            self._asked += 1
        assert self._producer.flush(GIVE_UP_S) == 0

    def answered(self) -> "Counter[str]":
        records = read_topic(self._servers, self.topics.responses, PARTITIONS)
        return Counter(orjson.loads(record.value)["query_id"] for record in records)

    def all_answered_once(self, since: int = 0) -> bool:
        found = self.answered()
        assert not [query for query, times in found.items() if times > 1]
        return {f"q{number}" for number in range(since, self._asked)} <= found.keys()

    def up(self, engine: "subprocess.Popen[str]") -> int:
        """Queries from before the first start are not answered: asks until one is. The number of the next query."""

        def answers() -> bool:
            assert engine.poll() is None, engine.communicate()[1]
            before = self._asked
            self.ask()
            return f"q{before}" in self.answered()

        until(answers)
        return self._asked


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + GIVE_UP_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def site(broker: Cluster) -> Site:
    return Site(broker)


def test_a_second_engine_joins_and_shares(site: Site, start: Start, command: Command, tmp_path: Path) -> None:
    """With a directory of its own, which nobody else may have."""
    first = start(*site.words(tmp_path / "one"))
    since = site.up(first)
    taken = command(*site.words(tmp_path / "one"))
    assert (taken.returncode, taken.stdout) == (1, "")
    assert str(tmp_path / "one") in taken.stderr.splitlines()[-1]
    second = start(*site.words(tmp_path / "two"))
    until(lambda: partitions_of(tmp_path / "two") == 1)
    site.ask(20)
    until(lambda: site.all_answered_once(since))
    stop(first)
    until(lambda: partitions_of(tmp_path / "two") == PARTITIONS)
    site.ask(20)
    until(lambda: site.all_answered_once(since))
    assert second.poll() is None


def test_a_static_member_that_was_killed_starts_again_at_once(site: Site, start: Start, tmp_path: Path) -> None:
    """Its session lasts half an hour: it is not waited for."""
    words = site.words(tmp_path / "one", "--session-timeout-s", "1800", "--instance-id", "one")
    first = start(*words)
    since = site.up(first)
    first.kill()
    first.wait()
    site.ask(5)
    start(*words)
    until(lambda: site.all_answered_once(since))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_new_directory_goes_on_where_another_ended(
    site: Site, start: Start, tmp_path: Path, how: signal.Signals
) -> None:
    """Its disk is gone with it: nothing is lost, and nothing is answered twice."""
    first = start(*site.words(tmp_path / "one"))
    since = site.up(first)
    site.ask(200)
    until(lambda: len(site.answered()) > since)
    first.send_signal(how)
    first.wait()
    shutil.rmtree(tmp_path / "one")
    site.ask(20)
    start(*site.words(tmp_path / "two"))
    until(lambda: site.all_answered_once(since))


def test_who_was_stopped_for_longer_than_its_session_sends_nothing_and_joins_anew(
    site: Site, start: Start, tmp_path: Path
) -> None:
    first = start(*site.words(tmp_path / "one"))
    since = site.up(first)
    second = start(*site.words(tmp_path / "two"))
    until(lambda: partitions_of(tmp_path / "two") == 1)
    site.ask(200)
    until(lambda: len(site.answered()) > since + 20)
    first.send_signal(signal.SIGSTOP)
    site.ask(200)
    until(lambda: site.all_answered_once(since))  # the second answers what the first had
    first.send_signal(signal.SIGCONT)
    says(first, "joining anew")
    site.ask(20)
    until(lambda: site.all_answered_once(since))
    stop(second)  # the first has everything now
    site.ask(20)
    until(lambda: site.all_answered_once(since))
    stop(first)


def test_a_deployment_without_a_rival_outlives_an_outage_longer_than_its_session(start: Start, tmp_path: Path) -> None:
    with Broker() as broker:
        site, port = Site(broker), free_ports(None)[0]
        engine = start(*site.words(tmp_path / "one", "--metrics-port", str(port)))
        since = site.up(engine)
        broker.stop()
        until(lambda: probe(port) == HTTPStatus.SERVICE_UNAVAILABLE)
        broker.start()
        until(lambda: probe(port) == HTTPStatus.OK)
        site.ask(20)
        until(lambda: site.all_answered_once(since))
        assert engine.poll() is None


def probe(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def stop(engine: "subprocess.Popen[str]") -> None:
    engine.send_signal(signal.SIGTERM)
    assert engine.wait(GIVE_UP_S) == 0


def partitions_of(directory: Path) -> int:
    """How many an engine ever had there."""
    return len([*directory.glob("p[0-9][0-9][0-9]")])


def says(engine: "subprocess.Popen[str]", words: str) -> None:
    """Returns once it says that."""
    assert engine.stderr is not None
    for line in engine.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended with {engine.wait()}")
