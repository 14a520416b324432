"""One engine works for a deployment: a second one is refused or stands by, and who was cut off sends nothing more."""

import re
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
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.group import Group
from recallflow.connectors.kafka.holder import Holder

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
            query = {"type": "user.stats", "id": f"q{self._asked}", "tenant_id": "acme", "user_id": "ann"}
            self._producer.produce(self.topics.queries, orjson.dumps(query), key=f"acme/{self._asked}")
            self._asked += 1
        assert self._producer.flush(GIVE_UP_S) == 0

    def answered(self) -> "Counter[str]":
        records = read_topic(self._servers, self.topics.responses, PARTITIONS)
        return Counter(orjson.loads(record.value)["query_id"] for record in records)

    def all_answered_once(self, since: int = 0) -> bool:
        found = self.answered()
        assert not [query for query, times in found.items() if times > 1]
        return {f"q{number}" for number in range(since, self._asked)} <= found.keys()

    def renewals(self, engine: "subprocess.Popen[str]") -> int:
        """How often an engine has said that it holds the deployment, which it still does."""
        assert engine.poll() is None, engine.communicate()[1]
        name = f"recallflow-{self.topics.memory}"
        holder = Holder.parse(Group(KafkaOptions(self._servers), name, self.topics.memory, SESSION_S).look().note)
        assert holder is not None
        assert holder.pid == engine.pid
        return holder.renewals

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


def test_a_second_engine_is_refused_and_told_who_is_there(
    site: Site, start: Start, command: Command, tmp_path: Path
) -> None:
    first = start(*site.words(tmp_path / "one"))
    since = site.up(first)
    second = command(*site.words(tmp_path / "two"))
    assert (second.returncode, second.stdout) == (1, "")
    line = second.stderr.splitlines()[-1]
    assert f"deployment recallflow-{site.topics.memory} is held by {tmp_path / 'one'} on " in line
    assert f"(process {first.pid}), since 20" in line
    assert "--wait" in line
    assert not (tmp_path / "two").exists()
    site.ask(20)
    until(lambda: site.all_answered_once(since))
    apart = start(*site.words(tmp_path / "three", "--deployment", f"apart-{site.topics.memory}"))
    until(lambda: (tmp_path / "three" / "begin.json").exists())
    assert apart.poll() is None
    assert first.poll() is None


def test_who_was_killed_starts_again_at_once(site: Site, start: Start, tmp_path: Path) -> None:
    """Its session lasts half an hour: it is not waited for."""
    words = site.words(tmp_path / "one", "--session-timeout-s", "1800")
    first = start(*words)
    since = site.up(first)
    first.kill()
    first.wait()
    site.ask(5)
    start(*words)
    until(lambda: site.all_answered_once(since))


def test_who_stands_by_takes_over_from_one_that_is_stopped_at_once(site: Site, start: Start, tmp_path: Path) -> None:
    first = start(*site.words(tmp_path / "one", "--session-timeout-s", "1800"))
    site.up(first)
    second = start(*site.words(tmp_path / "two", "--session-timeout-s", "1800", "--wait"))
    stands_by(second, tmp_path / "one")
    first.send_signal(signal.SIGTERM)
    assert first.wait(GIVE_UP_S) == 0
    since = site.up(second)
    site.ask(5)
    until(lambda: site.all_answered_once(since))


def test_who_stands_by_takes_over_from_one_that_is_killed(site: Site, start: Start, tmp_path: Path) -> None:
    """With the directory of the first, which it gets meanwhile: nothing is lost, and nothing answered twice."""
    first = start(*site.words(tmp_path / "one"))
    since = site.up(first)
    second = start(*site.words(tmp_path / "two", "--wait"))
    stands_by(second, tmp_path / "one")
    assert not (tmp_path / "two").exists()
    site.ask(200)
    until(lambda: len(site.answered()) > since)
    first.kill()
    first.wait()
    (tmp_path / "one").rename(tmp_path / "two")
    site.ask(20)
    until(lambda: site.all_answered_once(since))


def test_who_stands_by_for_the_same_directory_takes_over_at_once(site: Site, start: Start, tmp_path: Path) -> None:
    words = site.words(tmp_path / "one", "--session-timeout-s", "1800")
    first = start(*words)
    since = site.up(first)
    second = start(*words, "--wait")
    stands_by(second, tmp_path / "one")
    site.ask(20)
    first.kill()
    first.wait()
    site.ask(20)
    until(lambda: site.all_answered_once(since))


def test_who_stands_by_ends_with_0_and_a_word_when_told_to_stop(site: Site, start: Start, tmp_path: Path) -> None:
    first = start(*site.words(tmp_path / "one"))
    site.up(first)
    for number in (signal.SIGTERM, signal.SIGINT):
        second = start(*site.words(tmp_path / "two", "--wait"))
        stands_by(second, tmp_path / "one")
        second.send_signal(number)
        assert second.wait(GIVE_UP_S) == 0
        assert second.stderr is not None
        assert second.stderr.read().endswith("stopped before it began to work\n")
    assert first.poll() is None


def test_who_was_stopped_for_longer_than_its_session_sends_nothing_more(
    site: Site, start: Start, tmp_path: Path
) -> None:
    first = start(*site.words(tmp_path / "one"))
    since = site.up(first)
    site.ask(200)
    until(lambda: len(site.answered()) > since + 20)
    first.send_signal(signal.SIGSTOP)
    site.ask(200)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    second = start(*site.words(tmp_path / "two", "--wait"))
    stands_by(second, tmp_path / "one")
    until(lambda: site.all_answered_once(since))
    first.send_signal(signal.SIGCONT)
    line = last_line(first)
    assert f"another engine took over deployment recallflow-{site.topics.memory}: {tmp_path / 'two'} on " in line
    assert "this one was cut off for" in line
    renewals = site.renewals(second)
    until(lambda: site.renewals(second) > renewals + 3)  # the first did not put it out on its return
    site.ask(20)
    until(lambda: site.all_answered_once(since))
    assert second.poll() is None


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


def stands_by(engine: "subprocess.Popen[str]", directory: Path) -> None:
    """Returns once it says that it does."""
    assert engine.stderr is not None
    for line in engine.stderr:
        if "standing by" in line:
            assert str(directory) in line
            return
    raise AssertionError(f"it ended with {engine.wait()}")


def last_line(engine: "subprocess.Popen[str]") -> str:
    """What an engine that has ended said last; all that it said are lines of ours."""
    assert engine.wait(GIVE_UP_S) == 1
    assert engine.stderr is not None
    lines = engine.stderr.read().splitlines()
    told = re.compile(r"recallflow: |\d{4}-\d\d-\d\dT[\d:.]+Z (INFO|WARNING|ERROR) ")  # the end, and what is logged
    assert [line for line in lines if not told.match(line)] == []
    return lines[-1]
