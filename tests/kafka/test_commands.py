"""The commands that use Kafka: topics, run, the everyday ones, doctor, erase and replays."""

import gzip
import json
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker import HOST, Cluster, free_ports
from recallflow.client import RecallClient
from recallflow.connectors.kafka import topic_reader
from recallflow.flows.export import export
from recallflow.flows.settings import TopicNames
from recallflow.flows.topic_checks import check_control
from recallflow.kafka_options import KafkaOptions
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import StateDirectory
from recallflow.state.verify import verify
from tests.kafka.engine import Engine
from tests.kafka.harness import (
    FLAGS,
    GIVE_UP_S,
    Command,
    Names,
    Start,
    flags,
    own_topics,
    produce,
    read_topic,
    until,
    watched,
)
from tests.starts import fork_server

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def at(broker: Cluster) -> list[str]:
    return ["--bootstrap-servers", broker.bootstrap_servers]


@pytest.fixture
def created(cli: Cli, at: list[str], topics: Names) -> list[str]:
    done = cli("topics", "create", "--partitions", 2, *at, *flags(topics), *enrichment(topics))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def enrichment(topics: Names) -> list[str]:
    return ["--enrichment-topic", topics("enrichment.requests"), "--result-topic", topics("enrichment.results")]


def values(broker: Cluster, topic: str) -> list[tuple[bytes, bytes]]:
    return [(message.key() or b"", message.value() or b"") for message in read_topic(broker, topic)]


def test_topics_are_created_once(
    cli: Cli, broker: Cluster, created: list[str], at: list[str], topics: Names, caplog: pytest.LogCaptureFixture
) -> None:
    named = [*flags(topics), *enrichment(topics)]
    names = {*named[1::2]}
    assert set(created) == {f"{name}: created" for name in names}
    again = cli("topics", "create", *at, *named)
    assert set(again.stdout.splitlines()) == {f"{name}: exists" for name in names}
    check_control(KafkaOptions(broker.bootstrap_servers), topics("control.events"))
    assert caplog.messages == []  # no decision is ever removed, and none can be backdated


# ── run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


def metrics(port: int) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(ask(port, "/metrics")[1])
    samples = [sample for family in families for sample in family.samples]
    return {(one.name.removeprefix("recallflow_"), "/".join(one.labels.values())): one.value for one in samples}


def lags(found: dict[tuple[str, str], float]) -> list[float]:
    return [value for (name, _), value in found.items() if name == "consumer_lag_records"]


@pytest.mark.usefixtures("created")
def test_run_answers_counts_and_stops_on_sigterm(
    cli: Cli, start: Start, broker: Cluster, at: list[str], topics: Names, tmp_path: Path
) -> None:
    port = free_ports(None)[0]
    shape = ["--episode-gap-minutes", "5", "--epoch-ms", "50", "--cache-bytes", "64MiB"]
    where = ["--state-dir", tmp_path / "s", "--metrics-port", port]
    engine = start("run", *at, *flags(topics), *where, *shape)
    until(lambda: ask(port, "/livez")[0] == 200)
    until(lambda: ask(port, "/readyz")[0] == 200)

    memory = {"type": "message", "id": "m1", "content": "The bicycle is in the cellar.", "receipt": True}
    produce(broker, topics("memory.events"), memory, {"type": "message", "id": "m2"})
    until(lambda: metrics(port).get(("outputs_total", "dead_letter")) == 1)  # it is through: the query will see both
    produce(broker, topics("query.events"), {"type": "recall", "id": "q1", "query": "Where is the bicycle?"})
    until(lambda: metrics(port).get(("outputs_total", "response")) == 1)
    until(lambda: lags(metrics(port)) == [0] * 4)  # of two topics of two partitions
    found = metrics(port)
    assert found["records_total", topics("memory.events")] == 2
    assert found["records_total", topics("query.events")] == 1
    assert found["outputs_total", "receipt"] == 1
    assert found["dead_letters_total", "invalid_event"] == 1
    assert found["responses_total", "ok"] == found["response_processing_seconds_count", ""] == 1
    assert (found["in_flight_records", ""], found["waiting_queries", ""]) == (0, 0)
    assert found["hot_cache_bytes", ""] > 0

    ((_, response),) = values(broker, topics("recall.responses"))
    assert orjson.loads(response)["memories"][0]["id"] == "m1"
    listed = cli("dlq", "list", "--json", *at, *flags(topics, "--dead-letter-topic"))
    assert orjson.loads(listed.stdout)["error"]["code"] == "invalid_event"

    engine.send_signal(signal.SIGTERM)
    _, said = engine.communicate(timeout=30)
    assert engine.returncode == 0, said
    assert ask(port, "/livez")[0] == 0
    info = orjson.loads(cli("state", "info", "--json", "--state-dir", tmp_path / "s").stdout)
    assert (info["partitions"], info["episode_gap_minutes"]) == (2, 5.0)


@pytest.mark.usefixtures("created")
def test_run_names_a_missing_topic_or_broker(
    cli: Cli, at: list[str], topics: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ["--state-dir", str(tmp_path / "s")]
    for flag in FLAGS:
        done = cli("run", *at, *state, *flags(topics), flag, "nowhere")
        assert (done.returncode, done.stdout, "no topic nowhere" in done.stderr) == (1, "", True), done.stderr
    monkeypatch.setattr(topic_reader, "GIVE_UP_S", 0.1)
    done = cli("run", "--bootstrap-servers", "127.0.0.1:1", *state)
    assert (done.returncode, done.stdout, "127.0.0.1:1" in done.stderr) == (1, "", True), done.stderr


def test_demo_through_a_broker_equals_the_local_one(cli: Cli, at: list[str], broker: Cluster) -> None:
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


def test_remembered_fact_is_found_listed_shown_and_forgotten(cli: Cli, ours: list[str], engine: Engine) -> None:
    stored = cli("remember", "Ana is allergic to walnuts", "--tag", "food", *ours)
    assert (stored.returncode, stored.stderr) == (0, "")
    outcome, memory_id = stored.stdout.strip().split(": ")
    assert (outcome, memory_id.startswith(engine.topics.memory)) == ("created", True)
    asked = cli("ask", "What is Ana allergic to?", *ours)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "Ana is allergic to walnuts" in asked.stdout
    assert [line.split("\t")[1] for line in cli("list", *ours).stdout.splitlines()] == [memory_id]
    assert "food" in cli("show", memory_id, *ours).stdout
    assert cli("forget", memory_id, *ours).returncode == 0
    assert "walnuts" not in cli("list", *ours).stdout


def test_flag_overrides_the_engine_of_the_environment(
    cli: Cli, ours: list[str], engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", engine.broker.bootstrap_servers)
    monkeypatch.setenv("RECALLFLOW_STATE_DIR", str(tmp_path / "the-engines-own"))  # its settings name both
    assert cli("remember", "tea", *ours[2:]).stdout.startswith("created: ")
    assert str(tmp_path / "none") in cli("ask", "tea?", "--state-dir", tmp_path / "none").stderr
    assert cli("ask", "tea?", *ours, "--state-dir", tmp_path / "none").returncode == 2  # two engines


def test_missing_engine_topics_and_brokers_are_named(cli: Cli, deserted: Engine) -> None:
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
    away = cli("remember", "tea", "--bootstrap-servers", "127.0.0.1:1", "--timeout-s", "0.5")
    assert (away.returncode, away.stdout) == (1, "")
    assert "127.0.0.1:1" in away.stderr


def test_tail_shows_malformed_records(cli: Cli, deserted: Engine) -> None:
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
def diagnose(named: TopicNames, broker: Cluster, cli: Cli) -> Diagnosis:
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
    for name in (*topics.read(), *topics.outputs()):
        base = {"max.message.bytes": "2097152"} | (keeps if name in (topics.memory, topics.control) else {})
        broker.create_topics({name: 2}, base | dict(chosen.get(name, {})))


def failed(found: Mapping[str, tuple[str, str]]) -> set[str]:
    return {check for check, (status, _) in found.items() if status == "FAIL"}


def test_sound_deployment_passes_with_readable_lines(
    diagnose: Diagnosis, cli: Cli, named: TopicNames, broker: Cluster, tmp_path: Path
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


def test_missing_topic_clock_and_stray_control_event_are_named(
    diagnose: Diagnosis, named: TopicNames, broker: Cluster
) -> None:
    present = [name for name in (*named.read(), *named.outputs()) if name != named.receipts]
    broker.create_topics(dict.fromkeys(present, 1), {"message.timestamp.type": "CreateTime"})
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(named.memory, b"{}", timestamp=int(time.time() * 1000) + 600_000)
    producer.produce(named.control, b"nonsense", b"acme")
    assert producer.flush(10) == 0
    found = diagnose()
    assert failed(found) == {f"topic {named.receipts}", "clock"}
    assert found["control events"][0] == "WARN"
    assert "no_event" in found["control events"][1]


ANN, BOB = "ann.of.green.gables@example.com", "bob.the.builder@example.com"
KEY = f"acme/{ANN}".encode()
DAY_MS = 86_400_000


class Deployed(NamedTuple):
    """A deployment with a compacted topic of responses, and a checkpoint of it."""

    folder: Path
    where: list[str]
    topics: dict[str, str]  # by what the settings call them
    checkpoint: Path

    @property
    def state_dir(self) -> list[str]:
        return ["--state-dir", str(self.folder)]

    def client(self, broker: Cluster) -> RecallClient:
        called = {"memory": "memory", "query": "queries", "response": "responses", "control": "control"}
        names = {f"{name}_topic": self.topics[topic] for name, topic in called.items()}
        return RecallClient(broker.bootstrap_servers, "acme", timeout_s=60.0, **names)  # type: ignore[arg-type]


def await_ready(engine: subprocess.Popen[str]) -> None:
    assert engine.stderr is not None
    assert any(" ready after " in line for line in engine.stderr)


@pytest.fixture
def deployed(broker: Cluster, topics: Names, tmp_path: Path, cli: Cli, start: Start) -> Deployed:
    """Two users with memories and questions, a checkpoint of the stopped engine, and the engine running again."""
    where = ["--bootstrap-servers", broker.bootstrap_servers, *flags(topics)]
    named = {name: flags(topics, flag)[1] for flag, name in FLAGS.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    compacted = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(named["responses"], 1, 1, config=compacted)])[named["responses"]].result()
    assert cli("topics", "create", *where).returncode == 0
    deployed = Deployed(tmp_path / "s", where, named, tmp_path / "checkpoint")
    engine = start("run", *where, *deployed.state_dir)
    await_ready(engine)
    with deployed.client(broker) as client:
        for user, place in ((ANN, "Prince Edward Island"), (BOB, "Bobland Bay")):
            told = client.add(f"The cottage stands on {place}", user=user, id=f"{user}:1", tags=[f"about {place}"])
            said = {"role": "user", "content": f"Everybody likes the sea; {place} has plenty of it"}
            client.add(said, user=user, session=f"session of {user}")
            assert client.search("where is the cottage", user=user, after=told)
    engine.send_signal(signal.SIGTERM)
    assert engine.wait() == 0
    assert cli("state", "checkpoint", deployed.checkpoint, *deployed.state_dir).returncode == 0
    await_ready(start("run", *where, *deployed.state_dir))
    return deployed


def test_erase_removes_a_user_and_reports_the_rest(
    broker: Cluster, deployed: Deployed, cli: Cli, tmp_path: Path
) -> None:
    told = cli("export", "acme", ANN, "--state-dir", deployed.checkpoint, "--out", tmp_path / "ann.jsonl")
    assert told.returncode == 0, told.stderr
    before = cli("erase", "acme", ANN, "--verify-only", "--export", tmp_path / "ann.jsonl", "--checkpoint",
                     deployed.checkpoint, *deployed.where, *deployed.state_dir, "--timeout-s", "0")  # fmt: skip
    assert before.returncode == 1
    assert before.stdout.count("FOUND") >= 2  # in the directory and in the checkpoint
    done = cli(
        "erase", "acme", ANN, "--verify", "--export", tmp_path / "ann.jsonl", "--compact-kafka", "--checkpoint",
        deployed.checkpoint, *deployed.where, *deployed.state_dir, "--timeout-s", "10",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stderr.startswith("recallflow: directories of other members were not searched. ")
    said = done.stdout.strip()
    assert f"{deployed.checkpoint}: user {ANN} of tenant acme is erased" in said
    assert f"{deployed.topics['memory']}: 3 records" in said
    assert "cleanup.policy=delete: no expiry (retention.ms=-1)" in said
    assert f"{deployed.topics['queries']}: 1 records" in said
    assert f"retention.ms={7 * DAY_MS}" in said
    assert f"{deployed.topics['responses']}: 1 records" in said
    assert f"{deployed.topics['responses']}: tombstones written" in said
    assert said.count("tombstones written") == 1
    assert "\nnothing was found\n" in said
    assert said.endswith("no pending purges")
    assert not any(words in done.stdout for words in ("cottage", "Prince"))

    assert cli("state", "restore", deployed.checkpoint, "--state-dir", tmp_path / "restored").returncode == 0
    assert verify(tmp_path / "restored").problems == []
    with StateDirectory.existing(tmp_path / "restored", CACHE_BYTES) as directory:
        assert [one["type"] for one in export(directory, "acme", ANN)] == ["erased"]
        assert [one["type"] for one in export(directory, "acme", BOB)].count("memory") == 2
    in_use = cli("erase", "acme", ANN, "--checkpoint", deployed.folder, *deployed.where)
    assert (in_use.returncode, "NOT erased" in in_use.stdout) == (1, True)  # no checkpoint: the engine has it open

    under_key = [one for one in read_topic(broker, deployed.topics["responses"]) if one.key() == KEY]
    assert [one.value() is None for one in under_key] == [False, True]
    assert not read_topic(broker, deployed.topics["dead_letters"])
    with deployed.client(broker) as client:
        assert client.search("where is the cottage", user=ANN)[:] == ()
        assert [one.content for one in client.search("where is the cottage", user=BOB, k=1)] == [
            "The cottage stands on Bobland Bay"
        ]


def test_erasure_without_engine_fails_with_the_event_stored(broker: Cluster, topics: Names, cli: Cli) -> None:
    where = ["--bootstrap-servers", broker.bootstrap_servers, *flags(topics)]
    assert cli("topics", "create", *where).returncode == 0
    done = cli("erase", "acme", ANN, "--timeout-s", "0", *where)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no engine applied the erasure within 0 s; is the engine running (recallflow run)?" in done.stderr
    (event,) = read_topic(broker, flags(topics, "--memory-topic")[1])
    assert event.key() == KEY


COUNT = 1_500
ACKNOWLEDGED = (130, 470)  # records in a run that is killed
SAVED_EVERY = 100  # acknowledged records

# The real command. However fast the machine is, it is killed once the n-th record of the run is acknowledged, and keeps
# how far it got by the count of records: its clock goes on with them.
KILLED = f"""
import os, signal, sys
from types import SimpleNamespace
from recallflow.cli import main, publish

last, acknowledged = int(sys.argv.pop(1)), 0

class Killed(publish.Publisher):
    def __init__(self, options, topic, reached, credentials=()):
        def told(count):
            global acknowledged
            acknowledged = count
            reached(count)
            if count >= last:
                os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(options, topic, told, credentials)

publish.Publisher = Killed
publish.time = SimpleNamespace(monotonic=lambda: acknowledged * publish.SAVE_EVERY_S / {SAVED_EVERY})
sys.exit(main())
"""


def lines(path: Path) -> None:
    """Events without ids, packed."""
    event = {"type": "message", "tenant_id": "acme", "user_id": "ann"}
    path.write_bytes(gzip.compress(b"\n".join(orjson.dumps(event | {"content": f"line {n}"}) for n in range(COUNT))))


def test_a_killed_replay_continues_without_repetition(
    broker: Cluster, command: Command, topics: Names, tmp_path: Path
) -> None:
    log, topic = tmp_path / "log", topics("memory.events")
    lines(log)
    broker.create_topics({topic: 2})
    words = ["replay", str(log), "--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", topic]
    for last in ACKNOWLEDGED:
        # At this rate some of the log is not sent yet, and some is and not acknowledged.
        killed = fork_server().start(KILLED, [str(last), *words, "--rate", "1500"], text=True)
        with watched(killed):
            _, errors = killed.communicate()
        assert killed.returncode == -signal.SIGKILL, errors
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    found = [orjson.loads(message.value() or b"") for message in read_topic(broker, topic)]
    assert {one["content"] for one in found} == {f"line {n}" for n in range(COUNT)}
    assert len({one["id"] for one in found}) == COUNT  # what was sent again has the id it had, and applies once
    before = orjson.loads(done.stdout)["before"]  # it went on where it was, and did not begin anew
    assert sum(ACKNOWLEDGED) - len(ACKNOWLEDGED) * SAVED_EVERY < before <= sum(ACKNOWLEDGED)
