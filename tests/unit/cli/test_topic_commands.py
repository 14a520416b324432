"""The commands that read and write topics and checkpoints, over a Kafka in this process."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from recallflow.cli.publish import Target
from recallflow.connectors.checkpoints.generation import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.connectors.kafka import sender
from recallflow.connectors.kafka.admin import TopicConfig
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.control import ApiKey, ControlHistory
from recallflow.credentials import mask
from tests.unit.cli.harness import Cli, assert_error, parsed
from tests.unit.connectors.fake_consumer import FakeKafka
from tests.unit.connectors.fake_kafka import FakeProducer

SERVERS = ("--bootstrap-servers", "nowhere:1")
TOPICS = ("memory.events", "query.events", "recall.responses", "memory.receipts", "dead.letters")
TAIL = ("tail", *SERVERS, "--receipt-topic", "memory.receipts", "--from", "beginning", "--json")


@dataclass
class Topics:
    kafka: FakeKafka
    producer: FakeProducer

    def sent(self) -> list[tuple[str, bytes | None]]:
        """Records that were sent, without the marks of replayed dead letters."""
        return [(record.topic, record.value) for record in self.producer.log if record.topic != "dead.letters"]

    def refuse(self, value: bytes | None, code: str, **error: str) -> None:
        fields = {"code": code, "detail": "a reason", "source": "memory.events:0:7", "time": "5"} | error
        headers = (("trace", b"1"), *((f"error.{name}", text.encode()) for name, text in fields.items()))
        at_ms = len(self.kafka.topics["dead.letters"][0].messages) * 1_000
        self.kafka.append("dead.letters", 0, value, b"acme/ann", headers=headers, append_ms=at_ms)


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Topics:
    made = Topics(FakeKafka(**dict.fromkeys(TOPICS, 2)), FakeProducer())
    defaults = TopicReader.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "new_consumer", made.kafka.consumer)
    monkeypatch.setattr(sender, "Producer", lambda _: made.producer)

    def topic_configs(_: object, asked: Iterable[str]) -> dict[str, TopicConfig]:
        return dict.fromkeys(asked, TopicConfig(20_000))

    monkeypatch.setattr(sender, "topic_configs", topic_configs)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.setattr(Target, "of", lambda _, topic: Target("c", topic, "t", len(made.sent()), len(made.sent())))
    return made


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ((), ["acme/ann", "acme/bob", "acme2/ann", "acme/ann"]),
        (("--tenant", "acme"), ["acme/ann", "acme/bob", "acme/ann"]),
        (("--tenant", "acme", "--user", "ann"), ["acme/ann", "acme/ann"]), (("--only", "responses"), ["acme/ann"]),
    ],
)  # fmt: skip
def test_tail_shows_records_of_named_owners(cli: Cli, topics: Topics, words: tuple[str, ...], keys: list[str]) -> None:
    for number, key in enumerate(("acme/ann", "acme/bob", "acme2/ann")):
        topics.kafka.append(
            "memory.events", number % 2, orjson.dumps({"type": "message", "content": key}), key.encode()
        )
    topics.kafka.append("recall.responses", 0, orjson.dumps({"status": "ok"}), b"acme/ann")
    done = cli(*TAIL, *words, "--count", str(len(keys)))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(orjson.loads(line)["key"] for line in done.stdout.splitlines()) == sorted(keys)


@pytest.mark.parametrize(("words", "flag"), [(("--user", "ann"), "--user"), (("--count", "0"), "--count")])
def test_tail_refuses_an_unclear_choice(cli: Cli, topics: Topics, words: tuple[str, ...], flag: str) -> None:
    done = cli(*TAIL, *words)
    assert (done.returncode, done.stdout, flag in done.stderr, topics.kafka.consumers) == (2, "", True, [])


def test_dead_letters_are_listed_by_code(cli: Cli, topics: Topics) -> None:
    topics.refuse(b"{", "invalid_json")
    topics.refuse(None, "internal_error")
    topics.refuse(b"cut", "too_large", size="9000", sha256="00")
    listed = cli("dlq", "list", *SERVERS).stdout
    assert [code in listed for code in ("invalid_json", "internal_error", "too_large", "9000")] == [True] * 4
    (line,) = cli("dlq", "list", "--code", "invalid_json", "--json", *SERVERS).stdout.splitlines()
    assert (orjson.loads(line)["record"], orjson.loads(line)["headers"]) == ("{", [["trace", "1"]])
    assert "headers: trace=1" in listed


@pytest.mark.parametrize(
    ("words", "sent", "code"),
    [
        ((), [b"one", b"two"], 1), (("--code", "internal_error"), [b"one", b"two"], 0),
        (("--code", "forbidden"), [b"denied"], 0), (("--code", "too_large"), [], 1),
        (("--code", "unknown_type"), [], 0), (("--dry-run",), [], 1),
        (("--code", "internal_error", "--since", "1970-01-01T00:00:02Z"), [b"two"], 0),
        (("--until", "1970-01-01T00:00:01Z"), [b"one"], 0), (("--since", "soon"), [], 2),
    ],
)  # fmt: skip
def test_replay_sends_whole_records_of_allowed_senders(
    cli: Cli, topics: Topics, words: tuple[str, ...], sent: list[bytes], code: int
) -> None:
    topics.refuse(b"one", "internal_error")
    topics.refuse(b"denied", "forbidden")
    topics.refuse(b"two", "internal_error")
    topics.refuse(b"cut", "too_large", size="9000", sha256="00")
    done = cli("dlq", "replay", *words, *SERVERS)
    assert (done.returncode, topics.sent()) == (code, [("memory.events", value) for value in sent])
    replayed = [record for record in topics.producer.log if record.topic != "dead.letters"]
    assert all((one.headers, one.sent_ms) == ({"trace": b"1", "recallflow-time": b"5"}, 5) for one in replayed)


def test_incomplete_letters_are_completed_from_their_topic(cli: Cli, topics: Topics) -> None:
    secret, large = b'{"password": "hunter2"}', b"x" * 9_000
    for value in (secret, large, b"another record"):
        topics.kafka.append("memory.events", 0, value, b"acme/ann", headers=(("trace", b"1"), ("x-api-key", b"k")))
    whole = {"size": "9000", "sha256": hashlib.sha256(large).hexdigest()}
    topics.refuse(mask(secret)[0], "internal_error", masked="1", source="memory.events:0:0")
    topics.refuse(large[:50], "internal_error", source="memory.events:0:1", **whole)
    topics.refuse(large[:50], "internal_error", source="memory.events:0:2", **whole)
    topics.refuse(large[:50], "internal_error", source="memory.events:0:9", **whole)
    done = cli("dlq", "replay", *SERVERS)
    assert (done.returncode, [value for _, value in topics.sent()]) == (1, [secret, large])
    assert all("x-api-key" not in record.headers for record in topics.producer.log)


def test_replayed_log_is_sent_once(cli: Cli, topics: Topics, tmp_path: Path) -> None:
    event = {"type": "message", "tenant_id": "acme", "user_id": "ann"}
    lines = [orjson.dumps(event | {"content": f"line {number}"}) for number in range(3)]
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([*lines, b"{broken", orjson.dumps(event | {"content": "x" * 30_000})]) + b"\n")
    first, again = (cli("replay", log, *SERVERS) for _ in range(2))
    assert (first.returncode, again.returncode) == (1, 0)
    sent = [orjson.loads(value or b"") for _, value in topics.sent()]
    assert [one["content"] for one in sent] == ["line 0", "line 1", "line 2"]
    assert len({one["id"] for one in sent}) == 3
    rejects = (tmp_path / "log.jsonl.rejects.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["line"] for line in rejects] == [4, 5]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """DecisionSender about keys of two tenants, as the control topic holds it."""
    history = ControlHistory()
    for at_ms, tenant, name, fields in (
        (1_000, "acme", "a1", {"end_users": ["ann"], "by": "kim"}),
        (2_000, "acme", "b2", {}),
        (3_000, "acme", "b2", {"revoked": True, "why": "leaked"}),
        (4_000, "acme2", "c3", {}),
    ):
        event = {"type": "api_key", "tenant_id": tenant, "name": name, "salt": "s", "hash": "h"} | fields
        history.add(at_ms, ApiKey.model_validate(event))
    table = SimpleNamespace(history=history, close=lambda: None)
    monkeypatch.setattr("recallflow.cli.tenants.control_table", lambda _: table)
    monkeypatch.setattr("recallflow.cli.tenants.check_signing", lambda _: None)


@pytest.mark.usefixtures("keys")
def test_keys_of_a_tenant_are_listed_with_scope_and_revocation(cli: Cli) -> None:
    done = cli("keys", "list", "acme", "--json", *SERVERS)
    listed = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert [(one["name"], one["end_users"], one["revoked"], one["why"]) for one in listed] == [
        ("a1", ["ann"], None, None), ("b2", None, "1970-01-01T00:00:03Z", "leaked"),
    ]  # fmt: skip
    assert [line.split(";")[0] for line in cli("keys", "list", "acme", *SERVERS).stdout.splitlines()] == ["a1", "b2"]
    assert cli("keys", "list", "nobody", *SERVERS).stdout == ""


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("name", "code"), [("b2", 0), ("c3", 2)], ids=["revoked before", "of another tenant"])
def test_revoking_no_current_key_decides_nothing(cli: Cli, name: str, code: int) -> None:
    assert cli("keys", "revoke", "acme", name, *SERVERS).returncode == code


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a store with two generations of one state partition, and one of another."""
    url = (tmp_path / "store").as_uri()
    store, folder = CheckpointStore.open(url), tmp_path / "folder"
    folder.mkdir()
    for number, offset in ((0, 7), (0, 1_234), (11, -1)):
        (folder / "1.sst").write_bytes(b"%d" % offset * 5)
        about = CheckpointOrigin(
            8, number, 16, f"memory.events:{number}", {f"memory.events:{number}": offset}, "acme", "run", 0, {}
        )
        store.save(number, folder, about)
    return url


def test_generations_are_listed_newest_first(cli: Cli, url: str) -> None:
    done = cli("checkpoints", "list", url)
    assert (done.returncode, done.stderr) == (0, "")
    names, *rows = (line.split() for line in done.stdout.splitlines())
    assert names == ["partition", "offset", "created", "deployment", "bytes", "generation"]
    assert [row[:5] for row in rows] == [
        ["0", "1,234", "1970-01-01T00:00:00Z", "acme", "20"], ["0", "7", "1970-01-01T00:00:00Z", "acme", "5"],
        ["11", "-1", "1970-01-01T00:00:00Z", "acme", "10"],
    ]  # fmt: skip
    listed = parsed(cli("checkpoints", "list", url, "--json").stdout)
    assert [(one["partition"], one["offset"], one["source"]) for one in listed] == [
        (0, 1234, "memory.events:0"), (0, 7, "memory.events:0"), (11, -1, "memory.events:11"),
    ]  # fmt: skip


def test_verify_reads_every_object_and_names_the_damaged(cli: Cli, url: str, tmp_path: Path) -> None:
    done = cli("checkpoints", "verify", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 generations of 3 objects\n")
    (of_the_other,) = (tmp_path / "store" / "p011" / "objects").iterdir()
    of_the_other.write_bytes(b"-1-1-1-1-2")
    last = max((tmp_path / "store" / "p000" / "manifests").iterdir())
    last.write_bytes(b"{")
    done = cli("checkpoints", "verify", url, "--json")
    assert done.returncode == 1
    found = orjson.loads(done.stdout)
    assert (found["generations"], found["objects"]) == (2, 2)
    assert [problem.split(": ")[0] for problem in found["problems"]] == ["p000", "p011"]
    assert "SHA-256" in found["problems"][1]
    assert cli("checkpoints", "verify", url).stdout.splitlines()[:2] == found["problems"]


def test_missing_store_is_named(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "mistyped").as_uri()
    assert_error(cli("checkpoints", "verify", url), 1, url)
    assert_error(cli("checkpoints", "list", url), 0, url)
    assert not (tmp_path / "mistyped").exists()
    assert_error(cli("checkpoints", "list", "ftp://host/x"), 2, "scheme: ftp")
