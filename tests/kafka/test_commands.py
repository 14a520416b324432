"""The commands that use Kafka: topics, run, the everyday ones, doctor, erase and replays of logs and dead letters."""

import json
import select
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
import pytest
from confluent_kafka.admin import AdminClient

from recallflow.connectors.kafka import topic_reader
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.fields import parse_time
from recallflow.flows.settings import TopicNames
from recallflow.flows.topic_checks import check_control
from recallflow.kafka_options import KafkaOptions
from tests.fleet.engine import Topics
from tests.kafka.engine import Engine
from tests.kafka.harness import FLAGS, GIVE_UP_S, Command, Names, Start, flags, own_topics, read_topic, until
from tests.process import Process, command
from tools.broker import Cluster


@pytest.fixture
def at(broker: Cluster) -> list[str]:
    return ["--bootstrap-servers", broker.bootstrap_servers]


@pytest.fixture
def created(cli: Command, at: list[str], topics: Names) -> list[str]:
    done = cli("topics", "create", "--partitions", 2, *at, *flags(topics), *enrichment(topics))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def enrichment(topics: Names) -> list[str]:
    return ["--enrichment-topic", topics("enrichment.requests"), "--result-topic", topics("enrichment.results")]


def test_topics_are_created_once(
    cli: Command, broker: Cluster, created: list[str], at: list[str], topics: Names, caplog: pytest.LogCaptureFixture
) -> None:
    named = [*flags(topics), *enrichment(topics)]
    names = {*named[1::2]}
    assert set(created) == {f"{name}: created" for name in names}
    again = cli("topics", "create", *at, *named)
    assert set(again.stdout.splitlines()) == {f"{name}: exists" for name in names}
    check_control(KafkaOptions(broker.bootstrap_servers), topics("control.events"))
    assert caplog.messages == []  # no decision is ever removed, and none can be backdated


@pytest.mark.usefixtures("created")
def test_run_names_a_missing_topic_or_broker(
    cli: Command, at: list[str], topics: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ["--state-dir", str(tmp_path / "s")]
    for flag in FLAGS:
        done = cli("run", *at, *state, *flags(topics), flag, "nowhere")
        assert (done.returncode, done.stdout, "no topic nowhere" in done.stderr) == (1, "", True), done.stderr
    monkeypatch.setattr(topic_reader, "GIVE_UP_S", 0.1)
    done = cli("run", "--bootstrap-servers", "127.0.0.1:1", *state)
    assert (done.returncode, done.stdout, "127.0.0.1:1" in done.stderr) == (1, "", True), done.stderr


def test_demo_through_a_broker_equals_the_local_one(cli: Command, at: list[str], broker: Cluster) -> None:
    def demo_topics() -> set[str]:
        found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=GIVE_UP_S).topics
        return {name for name in found if "demo" in name}

    def answers(*words: str) -> list[list[str]]:
        lines = cli("demo", "--json", *words).stdout.splitlines()
        return [[memory["id"] for memory in answer["memories"]] for answer in map(orjson.loads, lines)]

    before = demo_topics()
    assert answers("--kafka", *at) == answers() != []
    assert demo_topics() == before


@pytest.fixture(autouse=True)
def _whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wrap lines at the width that pytest sets."""
    monkeypatch.delenv("COLUMNS", raising=False)


def without_control(engine: Engine) -> list[str]:
    """Return the options of an engine, without the control topic, which these commands do not take."""
    place = engine.flags.index("--control-topic")
    return [*engine.flags[:place], *engine.flags[place + 2 :]]


@pytest.fixture
def ours(engine: Engine, user: str) -> list[str]:
    """Return the options of the engine and of a user of this test's own."""
    return [*without_control(engine), "--timeout-s", "60", "--tenant", "acme", "--user", user]


def test_flag_overrides_the_engine_of_the_environment(
    cli: Command, ours: list[str], engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", engine.broker.bootstrap_servers)
    monkeypatch.setenv("RECALLFLOW_STATE_DIR", str(tmp_path / "the-engines-own"))  # its settings name both
    assert cli("remember", "tea", *ours[2:]).stdout.startswith("created: ")
    assert str(tmp_path / "none") in cli("ask", "tea?", "--state-dir", tmp_path / "none").stderr
    assert cli("ask", "tea?", *ours, "--state-dir", tmp_path / "none").returncode == 2  # two engines


def test_missing_engine_topics_and_brokers_are_named(cli: Command, deserted: Engine) -> None:
    topics = deserted.topics
    where = [*without_control(deserted), "--timeout-s", "0.5"]
    asked = cli("ask", "tea?", *where)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert topics.responses in asked.stderr
    stored = cli("remember", "tea", *where)
    assert (stored.returncode, stored.stdout) == (1, "")
    assert f"{topics.memory}:0:0" in stored.stderr
    assert topics.receipts in stored.stderr
    assert len(read_topic(deserted.broker, topics.memory)) == 1
    missing = cli("ask", "tea?", *where[:2], "--response-topic", "nowhere")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no topic nowhere" in missing.stderr
    unsent = cli("remember", "tea", *where, "--memory-topic", "nowhere")
    assert (unsent.returncode, unsent.stdout, "nowhere" in unsent.stderr) == (1, "", True)
    away = cli("remember", "tea", "--bootstrap-servers", "127.0.0.1:1", "--timeout-s", "0.5")
    assert (away.returncode, away.stdout) == (1, "")
    assert "127.0.0.1:1" in away.stderr


def test_tail_shows_malformed_records(cli: Command, deserted: Engine) -> None:
    topics = deserted.topics
    deserted.produce(topics.memory, "x/y", b"{no json", b"\xff\x1b[2J", b"[1]", {"type": 7, "content": {"a": 1}})
    deserted.produce(topics.responses, "x/y", {"memories": "many"}, {"processing_time_ms": "fast", "memories": [1]})
    deserted.produce(topics.dead_letters, "x/y", b"by hand")
    where = [*without_control(deserted), "--from", "beginning", "--count", "7"]
    shown = cli("tail", *where)
    assert (shown.returncode, shown.stderr, len(shown.stdout.splitlines())) == (0, "", 7)
    assert "\x1b" not in shown.stdout
    assert cli("tail", *where, "--json").returncode == 0
    assert len(cli("tail", *where[:-1], 1, "--only", "dead-letters").stdout.splitlines()) == 1


def test_tail_follows_new_records_until_interrupted(start: Start, deserted: Engine) -> None:
    deserted.produce(deserted.topics.memory, "a/b", {"type": "message", "content": "long before"})
    following = start("tail", *without_control(deserted), "--json")
    assert following.stdout is not None
    stdout = following.stdout

    def is_heard() -> bool:
        deserted.produce(deserted.topics.memory, "a/b", {"type": "message", "content": "now"})
        return bool(select.select([stdout], [], [], 0.2)[0])

    until(is_heard)
    assert json.loads(stdout.readline())["record"]["content"] == "now"
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=GIVE_UP_S)
    assert (following.returncode, errors) == (0, "")


Diagnosis = Callable[..., dict[str, tuple[str, str]]]

SETTINGS = {
    "control": ({"cleanup.policy": "compact"}, "FAIL", "cleanup.policy=delete"),
    "memory": ({"retention.ms": "1000000", "max.message.bytes": "100000"}, "WARN", "max.message.bytes=2097152"),
    "responses": ({"max.message.bytes": "9000"}, "FAIL", "max.message.bytes=16384"),
    "queries": ({"message.timestamp.type": "CreateTime"}, "WARN", "LogAppendTime"),
}


@pytest.fixture
def named(topics: Names) -> TopicNames:
    return own_topics(topics)


@pytest.fixture
def diagnose(named: TopicNames, broker: Cluster, cli: Command) -> Diagnosis:
    """Return a function that runs the command: check → status, finding and remedy."""

    def run(*more: str | Path) -> dict[str, tuple[str, str]]:
        words = [word for flag, name in FLAGS.items() for word in (flag, getattr(named, name))]
        done = cli("doctor", "--json", "--bootstrap-servers", broker.bootstrap_servers, *words, *more)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == any(one["status"] == "FAIL" for one in found)
        return {one["check"]: (one["status"], f"{one['what']} → {one['todo']}") for one in found}

    return run


def make_topics(broker: Cluster, topics: TopicNames, **settings: Mapping[str, str]) -> None:
    """Create the topics as `recallflow topics create` does, but for some settings."""
    chosen = {getattr(topics, topic): changed for topic, changed in settings.items()}
    keeps = {"retention.ms": "-1", "retention.bytes": "-1"}
    for name in (*topics.read_topics(), *topics.outputs()):
        base = {"max.message.bytes": "2097152"} | (keeps if name in (topics.memory, topics.control) else {})
        broker.create_topics({name: 2}, base | dict(chosen.get(name, {})))


def failed(found: Mapping[str, tuple[str, str]]) -> set[str]:
    return {check for check, (status, _) in found.items() if status == "FAIL"}


def test_sound_deployment_passes_with_readable_lines(
    diagnose: Diagnosis, cli: Command, named: TopicNames, broker: Cluster, tmp_path: Path
) -> None:
    make_topics(broker, named)
    found = diagnose("--state-dir", tmp_path / "s")
    assert {check for check, (status, _) in found.items() if status != "OK"} == {"auth"}  # there is no key
    assert found[f"topic {named.memory}"][1].startswith("2 partitions")
    assert not (tmp_path / "s").exists()
    shown = cli("doctor", "--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", "nowhere")
    assert shown.returncode == 1
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("OK    broker: ")
    (at,) = (number for number, line in enumerate(lines) if line.startswith("FAIL  topic nowhere"))
    assert "recallflow topics create" in lines[at + 1]


def test_wrong_topic_settings_are_named(
    diagnose: Diagnosis, named: TopicNames, broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(broker, named, **{topic: changed for topic, (changed, _, _) in SETTINGS.items()})
    found = diagnose()
    for topic, (_, status, todo) in SETTINGS.items():
        check = f"settings {getattr(named, topic)}"
        assert found[check][0] == status
        assert todo in found[check][1]
    assert failed(found) == {f"settings {named.control}", f"settings {named.responses}"}
    monkeypatch.setenv("RECALLFLOW_AUTH_MODE", "required")  # credentials are judged by the append time
    assert f"settings {named.queries}" in failed(diagnose())


ANN, BOB = "ann.of.green.gables@example.com", "bob.the.builder@example.com"
KEY = f"acme/{ANN}".encode()


def test_erasure_without_engine_fails_with_the_event_stored(broker: Cluster, topics: Names, cli: Command) -> None:
    where = ["--bootstrap-servers", broker.bootstrap_servers, *flags(topics)]
    assert cli("topics", "create", *where).returncode == 0
    done = cli("erase", "acme", ANN, "--timeout-s", "0", *where)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no engine applied the erasure within 0 s; is the engine running (recallflow run)?" in done.stderr
    (event,) = read_topic(broker, flags(topics, "--memory-topic")[1])
    assert event.key() == KEY


EVENTS = 1_500


def test_killed_replay_continues_without_repetition(broker: Cluster, tmp_path: Path) -> None:
    """The events have no ids; the kills come before the log is sent."""
    topics, log = Topics(broker), tmp_path / "log.jsonl"
    topics.make_one("memory", 2)
    event = {"type": "message", "tenant_id": "acme", "user_id": "ann"}
    log.write_bytes(b"".join(orjson.dumps(event | {"content": f"line {n}"}) + b"\n" for n in range(EVENTS)))
    words = ("replay", str(log), "--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", topics.of("memory"))

    def sent() -> int:
        return sum(end for _, end in topics.bounds("memory").values())

    with Process(tmp_path / "replay.log", *words, "--rate", "100") as replay:
        for _ in range(2):
            before = sent()
            replay.start()
            replay.until(lambda before=before: sent() > before + 150, "in the middle")  # type: ignore[misc]
            replay.kill()
    done = command(*words, "--json")
    assert done.code == 0, done
    assert 0 < orjson.loads(done.out)["before"] < EVENTS
    found = [orjson.loads(message.value()) for message in read_topic(broker, topics.of("memory"))]
    assert {one["content"] for one in found} == {f"line {n}" for n in range(EVENTS)}
    assert len({one["id"] for one in found}) == EVENTS  # an event that was sent again has the same id


LETTERS = 7
# Kill the replay at its n-th record (each letter has two), or behind its n-th commit.
DYING = """
import os, signal
from recallflow.connectors.kafka import sender
sender.REPLAYED_AT_ONCE = 2
produce, transact = sender.Sender.send, sender.DeadLetterReplay._transact
left = {{"send": {sends}, "commit": {commits}}}

def dying(name, call):
    def made(self, *given, **named):
        found = call(self, *given, **named)
        left[name] -= 1
        if not left[name]:
            self._producer.flush(10)
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return made

sender.Sender.send = dying("send", produce)
sender.DeadLetterReplay._transact = dying("commit", transact)
"""


def replay(engine: Engine, folder: Path, *more: str, setup: str = "") -> tuple[int, str]:
    """Return exit code and last line of a replay."""
    topics = ("--memory-topic", "memory"), ("--query-topic", "queries"), ("--dead-letter-topic", "dead_letters")
    with Process(folder / "replay.log", "dlq", "replay", *more, *engine.options(dict(topics))) as process:
        process.setup = setup
        ended = process.ends()
        return ended.code, ended.error


@pytest.mark.parametrize(("sends", "commits"), [(6, 0), (3, 0), (0, 5)], ids=["second batch", "first batch", "between"])
def test_letters_are_replayed_once_across_a_crash(deserted: Engine, tmp_path: Path, sends: int, commits: int) -> None:
    topics, broken = deserted.topics, [b'{"type": "message", "number": %d}' % number for number in range(LETTERS)]
    with deserted.running(tmp_path / "state"):
        deserted.produce(topics.memory, "acme/ann", *broken, b'{"password": "hunter2"}')
        until(lambda: len(read_topic(deserted.broker, topics.dead_letters)) == LETTERS + 1)
    appended = {one.value(): one.timestamp()[1] for one in read_topic(deserted.broker, topics.memory)}
    assert replay(deserted, tmp_path, "--dry-run") == (0, f"{LETTERS + 1} would be sent again")
    dying = DYING.format(sends=sends, commits=commits)
    assert replay(deserted, tmp_path, setup=dying)[0] == -signal.SIGKILL
    assert replay(deserted, tmp_path)[0] == 0
    assert replay(deserted, tmp_path) == (0, "0 sent again")
    with TopicReader(KafkaOptions(deserted.broker.bootstrap_servers)) as reader:  # as engines read: committed records
        again = [*reader.read_to_end(topics.memory, 0, LETTERS + 1)]
    assert sorted(one.value() for one in again) == sorted(appended)
    for one in again:
        assert dict(one.headers())["recallflow-time"] == str(appended[one.value()]).encode()


def test_replayed_message_keeps_the_time_of_its_first_append(deserted: Engine, tmp_path: Path) -> None:
    topics = deserted.topics
    with deserted.running(tmp_path / "state", "--skip", f"{topics.memory}:0:0"), deserted.client() as client:
        event = {"type": "message", "id": "m", "tenant_id": "acme", "user_id": "ann", "content": "tea"}
        deserted.produce(topics.memory, "acme/ann", orjson.dumps(event))
        until(lambda: len(read_topic(deserted.broker, topics.dead_letters)) == 1)
        assert replay(deserted, tmp_path, "--code", "skipped")[0] == 0
        until(lambda: len(client.search("tea", user="ann")) == 1)
        (memory,) = client.search("tea", user="ann")
    assert parse_time(memory.created_at) == read_topic(deserted.broker, topics.memory)[0].timestamp()[1]
