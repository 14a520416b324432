"""Brokers that stop, and gateways before them; a network that is cut between an engine and its broker."""

import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.faults.conftest import MakeEngine
from tests.fleet.checker import check, settled
from tests.fleet.engine import Engine, Topics
from tests.fleet.records import Log, Reader
from tests.process import GIVE_UP_S, Process
from tools.broker import HOST, Broker, Cluster

STOP_S = 10  # a stop without brokers; a slow machine adds to it
COUNTERS = ("recallflow_dead_letters_total", "recallflow_responses_total", "recallflow_misrouted_records_total")


@pytest.fixture
def topics(own_broker: Broker) -> Topics:
    made = Topics(own_broker)
    made.make()
    return made


def test_an_outage_is_reported_and_survived(
    own_broker: Broker, engine: Engine, log: Log, reader: Reader, make_engine: MakeEngine
) -> None:
    """Another engine is stopped during the outage, and cannot be started."""
    others = Topics(own_broker)
    others.make(1)
    other = make_engine(others, name="other")
    engine.start()
    other.up()
    engine.await_ready()
    begun = engine.metrics()
    assert begun["recallflow_connected"] == 1
    for name in COUNTERS:
        assert any(sample.startswith(name) for sample in begun), name
    log.talk(5)
    assert reader.until(lambda: settled(log, reader))
    own_broker.stop(hard=True)
    engine.until(lambda: engine.metrics()["recallflow_connected"] == 0, "disconnected")
    engine.until(lambda: engine.probe("/readyz") == 503, "not ready")
    assert engine.probe("/livez") == 200
    log.tell("ann", content="meanwhile")
    log.ask("ann", "user.stats")
    other.until(lambda: other.probe("/readyz") == 503, "not ready")
    began_s = time.monotonic()
    ended = other.stop()
    assert (ended.code in (0, 1), ended.plain) == (True, True), ended
    assert len(ended.said.splitlines()) < 30, ended.said
    assert time.monotonic() - began_s < 3 * STOP_S
    started = other.ends()
    assert (started.code, started.plain) == (1, True), started
    assert own_broker.bootstrap_servers in started.error
    own_broker.start()
    log.flush()
    engine.await_ready()
    assert engine.metrics()["recallflow_connected"] == 1
    log.talk(5)
    assert reader.until(lambda: settled(log, reader))
    found = check(log, reader)
    assert found.clean(), found
    assert engine.stop().code == 0


USERS = [f"user{number}" for number in range(6)]


def answers(url: str, user: str, over: threading.Event, told: Counter[str]) -> None:
    """Ask for a user's memory until the end, and count the answers by content. Everybody uses the same ids."""
    asked = {"type": "memory.get", "tenant_id": "acme", "user_id": user, "id": "q", "memory_id": "name"}
    while not over.is_set():
        with suppress(httpx.TransportError):  # its gateway was killed
            answer = httpx.post(f"{url}/memory/query", json=asked, timeout=GIVE_UP_S).json()
            told[answer["versions"][0]["content"] if answer["status"] == "ok" else str(answer)] += 1


def test_killed_gateway_and_broker_lose_and_cross_no_answer(
    own_broker: Broker, topics: Topics, make_engine: MakeEngine, log: Log, tmp_path: Path
) -> None:
    """Two gateways share a reply partition; each serves half of the users."""
    topics.make_one("reply", 2)
    replies = ("--reply-topic", topics.of("reply"))
    engine, over, told = make_engine(topics, *replies), threading.Event(), {user: Counter[str]() for user in USERS}
    words = ("--bootstrap-servers", own_broker.bootstrap_servers, *topics.arguments(), *replies)
    serve = ("serve", *words, "--reply-partition", "1")
    patient = {"RECALLFLOW_SERVE_TIMEOUT_S": "60"}  # longer than the outage

    def await_more() -> None:
        before = {user: found.total() for user, found in told.items()}
        engine.until(lambda: all(found.total() > before[user] + 5 for user, found in told.items()), "answering")

    with (
        Process(tmp_path / "one.log", *serve, environment=patient) as one,
        Process(tmp_path / "other.log", *serve, environment=patient) as other,
        ThreadPoolExecutor(len(USERS)) as pool,
    ):
        for process in (engine, one, other):
            process.up()
        for user in USERS:
            log.tell(user, id="name", content=user)
        log.flush()
        engine.until(lambda: engine.metrics()["recallflow_memories"] == len(USERS), "told")
        try:
            urls = (one.url(), other.url())
            asking = [pool.submit(answers, urls[n % 2], user, over, told[user]) for n, user in enumerate(USERS)]
            await_more()
            one.kill()
            one.up()
            await_more()
            own_broker.stop(hard=True)
            other.until(lambda: not other.ready(), "not ready")
            own_broker.start()
            await_more()
            other.await_ready()
        finally:
            over.set()
        for finished in asking:
            finished.result()
        assert {user: {*found} for user, found in told.items()} == {user: {user} for user in USERS}
        assert "Traceback" not in one.said() + other.said()


LATE = 10_000  # messages: they take an engine some seconds, so that it answers queries before their end


class Wire:
    """A proxy of the broker's `wire_port`. A cut closes all connections, and each new one at once."""

    def __init__(self, broker: Broker) -> None:
        self._target, self._entrance = (HOST, broker.wired_port), socket.create_server((HOST, broker.wire_port))
        self._ends: list[socket.socket] = []
        self._whole = True
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        self._whole = False
        for end in self._ends:
            with suppress(OSError):  # the other side may have closed it
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self.cut()
        self._entrance.shutdown(socket.SHUT_RDWR)
        self._entrance.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, broker = self._entrance.accept()[0], socket.create_connection(self._target)
                self._ends += [client, broker]
                for ends in ((client, broker), (broker, client)):
                    threading.Thread(target=carry, args=ends, daemon=True).start()
                if not self._whole:
                    self.cut()


def carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError), sink:
        while data := source.recv(65_536):
            sink.sendall(data)


def test_answers_after_a_cut_warn_until_caught_up(
    own_broker: Broker, topics: Topics, make_engine: MakeEngine, log: Log, reader: Reader
) -> None:
    with closing(Wire(own_broker)) as wire:
        engine = make_engine(Topics(Cluster(f"{HOST}:{own_broker.wire_port}"), topics.suffix))
        engine.up()
        log.talk(10)
        assert reader.until(lambda: settled(log, reader))
        wire.cut()
        engine.until(lambda: engine.probe("/readyz") == 503, "cut off")
        for number in range(LATE):
            log.tell(f"user{number % 5}", content=f"harbour {number}", receipt=False).wants = [frozenset()]
        asked = [log.ask(f"user{number}", "user.stats") for number in range(5)]
        log.flush()
        wire.mend()
        engine.await_ready()
        late = [reader.answer(sent.query_id) for sent in asked]
        whole, warned = LATE // 5 + 2, ["catching_up" in {one["code"] for one in body["warnings"]} for body in late]
        assert any(warned)
        assert all(warns or body["stats"]["memories"] == whole for warns, body in zip(warned, late, strict=True))
        body = reader.answer(log.ask("user1", "user.stats").query_id)
        assert (body["status"], body["stats"]["memories"]) == ("ok", whole)
        assert (found := check(log)).clean(), found
        engine.kill()
