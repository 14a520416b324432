"""`recallflow doctor` on a real broker, real state directories and real HTTP: what is well, and what is not."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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

from benchmarks.broker import Broker
from recallflow.cli import main
from recallflow.flows import doctor_state
from recallflow.flows.topics import Topics
from recallflow.state import keys
from recallflow.state.lock import LOCK, locked
from tests.kafka.harness import FLAGS, Names, own_topics

USER, PASSWORD = "ann", "walnut-7"
KEY = "sk-walnut-8"
Diagnosis = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker where Ann may do what ACLs say, and who comes in elsewhere anything."""
    with Broker(users={USER: PASSWORD}, authorizes=True) as started:
        yield started


@pytest.fixture
def named(topics: Names) -> Topics:
    return own_topics(topics)


@pytest.fixture
def diagnose(named: Topics, capsys: pytest.CaptureFixture[str], guarded: Broker) -> Diagnosis:
    """Runs the command; gives what it found by check, once the exit code is seen to fit."""

    def run(*more: str | Path, servers: str = guarded.bootstrap_servers) -> dict[str, tuple[str, str]]:
        words = [word for flag, name in FLAGS.items() for word in (flag, getattr(named, name))]
        capsys.readouterr()
        code = main(["doctor", "--json", "--bootstrap-servers", servers, *words, *map(str, more)])
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert code == any(one["status"] == "FAIL" for one in found)
        assert all(one["todo"] for one in found if one["status"] != "OK")
        assert not any("\n" in one["what"] for one in found)
        return {one["check"]: (one["status"], f"{one['what']} → {one['todo']}") for one in found}

    return run


def made(broker: Broker, topics: Topics, settings: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Makes the topics as `recallflow topics create` does, but for some settings."""
    keeps = {"retention.ms": "-1", "retention.bytes": "-1"}
    for name in (*topics.read(), *topics.outputs()):
        base = {"max.message.bytes": "2097152"} | (keeps if name in (topics.memory, topics.control) else {})
        broker.create_topics({name: 2}, base | dict((settings or {}).get(name, {})))


def failed(found: Mapping[str, tuple[str, str]]) -> set[str]:
    return {check for check, (status, _) in found.items() if status == "FAIL"}


def test_all_is_well_and_nothing_is_changed(
    diagnose: Diagnosis, named: Topics, guarded: Broker, tmp_path: Path
) -> None:
    made(guarded, named)
    state = tmp_path / "s"
    found = diagnose("--state-dir", state)
    assert {check for check, (status, _) in found.items() if status != "OK"} == {"auth"}  # there is no key
    assert not state.exists()
    assert found[f"topic {named.memory}"] == ("OK", "2 partitions → ")
    assert "will" not in found["state directory"][1]

    assert main(["remember", "The kettle is red", "--create", "--state-dir", str(state)]) == 0
    before = files(state)
    found = diagnose("--state-dir", state)
    assert not failed(found)
    assert found["lock"][0] == found["erasures"][0] == "OK"
    assert files(state) == before


def files(folder: Path) -> dict[str, tuple[int, str]]:
    """When each file and folder was written to last, and what it holds."""
    return {
        str(file.relative_to(folder)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        )
        for file in sorted(folder.rglob("*"))
    }


def test_brokers_that_do_not_answer_are_told_and_all_else_is_looked_at(diagnose: Diagnosis, tmp_path: Path) -> None:
    found = diagnose("--state-dir", tmp_path / "s", servers="127.0.0.1:1")
    assert failed(found) == {"broker"}
    assert {"disk", "state directory", "embedder"} <= {*found}


def test_a_topic_that_is_missing_is_told(diagnose: Diagnosis, named: Topics, guarded: Broker) -> None:
    guarded.create_topics(dict.fromkeys((*named.read(), named.responses, named.dead_letters), 1))
    found = diagnose()
    assert failed(found) == {f"topic {named.receipts}"}
    assert "recallflow topics create" in found[f"topic {named.receipts}"][1]


SETTINGS = {
    "a compacted control topic": ("control", {"cleanup.policy": "compact"}, "FAIL", "cleanup.policy=delete"),
    "compacted memories": ("memory", {"cleanup.policy": "compact,delete"}, "FAIL", "cleanup.policy=delete"),
    "responses of a few bytes": ("responses", {"max.message.bytes": "9000"}, "FAIL", "max.message.bytes=16384"),
    "memories that expire": ("memory", {"retention.ms": "1000000"}, "WARN", "retention.ms=-1"),
    "small memories": ("memory", {"max.message.bytes": "100000"}, "WARN", "max.message.bytes=2097152"),
    "producers' times": ("queries", {"message.timestamp.type": "CreateTime"}, "WARN", "LogAppendTime"),
}


@pytest.mark.parametrize(("topic", "settings", "status", "todo"), SETTINGS.values(), ids=SETTINGS)
def test_a_topics_wrong_setting_is_told(
    diagnose: Diagnosis,
    named: Topics,
    guarded: Broker,
    topic: str,
    settings: dict[str, str],
    status: str,
    todo: str,
) -> None:
    name = getattr(named, topic)
    made(guarded, named, {name: settings})
    found = diagnose()
    assert found[f"settings {name}"][0] == status
    assert todo in found[f"settings {name}"][1]
    assert {check for check, (given, _) in found.items() if given == "FAIL"} <= {f"settings {name}"}


def test_producers_times_fail_where_every_record_is_judged(
    diagnose: Diagnosis, named: Topics, guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(guarded, named, {named.queries: {"message.timestamp.type": "CreateTime"}})
    monkeypatch.setenv("RECALLFLOW_AUTH_MODE", "required")
    found = diagnose()
    assert failed(found) == {f"settings {named.queries}"}
    assert found["auth"][0] == "OK"


def test_rights_that_we_lack_are_told(
    diagnose: Diagnosis, named: Topics, guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(guarded, named)
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap_servers})

    def grant(kind: ResourceType, name: str, *operations: str) -> None:
        acls = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation[one],
                       AclPermissionType.ALLOW)
            for one in operations
        ]  # fmt: skip
        for created in admin.create_acls(acls).values():
            created.result()

    for name in (*named.read(), *named.outputs()):
        grant(ResourceType.TOPIC, name, "READ", "DESCRIBE_CONFIGS")
        if name != named.receipts:
            grant(ResourceType.TOPIC, name, "WRITE")
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    words = [word for given in login.items() for word in ("-X", "=".join(given))]

    monkeypatch.setenv("RECALLFLOW_KAFKA_LIBRDKAFKA_SASL_PASSWORD", PASSWORD)
    found = diagnose(*words, servers=guarded.guarded_servers)
    group = f"rights of group recallflow-{named.memory}"
    # without the latter no topic is read
    lacking = {group, "rights of group recallflow", "control events"}
    assert failed(found) == {f"rights {named.receipts}", *lacking}
    assert f"grant WRITE on topic {named.receipts}" in found[f"rights {named.receipts}"][1]
    assert "grant READ on group" in found[group][1]

    grant(ResourceType.TOPIC, named.receipts, "WRITE")
    grant(ResourceType.GROUP, f"recallflow-{named.memory}", "READ")
    grant(ResourceType.GROUP, "recallflow", "DESCRIBE")
    assert not failed(diagnose(*words, servers=guarded.guarded_servers))

    monkeypatch.setenv("RECALLFLOW_KAFKA_LIBRDKAFKA_SASL_PASSWORD", "walnut-9")
    found = diagnose(*words, servers=guarded.guarded_servers)
    assert failed(found) == {"broker"}
    assert "walnut-9" not in found["broker"][1]


def test_a_clock_that_is_behind_is_told(diagnose: Diagnosis, named: Topics, guarded: Broker) -> None:
    made(guarded, named, {named.memory: {"message.timestamp.type": "CreateTime"}})
    producer = Producer({"bootstrap.servers": guarded.bootstrap_servers})
    producer.produce(named.memory, b"{}", timestamp=int(time.time() * 1000) + 600_000)
    assert producer.flush(10) == 0
    found = diagnose()
    assert failed(found) == {"clock"}
    assert "NTP" in found["clock"][1]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a memory."""
    assert main(["remember", "The kettle is red", "--create", "--state-dir", str(tmp_path / "s")]) == 0
    return tmp_path / "s"


def test_a_directory_in_use_is_told_with_who_uses_it(diagnose: Diagnosis, state: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(state):
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        found = diagnose("--state-dir", state)
    finally:
        release.set()
        thread.join()
    assert found["lock"][0] == "WARN"
    assert "process" in found["lock"][1]
    assert "erasures" not in found


def test_a_directory_of_other_settings_versions_and_keys_is_told(
    diagnose: Diagnosis, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = diagnose("--state-dir", state, "--episode-gap-minutes", "5")
    assert found["state directory"][0] == "FAIL"
    assert "episode_gap_ms is 1800000 there and 300000 here" in found["state directory"][1]

    (tmp_path / "key").write_text("A" * 43 + "=")
    with monkeypatch.context() as keyed:
        keyed.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY_FILE", str(tmp_path / "key"))
        found = diagnose("--state-dir", state)
    assert found["state directory"][0] == "FAIL"
    assert "without a master key" in found["state directory"][1]

    description = state / "recallflow.json"
    now = f'"format_version": {keys.FORMAT_VERSION}'
    description.write_text(description.read_text().replace(now, '"format_version": 7'))
    found = diagnose("--state-dir", state)
    assert found["state directory"][0] == "FAIL"
    assert "is in format 7" in found["state directory"][1]
    assert "until recallflow run has filled another one" in found["state directory"][1]
    assert not {"lock", "erasures"} & found.keys()  # what cannot be read is not looked at


def test_a_folder_of_somebody_elses_and_one_that_cannot_be_made_are_told(diagnose: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("Dear Ann")
    found = diagnose("--state-dir", tmp_path / "letters")
    assert found["state directory"][0] == "FAIL"
    assert "or another directory" in found["state directory"][1]
    found = diagnose("--state-dir", tmp_path / "letters" / "a.txt" / "s")
    assert found["state directory"][0] == "FAIL"


def test_a_recovery_store_that_is_broken_is_told(diagnose: Diagnosis, state: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"type": "message", "tenant_id": "acme", "user_id": "ann", "role": "user", "content": "tea"}\n')
    assert main(["replay", str(log), "--embedded", "--state-dir", str(state)]) == 0
    file = next((state / "recovery").glob("*.sqlite3"))
    file.write_bytes(b"x" * 4096)
    found = diagnose("--state-dir", state)
    assert found["recovery store"][0] == "FAIL"


@pytest.mark.parametrize(("name", "status"), [("FREE_LEAST_BYTES", "FAIL"), ("FREE_GOOD_BYTES", "WARN")])
def test_a_disk_without_room_is_told(
    diagnose: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, status: str
) -> None:
    monkeypatch.setattr(doctor_state, name, 2**60)  # more than this disk has
    monkeypatch.setattr(doctor_state, "FREE_GOOD_SHARE", 1.0)
    found = diagnose("--state-dir", tmp_path / "s")
    assert found["disk"][0] == status


@contextmanager
def models(status: int, *names: str) -> Iterator[str]:
    """A service that lists models, for who has the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            refused = self.headers["Authorization"] != f"Bearer {KEY}"
            body = json.dumps({"data": [{"id": name} for name in names]}).encode()
            self.send_response(401 if refused else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_models_are_asked_whether_they_are_there(diagnose: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_LLM_KEY", KEY)
    with models(200, "m-1", "e-1") as url:
        words = ("--llm-url", url, "--llm")
        assert diagnose(*words, "m-1")["language model"][0] == "OK"
        assert diagnose(*words, "m-2")["language model"][0] == "WARN"
        embeds = ("--embedder", "openai", "--embedding-url", url, "--embedding-model", "e-1")
        found = diagnose(*embeds)  # to another address the key of the model is not given
        assert found["embedding service"][0] == "FAIL"
        monkeypatch.setenv("RECALLFLOW_EMBEDDING_KEY", KEY)
        assert diagnose(*embeds)["embedding service"][0] == "OK"
        reranks = ("--reranker", "r-1", "--reranker-url", url)
        assert diagnose(*reranks)["reranker"][0] == "OK"
        monkeypatch.setenv("RECALLFLOW_LLM_KEY", "sk-walnut-9")
        found = diagnose(*words, "m-1")
        assert found["language model"][0] == "FAIL"
        assert "walnut" not in str(found)
    monkeypatch.setenv("RECALLFLOW_LLM_KEY", KEY)
    with models(404) as url:
        assert diagnose("--llm-url", url, "--llm", "m-1")["language model"][0] == "WARN"
    gone = ("--llm-url", url, "--llm", "m-1", "--reranker", "r-1", "--reranker-url", url)
    assert {"language model", "reranker"} <= failed(diagnose(*gone))


def test_a_model_folder_that_is_none_is_told(diagnose: Diagnosis, tmp_path: Path) -> None:
    found = diagnose("--embedder", "minilm", "--model-path", tmp_path / "nowhere")
    assert found["embedder"][0] == "FAIL"
    assert str(tmp_path / "nowhere") in found["embedder"][1]


def test_a_model_that_a_library_cannot_read_is_told_in_one_line(diagnose: Diagnosis, tmp_path: Path) -> None:
    for name in ("model.onnx", "tokenizer.json"):
        (tmp_path / name).write_text("nothing\nof the kind")
    found = diagnose("--embedder", "minilm", "--model-path", tmp_path)
    assert found["embedder"][0] == "FAIL"
    assert "(--embedder, --model-path)" in found["embedder"][1]


def test_signing_keys_and_control_events_that_do_not_count_are_told(
    diagnose: Diagnosis, named: Topics, guarded: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(guarded, named)
    producer = Producer({"bootstrap.servers": guarded.bootstrap_servers})
    producer.produce(named.control, b"nonsense", b"acme")
    assert producer.flush(10) == 0
    monkeypatch.setenv("RECALLFLOW_AUTH_JWKS", str(tmp_path / "nowhere.json"))
    found = diagnose()
    assert failed(found) == {"signing keys"}
    assert found["control events"][0] == "WARN"
    assert "no_event" in found["control events"][1]


def test_people_read_what_to_do(guarded: Broker, named: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for flag, name in FLAGS.items() for word in (flag, getattr(named, name))]
    assert main(["doctor", "--bootstrap-servers", guarded.bootstrap_servers, *words]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("OK    broker: ")
    at = lines.index(f"FAIL  topic {named.memory}: is not there, or we may not see it")
    assert lines[at + 1] == "      → create it (recallflow topics create), or grant DESCRIBE"


def test_a_lock_that_nobody_holds_is_left_as_it_is(diagnose: Diagnosis, state: Path) -> None:
    note = (state / LOCK).read_bytes()
    diagnose("--state-dir", state)
    assert (state / LOCK).read_bytes() == note
