"""Outputs on a real broker: whatever a question or a record brings, the flow goes on, and says what it cut."""

import ctypes
import hashlib
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import orjson
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.broker import Cluster
from recallflow.client import RecallClient
from recallflow.errors import DeliveryFailed, InvalidRecord
from recallflow.queries import UserStats
from tests.kafka.harness import GIVE_UP_S, SESSION_S, Command, Names, Start, flags

KEY = b"acme/ann"
LARGE = {"message.max.bytes": 2_000_000}
ANY_TIME = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}


class Engine:
    """`recallflow run` on topics of this test's own, of one partition each, and what comes out of it."""

    def __init__(self, broker: Cluster, start: Start, topics: Names, folder: Path) -> None:
        self.topic = topics
        self.servers = broker.bootstrap_servers
        self.where = ["--bootstrap-servers", self.servers]
        self._start = start
        self._arguments = [
            "run",
            *self.where,
            *flags(topics),
            "--state-dir",
            folder / "s",
            "--epoch-ms",
            50,
            "--session-timeout-s",
            SESSION_S,
        ]
        self.producer = Producer({"bootstrap.servers": self.servers, **LARGE})
        self._consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "test", "isolation.level": "read_uncommitted"}
        )
        outputs = ("recall.responses", "memory.receipts", "dead.letters")
        self._consumer.assign([TopicPartition(topics(name), 0, 0) for name in outputs])

    def start(self, *more: str | Path) -> None:
        self.process = self._start(*self._arguments, *more)

    def until_up(self) -> None:
        """Queries from before the first start are not answered: asks until one is."""
        for attempt in range(60):
            self.ask("user.stats", id=f"up-{attempt}")
            if self.next(1.0) is not None:
                while self.next(0.5) is not None:
                    pass
                return
        raise AssertionError("the engine did not come up")

    def send(self, event: Any, to: str = "memory.events", **more: Any) -> str:
        """Sends an event of Ann's, or bytes as they are; returns its position."""
        placed: list[str] = []
        owner = {"tenant_id": "acme", "user_id": "ann"}
        value = orjson.dumps(owner | event) if isinstance(event, dict) else event

        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            placed.append(f"{message.topic()}:{message.partition()}:{message.offset()}")

        self.producer.produce(self.topic(to), value, **({"key": KEY} | more), on_delivery=delivered)
        assert self.producer.flush(GIVE_UP_S) == 0
        return placed[0]

    def ask(self, kind: str, **fields: Any) -> str:
        return self.send({"type": kind} | fields, "query.events")

    def next(self, timeout_s: float = 30.0) -> Any:
        """The next output of any topic."""
        return self._consumer.poll(timeout_s)

    def answer(self) -> Any:
        while (message := self.next()) is not None:
            if message.topic() != self.topic("memory.receipts"):  # of a text too long to be read to its end
                return orjson.loads(message.value())
        raise AssertionError("no answer")

    def is_there(self) -> bool:
        """Whether it still answers."""
        self.ask("user.stats", id="there?")
        return bool(self.answer()["query_id"] == "there?")

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=GIVE_UP_S)
        assert self.process.returncode == 0, said
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(GIVE_UP_S)


@pytest.fixture
def made(broker: Cluster, start: Start, topics: Names, tmp_path: Path) -> Engine:
    """Topics, and an engine that was not started."""
    names = flags(topics)[1::2]
    broker.create_topics({name: 1 for name in names if not name.startswith(("memory.events", "recall.responses"))})
    # What the topics are given here is what differs between a broker's and a topic's own settings.
    broker.create_topics({topics("memory.events"): 1}, {"max.message.bytes": "3000000"} | ANY_TIME)
    broker.create_topics({topics("recall.responses"): 1}, {"max.message.bytes": "600000"})
    return Engine(broker, start, topics, tmp_path)


@pytest.fixture
def engine(made: Engine) -> Engine:
    made.start()
    made.until_up()
    return made


def memory(memory_id: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "memory", "id": memory_id, "kind": "fact", "content": content} | fields


# ── A1: outputs larger than their topic ───────────────────────────────────────────────────────────────────────────


def test_large_answers_are_cut_where_they_are_large_and_the_flow_goes_on(engine: Engine) -> None:
    giant = "The bicycle is in the cellar. " + "x" * 999_600
    told = engine.send(memory("giant", giant))
    for number in range(9):
        told = engine.send(memory(f"m{number}", f"The bicycle number {number} is red."))
    engine.ask("recall", id="q0", query="Where is the bicycle?", wait_for=told)
    body = engine.answer()
    assert (body["status"], body["warnings"][-1]["code"]) == ("degraded", "content_cut")
    shown = {memory["id"]: memory for memory in body["memories"]}
    assert shown["giant"]["truncated"] is True
    assert giant.startswith(shown["giant"]["content"])
    assert len(shown["giant"]["content"]) > 500_000
    assert all(shown[f"m{n}"]["content"] == f"The bicycle number {n} is red." for n in range(9))

    engine.ask("recall", id="q1", query="Where is the bicycle?", max_tokens=1_000_000)
    body = engine.answer()
    items = {item["id"]: item for item in body["context"]["relevant_items"]}
    assert (items["giant"]["truncated"], "truncated" in items["m1"]) == (True, False)

    engine.ask("memory.get", id="q2", memory_id="giant")
    body = engine.answer()
    assert body["versions"][0]["truncated"] is True
    assert body["warnings"][-1]["code"] == "content_cut"
    assert engine.is_there()


def test_a_long_history_is_cut_alike(engine: Engine) -> None:
    told = engine.send(memory("m", "0" * 30_000))
    for number in range(1, 40):
        update = {"type": "memory.update", "memory_id": "m", "content": f"{number} " + "x" * 30_000}
        told = engine.send(update)
    engine.ask("recall", id="wait", query="x", wait_for=told, wait_timeout_ms=30_000, k=1)
    assert engine.answer()["query_id"] == "wait"
    engine.ask("memory.history", id="q", memory_id="m")
    versions = engine.answer()["versions"]
    assert len(versions) == 40
    assert all(version["truncated"] and len(version["content"]) > 10_000 for version in versions)
    assert engine.is_there()


def test_what_shortening_does_not_make_fit_is_an_error(engine: Engine) -> None:
    told = engine.send(memory("m", "zero", metadata={"k" * 700_000: 1}, tags=["t"]))
    engine.ask("recall", id="wait", query="zero", wait_for=told)
    assert engine.answer()["query_id"] == "wait"
    engine.ask("memory.get", id="q", memory_id="m")
    body = engine.answer()
    version = (body.get("versions") or [{}])[0]
    assert body["status"] == "error" or (version["truncated"], version["metadata"]) == (True, {})
    assert engine.is_there()


def test_large_refused_records_become_dead_letters_that_fit(engine: Engine, command: Command) -> None:
    broken = b'{"type": "message", "content": "' + b"x" * 1_048_500
    first = engine.send(broken)
    second = engine.send(b"{broken", headers=[("large", b"h" * 1_000_000), ("n", None)])
    third = engine.send(b"{broken", key=b"k" * 1_000_000)
    engine.send(b"{broken, whole", headers=[("own", None)])
    letters = [engine.next() for _ in range(4)]
    headers = [dict(letter.headers()) for letter in letters]
    assert [h["error.source"].decode() for h in headers[:3]] == [first, second, third]
    assert headers[0]["error.size"] == str(len(broken)).encode()
    assert headers[0]["error.sha256"] == hashlib.sha256(broken).hexdigest().encode()
    assert broken.startswith(letters[0].value())
    assert 1_047_000 < len(letters[0].value()) < len(broken)
    assert (letters[1].value(), headers[1]["error.headers_dropped"][:12]) == (b"{broken", b"2 headers of")
    assert (len(letters[2].key()), headers[2]["error.key_size"]) == (4_096, b"1000000")
    assert ("own", None) in letters[3].headers()
    assert engine.is_there()

    named = [*engine.where, "--dead-letter-topic", engine.topic("dead.letters")]
    listed = command("dlq", "list", *named)
    assert f"of its {len(broken)} bytes are here" in listed.stdout
    again = command("dlq", "replay", *named)
    assert again.returncode == 1
    assert "1 sent again; 3 left out, as they are not whole" in again.stdout
    assert f"{first} is not sent again: " in again.stderr
    (replayed,) = (engine.next(),)
    assert (replayed.value(), replayed.headers()[0]) == (b"{broken, whole", ("own", None))


def test_what_the_topic_takes_less_of_than_it_did_at_start_is_replaced(engine: Engine) -> None:
    engine.send(memory("m", "The bicycle is in the cellar. " + "x" * 200_000))
    assert engine.is_there()
    limit(engine, "recall.responses", 100_000)
    engine.ask("memory.get", id="large", memory_id="m")
    engine.ask("user.stats", id="small")
    found = {body["query_id"]: body for body in (engine.answer(), engine.answer())}
    assert (found["large"]["status"], found["large"]["error"]["code"]) == ("error", "too_large")
    assert found["small"]["status"] == "ok"
    assert "was refused: Broker: Message size too large" in engine.stop()


def limit(engine: Engine, name: str, most_bytes: int) -> None:
    """Changes what a topic takes."""
    change = ConfigEntry("max.message.bytes", str(most_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, engine.topic(name), incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": engine.servers})
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result()


def test_a_topic_that_takes_next_to_nothing_is_named_at_start(made: Engine) -> None:
    limit(made, "recall.responses", 10_000)
    made.start()
    _, said = made.process.communicate(timeout=GIVE_UP_S)
    assert made.process.returncode == 2
    assert f"{made.topic('recall.responses')}: max.message.bytes is too small; set it to 16384 or more" in said


def test_a_client_says_what_is_too_large_to_send(made: Engine) -> None:
    limit(made, "query.events", 20_000)
    with client_of(made) as client:
        with pytest.raises(InvalidRecord, match="over 1048576 bytes"):
            client.add("x" * 1_100_000, user="ann")
        assert client.add("x" * 1_040_000, user="ann").position.offset == 0
        with pytest.raises(DeliveryFailed, match="takes no record of this size"):
            client.search("x" * 30_000, user="ann")


def client_of(engine: Engine) -> RecallClient:
    memories, queries, responses = map(engine.topic, ("memory.events", "query.events", "recall.responses"))
    return RecallClient(
        engine.servers,
        "acme",
        memory_topic=memories,
        query_topic=queries,
        response_topic=responses,
        timeout_s=20.0,
    )


def test_a_log_line_too_large_for_the_topic_is_refused_and_the_rest_is_sent(
    made: Engine, command: Command, tmp_path: Path
) -> None:
    limit(made, "memory.events", 20_000)
    lines = [{"type": "message", "content": "x" * length} for length in (10, 30_000, 10)]
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(orjson.dumps({"tenant_id": "a", "user_id": "u"} | line) + b"\n" for line in lines))
    done = command("replay", log, *made.where, "--memory-topic", made.topic("memory.events"))
    assert done.returncode == 1, done.stderr  # not everything came in
    assert f"2 events sent to {made.topic('memory.events')}; 1 refused" in done.stdout
    (reject,) = map(orjson.loads, (tmp_path / "log.jsonl.rejects.jsonl").read_bytes().splitlines())
    assert (reject["line"], reject["error"]["code"]) == (2, "too_large")
    assert "takes 20000 bytes a record" in reject["error"]["message"]


# ── A2: records of odd headers and times, and a way past any record ───────────────────────────────────────────────


def send_raw_header(servers: str, topic: str, name: bytes, value: bytes) -> None:
    """Sends a record with a header name of any bytes, which the Python client refuses to: through librdkafka itself."""
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    for call in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_producev"):
        getattr(library, call).restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    configured = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(configured, b"bootstrap.servers", servers.encode(), error, 512) == 0, error.value
    producer = ctypes.c_void_p(library.rd_kafka_new(0, configured, error, 512))
    copy = 2
    parts = (1, topic.encode(), 4, value, ctypes.c_size_t(len(value)), 5, KEY, ctypes.c_size_t(len(KEY)), 7, copy)
    code = library.rd_kafka_producev(producer, *parts, 9, name, b"v", ctypes.c_ssize_t(1), 0)
    assert not code
    assert library.rd_kafka_flush(producer, 20_000) == 0
    library.rd_kafka_destroy(producer)


def test_a_header_name_that_is_not_utf_8_ends_nothing(engine: Engine) -> None:
    for _ in range(50):  # Python calls what it calls often in another way, in which errors may pass unseen
        engine.ask("user.stats")
    assert all(engine.next() is not None for _ in range(50))
    good = orjson.dumps({"tenant_id": "acme", "user_id": "ann"} | memory("m", "The bicycle is in the cellar."))
    send_raw_header(engine.servers, engine.topic("memory.events"), b"\xff\xfe", good)
    send_raw_header(engine.servers, engine.topic("query.events"), b"\xff\xfe", b"{broken")
    letter = engine.next()
    assert (letter.value(), dict(letter.headers())["error.headers_dropped"]) == (
        b"{broken",
        b"a header's name is not UTF-8",
    )
    engine.ask("memory.get", id="q", memory_id="m")
    assert engine.answer()["versions"][0]["content"] == "The bicycle is in the cellar."


def test_keys_and_headers_of_any_bytes_end_nothing(made: Engine) -> None:
    # No snapshot within the test: after the kill everything comes again.
    made.start("--epoch-ms", "60000")
    made.until_up()
    odd = [b"\xff\x00\xfe", b"", b"\xff" * 5_000]
    for number, key in enumerate(odd):
        headers = [("\u202e\x7f", b"\xff\x00"), ("", None)]
        made.send(memory(f"m{number}", "The bicycle is red.", receipt=True), key=key, headers=headers)
        made.send(b"{broken", key=key, headers=headers)
        made.send({"type": "user.stats"}, "query.events", key=key, headers=headers)
        made.send({"type": "recall"}, "query.events", key=key, headers=headers)
    found = [made.next() for _ in range(5 * len(odd))]
    assert {one.key() for one in found} == {key[:4_096] for key in odd}
    made.kill()
    made.start()
    assert made.is_there()
    assert made.next(1.0) is None


def test_records_of_any_time_are_taken_and_the_clock_is_warned_of(engine: Engine) -> None:
    year_287168, before_christ = 9_000_000_000_000_000, -62_135_596_900_000
    for number, at_ms in enumerate((year_287168, before_christ, -1)):
        event = {"type": "message", "id": f"m{number}", "content": f"The bicycle is red, they said {number} times."}
        told = engine.send(event, timestamp=at_ms)
    engine.ask("recall", id="q", query="What is red?", wait_for=told)
    memories = engine.answer()["memories"]
    assert {memory["created_at"] for memory in memories} == {"1970-01-01T00:00:00Z"}
    assert len(memories) == 3
    said = engine.stop()
    assert f"{engine.topic('memory.events')}: records carry their producers' times (CreateTime)" in said
    assert engine.topic("query.events") not in said.split("CreateTime")[0]


def test_a_record_can_be_passed_over(made: Engine, command: Command) -> None:
    made.start()
    made.until_up()
    made.stop()
    wanted = made.send(memory("m1", "The bicycle is in the cellar."))
    unwanted = made.send(memory("m2", "The bicycle is at Bob's."))
    told = made.send(memory("m3", "The bicycle is red."))
    asked = made.ask("recall", id="unwanted", query="Where?")
    made.ask("recall", id="q", query="Where is the bicycle?", wait_for=told, wait_timeout_ms=30_000)
    made.start("--skip", unwanted, "--skip", asked)
    found = [made.next() for _ in range(3)]
    letters = [dict(one.headers()) for one in found if one.topic() == made.topic("dead.letters")]
    assert {h["error.source"].decode(): h["error.code"] for h in letters} == {unwanted: b"skipped", asked: b"skipped"}
    (body,) = [orjson.loads(one.value()) for one in found if one.topic() == made.topic("recall.responses")]
    assert body["query_id"] == "q"
    assert {memory["id"] for memory in body["memories"]} == {"m1", "m3"}
    assert wanted != unwanted
    made.stop()
    made.start()  # without it: what was passed over stays so
    assert made.is_there()
    named = [*made.where, "--dead-letter-topic", made.topic("dead.letters")]
    assert "2 sent again" in command("dlq", "replay", "--code", "skipped", *named).stdout
    assert made.answer()["query_id"] == "unwanted"


@pytest.mark.parametrize(("position", "said"), [("memory.events", "give TOPIC"), ("elsewhere:0:1", "this run reads")])
def test_a_position_that_cannot_be_skipped_is_a_usage_error(made: Engine, position: str, said: str) -> None:
    made.start("--skip", position)
    _, told = made.process.communicate(timeout=GIVE_UP_S)
    assert made.process.returncode == 2
    assert said in told


def test_a_partition_that_is_not_there_cannot_be_skipped(made: Engine) -> None:
    made.start("--skip", f"{made.topic('memory.events')}:9:1")
    _, told = made.process.communicate(timeout=GIVE_UP_S)
    assert made.process.returncode == 2
    assert "there is no such partition" in told


# ── B5, C3: somebody else's transaction, and a tombstone ──────────────────────────────────────────────────────────


@pytest.fixture
def transaction(made: Engine) -> Iterator[Producer]:
    """A foreign producer that has a transaction open on the response and dead-letter topics until the test ends."""
    options = {"bootstrap.servers": made.servers, "transactional.id": f"foreign-{uuid.uuid4().hex}"}
    foreign = Producer(options | {"transaction.timeout.ms": 600_000})
    foreign.init_transactions(GIVE_UP_S)
    foreign.begin_transaction()
    yield foreign
    foreign.abort_transaction(GIVE_UP_S)


def test_a_foreign_open_transaction_hides_nothing_of_ours(
    made: Engine, transaction: Producer, command: Command
) -> None:
    # No snapshot within the test: what a kill leaves is to be known from the topics alone.
    made.start("--epoch-ms", "60000")
    made.until_up()
    for name in ("recall.responses", "dead.letters"):
        transaction.produce(made.topic(name), b"foreign", b"elsewhere/else")
    assert transaction.flush(GIVE_UP_S) == 0
    for number in range(13):
        made.ask("user.stats", id=f"q{number}")
    made.send(b"{broken")
    found = [made.next().value() for _ in range(16)]
    assert found.count(b"foreign") == 2
    made.kill()
    made.start("--epoch-ms", "60000")
    made.ask("user.stats", id="after")
    after = made.answer()
    assert after["query_id"] == "after"
    assert made.next(1.0) is None
    listed = command("dlq", "list", *made.where, "--dead-letter-topic", made.topic("dead.letters"))
    assert "1 dead letters" in listed.stdout
    with client_of(made) as client:
        stats = client.ask(UserStats(type="user.stats", tenant_id="acme", user_id="ann"))
        assert stats.status == "ok"


def test_a_tombstone_stays_null_in_the_dead_letter(engine: Engine, command: Command) -> None:
    engine.send(None)
    letter = engine.next()
    assert (letter.value(), letter.key()) == (None, KEY)
    named = [*engine.where, "--dead-letter-topic", engine.topic("dead.letters")]
    assert "(no value: a tombstone)" in command("dlq", "list", *named).stdout
    (listed,) = command("dlq", "list", "--json", *named).stdout.splitlines()
    assert orjson.loads(listed)["record"] is None
    assert "1 sent again" in command("dlq", "replay", *named).stdout
    assert engine.next().value() is None
