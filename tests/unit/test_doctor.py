"""`recallflow doctor` on state directories, disks, models and keys; on topics: tests/kafka/test_commands.py."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from unittest.mock import Mock

import pytest

from recallflow.cli import main
from recallflow.connectors.kafka import topic_reader
from recallflow.errors import SourceError
from recallflow.flows import doctor
from recallflow.flows.config import Config
from recallflow.flows.doctor import fail, ok
from recallflow.kafka_options import KafkaOptions
from recallflow.state import keys
from recallflow.state.lock import locked
from tests.http_server import Handler, serving

KEY = "sk-walnut-8"
Diagnosis = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture
def diagnose(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    """Return a function that runs the command without brokers: check → status, finding and remedy."""
    monkeypatch.setattr(doctor, "kafka_findings", lambda *_, **__: ())

    def run(*more: str | Path) -> dict[str, tuple[str, str]]:
        capsys.readouterr()
        code = main(["doctor", "--json", "--bootstrap-servers", "127.0.0.1:1", *map(str, more)])
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert code == any(one["status"] == "FAIL" for one in found)
        assert all(one["todo"] for one in found if one["status"] != "OK")
        assert not any("\n" in one["what"] for one in found)
        return {one["check"]: (one["status"], f"{one['what']} → {one['todo']}") for one in found}

    return run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    assert main(["remember", "The kettle is red", "--create", "--state-dir", str(tmp_path / "s")]) == 0
    return tmp_path / "s"


def failed(found: Mapping[str, tuple[str, str]]) -> set[str]:
    return {check for check, (status, _) in found.items() if status == "FAIL"}


def files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the time of the last change, and the hash, of each file and folder."""
    return {
        str(file.relative_to(folder)): (
            file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        )
        for file in sorted(folder.rglob("*"))
    }  # fmt: skip


def test_sound_directory_passes_and_is_not_changed(diagnose: Diagnosis, state: Path) -> None:
    before = files(state)
    found = diagnose("--state-dir", state)
    assert not failed(found)
    assert {"disk", "state directory", "embedder"} <= {*found}
    assert found["lock"][0] == found["erasures"][0] == "OK"
    assert files(state) == before


def test_missing_directory_is_not_created(diagnose: Diagnosis, tmp_path: Path) -> None:
    assert diagnose("--state-dir", tmp_path / "new")["state directory"][0] == "OK"
    assert not (tmp_path / "new").exists()


def test_directory_in_use_names_the_process(diagnose: Diagnosis, state: Path) -> None:
    held, release = Event(), Event()

    def hold() -> None:
        with locked(state):
            held.set()
            release.wait()

    thread = Thread(target=hold)
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


def test_directory_of_other_settings_fails(
    diagnose: Diagnosis, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "episode_gap_ms" in diagnose("--state-dir", state, "--episode-gap-minutes", "5")["state directory"][1]
    (tmp_path / "key").write_text("A" * 43 + "=")
    with monkeypatch.context() as keyed:
        keyed.setenv("RECALLFLOW_ENCRYPTION_MASTER_KEY_FILE", str(tmp_path / "key"))
        assert failed(diagnose("--state-dir", state)) == {"state directory"}
    description = state / "recallflow.json"
    now = f'"format_version": {keys.FORMAT_VERSION}'
    description.write_text(description.read_text().replace(now, '"format_version": 7'))
    found = diagnose("--state-dir", state)
    assert found["state directory"][0] == "FAIL"
    assert "format 7" in found["state directory"][1]
    assert not {"lock", "erasures"} & found.keys()  # nothing that cannot be read is examined


@pytest.mark.parametrize(("name", "status"), [("FREE_BYTES_MIN", "FAIL"), ("FREE_BYTES_RECOMMENDED", "WARN")])
def test_full_disk_is_reported(
    diagnose: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, status: str
) -> None:
    monkeypatch.setattr(doctor, name, 2**60)  # more than this disk has
    monkeypatch.setattr(doctor, "FREE_SHARE_RECOMMENDED", 1.0)
    assert diagnose("--state-dir", tmp_path / "s")["disk"][0] == status


@contextmanager
def models(status: int, *names: str) -> Iterator[str]:
    """Serve a list of models to requests that carry the key."""

    class Models(Handler):
        def do_GET(self) -> None:  # noqa: N802 - of http.server
            refused = self.headers["Authorization"] != f"Bearer {KEY}"
            self.reply(json.dumps({"data": [{"id": name} for name in names]}).encode(), 401 if refused else status)

    with serving(Models) as url:
        yield f"{url}/v1"


def test_models_are_looked_up_with_their_own_key(diagnose: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_LLM_KEY", KEY)
    with models(200, "m-1", "e-1") as url:
        words = ("--llm-url", url, "--llm")
        assert diagnose(*words, "m-1")["language model"][0] == "OK"
        assert diagnose(*words, "m-2")["language model"][0] == "WARN"
        embeds = ("--embedder", "openai", "--embedding-url", url, "--embedding-model", "e-1")
        found = diagnose(*embeds)  # the language model's key does not go to another address
        assert found["embedding service"][0] == "FAIL"
        monkeypatch.setenv("RECALLFLOW_EMBEDDING_KEY", KEY)
        assert diagnose(*embeds)["embedding service"][0] == "OK"
        assert diagnose("--reranker", "r-1", "--reranker-url", url)["reranker"][0] == "OK"
        monkeypatch.setenv("RECALLFLOW_LLM_KEY", "sk-walnut-9")
        found = diagnose(*words, "m-1")
        assert found["language model"][0] == "FAIL"
        assert "walnut" not in str(found)
    monkeypatch.setenv("RECALLFLOW_LLM_KEY", KEY)
    with models(404) as url:
        assert diagnose("--llm-url", url, "--llm", "m-1")["language model"][0] == "WARN"
    gone = ("--llm-url", url, "--llm", "m-1", "--reranker", "r-1", "--reranker-url", url)
    assert failed(diagnose(*gone)) == {"language model", "reranker"}


@pytest.mark.parametrize("text", [None, "nothing\nof the kind"], ids=["missing", "unreadable"])
def test_unusable_model_folder_fails(diagnose: Diagnosis, tmp_path: Path, text: str | None) -> None:
    for name in ("model.onnx", "tokenizer.json") if text else ():
        (tmp_path / name).write_text(text or "")
    found = diagnose("--embedder", "minilm", "--model-path", tmp_path)
    assert failed(found) == {"embedder"}
    assert "--model-path" in found["embedder"][1]


def test_broker_away_fails_and_the_rest_is_examined(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "GIVE_UP_S", 0.1)
    where = ["--bootstrap-servers", "127.0.0.1:1", "--state-dir", str(tmp_path / "s")]
    assert main(["doctor", "--json", *where]) == 1
    found = {one["check"]: one["status"] for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {check for check, status in found.items() if status == "FAIL"} == {"broker"}
    assert {"disk", "state directory", "embedder"} <= {*found}


def test_missing_signing_keys_fail(diagnose: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_AUTH_JWKS", str(tmp_path / "nowhere.json"))
    assert failed(diagnose()) == {"signing keys"}


@pytest.fixture
def members(state: Path, tmp_path: Path) -> Path:
    for name in ("member-00", "member-01"):
        shutil.copytree(state, tmp_path / "engines" / name)
    return tmp_path / "engines"


def test_members_are_examined_each_in_its_folder(diagnose: Diagnosis, members: Path) -> None:
    found = diagnose("--state-dir", members, "--processes", "3")
    assert not failed(found)
    assert found["erasures of member-00, member-01"][0] == "OK"
    assert "member-02" in found["state directory"][1]
    assert found["state directory of member-01"][0] == "OK"
    (members / "member-01" / "recallflow.json").write_text("{}")
    found = diagnose("--state-dir", members, "--processes", "2")
    assert failed(found) == {"state directory of member-01, erasures of member-01"}


def test_other_number_of_processes_is_one_finding(diagnose: Diagnosis, members: Path, state: Path) -> None:
    for folder, processes in ((members, 1), (state, 2)):
        found = diagnose("--state-dir", folder, "--processes", str(processes))
        assert failed(found) == {"state directory"}
        assert not {"lock", "erasures"} & found.keys()


def test_running_members_are_one_finding(diagnose: Diagnosis, members: Path) -> None:
    with locked(members):
        found = diagnose("--state-dir", members, "--processes", "2")
    assert found["lock"][0] == "WARN"
    assert not any("member-" in check for check in found)


def test_directory_of_other_users_is_a_warning(diagnose: Diagnosis, state: Path, members: Path) -> None:
    assert "permissions" not in diagnose("--state-dir", state)
    state.chmod(0o755)
    assert diagnose("--state-dir", state)["permissions"][0] == "WARN"
    (members / "member-00").chmod(0o750)
    found = diagnose("--state-dir", members, "--processes", "2")
    assert found["permissions of member-00"][0] == "WARN"


def test_equal_complaints_are_joined_and_good_news_is_not() -> None:
    grants = [fail(f"rights {name}", "we may not READ", f"grant READ on topic {name}") for name in "ab"]
    missing = [fail(f"topic {name}", "is not there", "create it") for name in "cd"]
    fine = [ok(f"settings {name}", "as they should be") for name in "ef"]
    found = [*doctor.merge_by_cause([grants[0], fine[0], missing[0], grants[1], fine[1], missing[1]])]
    assert [(one.check, one.todo) for one in found] == [
        ("rights a, rights b", "grant READ on topic a; grant READ on topic b"), ("settings e", ""),
        ("topic c, topic d", "create it"), ("settings f", ""),
    ]  # fmt: skip


def test_token_endpoint_is_named_where_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TopicReader", Mock(side_effect=SourceError("cannot reach Kafka")))
    kafka = KafkaOptions("127.0.0.1:1", {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:2/token"})
    (found,) = doctor.kafka_findings(Config(kafka=kafka), enriches=False)
    assert (found.status, "http://127.0.0.1:2/token" in found.todo) == ("FAIL", True)


@pytest.mark.parametrize(("topic", "expected"), [("memory.events", "FAIL"), ("memory.responses", "OK")])
def test_only_an_input_topic_must_not_be_compacted(topic: str, expected: str) -> None:
    settings = {"cleanup.policy": "compact", "max.message.bytes": str(2**23), "message.timestamp.type": "LogAppendTime"}
    unlimited = {"retention.ms": "-1", "retention.bytes": "-1"}
    found = [*doctor._settings(Config(), topic, settings | unlimited, is_written=False)]
    assert [one.status for one in found] == [expected]
