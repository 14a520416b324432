"""Settings from a file, the environment and flags: precedence and errors."""

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from recallflow.brokers.options import KafkaOptions
from recallflow.cli import main
from recallflow.credentials import ApiKeyText
from recallflow.errors import UsageError
from recallflow.flows.config import VARIABLES, Config, RawSetting, RunSettings, default_file, printed, read_config
from recallflow.flows.settings import Settings, TopicNames

SETTINGS_PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "settings.md").read_text()
ENVIRONMENT = {"PATH": "/bin", "RECALLFLOW_SHARED": "/models", "RECALLFLOW_ENGINE_EPOCH_MS": ""}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        path = tmp_path / "recallflow.toml"
        path.write_text(text, "utf-8")
        return path

    return written


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--embedder", "hsah"], "hsah"),
        (["--embedder", "onnx"], "--model-path"),
        (["--embedder", "minilm", "--model-path", "/nowhere"], "/nowhere"),
        (["--model-path", "/nowhere"], "meaning"),
        (["--reranker-url", "http://127.0.0.1:1"], "--reranker"),
        (["--log-format", "xml"], "log_format"),
    ],
)
def test_configuration_that_cannot_run_is_not_printed(
    cli: Callable[..., subprocess.CompletedProcess[str]], words: list[str], named: str
) -> None:
    done = cli("run", "--print-config", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr


def test_without_anything_given_the_defaults_hold() -> None:
    assert read_config({}, ENVIRONMENT) == (Config(), {})


def test_every_section_can_stand_in_a_file(write: Callable[[str], Path]) -> None:
    path = write(
        """
        state_dir = "/var/lib/recallflow"
        [kafka]
        bootstrap_servers = "kafka:9093"
        [kafka.librdkafka]
        client.id = "engine-1"
        "log_level" = 6
        [topics]
        memory = "own.memory"
        replies = ["own.answers", "own.others"]
        [engine]
        cache_bytes = "2GiB"
        epoch_ms = 250
        episode_gap_minutes = 45
        graph_enabled = false
        [run]
        metrics_port = 9464
        skip = ["own.memory:0:7"]
        standby = 1
        """
    )
    config, origins = read_config({}, {"RECALLFLOW_CONFIG": str(path)})
    assert config == Config(
        Path("/var/lib/recallflow"),
        KafkaOptions("kafka:9093", {"client.id": "engine-1", "log_level": "6"}),
        TopicNames("own.memory", replies=("own.answers", "own.others")),
        Settings(cache_bytes=2**31, epoch_ms=250, episode_gap_minutes=45.0, graph_enabled=False),
        RunSettings(metrics_port=9464, skip=("own.memory:0:7",), standby=1),
    )
    assert origins["engine.epoch_ms"] == f"{path}: engine.epoch_ms"


def test_a_home_that_cannot_be_looked_into_has_no_file() -> None:
    home = "/" + "x" * 300  # refused by the system, as the home of another user is
    assert default_file({"HOME": home}) is None


def test_flag_precedes_environment_precedes_file(write: Callable[[str], Path]) -> None:
    path = write("[engine]\nepoch_ms = 100\npartitions = 1\ncache_bytes = 3000000")
    environment = ENVIRONMENT | {"RECALLFLOW_ENGINE_EPOCH_MS": "200", "RECALLFLOW_ENGINE_PARTITIONS": "2"}
    config, origins = read_config({"engine.epoch_ms": RawSetting("--epoch-ms", "300")}, environment, path)
    assert config.engine == Settings(epoch_ms=300, partitions=2, cache_bytes=3_000_000)
    assert origins == {
        "engine.cache_bytes": f"{path}: engine.cache_bytes",
        "engine.epoch_ms": "--epoch-ms",
        "engine.partitions": "RECALLFLOW_ENGINE_PARTITIONS",
    }


def test_every_setting_has_a_variable() -> None:
    environment = {
        "RECALLFLOW_STATE_DIR": "s", "KAFKA_BOOTSTRAP_SERVERS": "old:1",
        "RECALLFLOW_KAFKA_BOOTSTRAP_SERVERS": "new:1", "RECALLFLOW_KAFKA_LIBRDKAFKA_CLIENT_ID": "engine-2",
        "RECALLFLOW_TOPICS_REPLIES": "a, b", "RECALLFLOW_RUN_STANDBY": "1", "SIMILARITY_EDGE_MAX_K": "7",
    }  # fmt: skip
    config, _ = read_config({}, environment)
    assert config == Config(
        Path("s"), KafkaOptions("new:1", {"client.id": "engine-2"}), TopicNames(replies=("a", "b")),
        Settings(similarity_max_k=7), RunSettings(standby=1),
    )  # fmt: skip
    assert len(VARIABLES) == len(set(VARIABLES)) >= 30


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # an unknown setting, and the nearest one
        ("[engine]\npartition = 4", ["engine.partition ", "engine.partitions"]),
        ("[kafka]\npartitions = 4", ["kafka.partitions ", "engine.partitions"]),
        ("cache_bytes = 4", ["cache_bytes", "engine.cache_bytes"]),
        ("[topics.memory]\nname = 'x'", ["topics.memory.name", "topics.memory"]),
        ("[engine]\nepochms = 1\n[run]\nstnadby = 1", ["engine.epoch_ms", "run.stnadby", "run.standby"]),
        # a value that the setting does not take
        ("[engine]\npartitions = 'many'", ["engine.partitions", "'many'"]),
        ("[engine]\npartitions = true", ["engine.partitions", "True"]),
        ("[engine]\npartitions = 2.5", ["engine.partitions", "2.5"]),
        ("[engine]\npartitions = 0", ["partitions", "1,000"]),
        ("[engine]\nepisode_gap_minutes = []", ["engine.episode_gap_minutes"]),
        ("[engine]\ncache_bytes = '5XB'", ["engine.cache_bytes", "5XB"]),
        ("[run]\naccept_repeats = 'perhaps'", ["run.accept_repeats", "perhaps"]),
        ("[run]\naccept_repeats = 1", ["run.accept_repeats"]),
        ("[topics]\nmemory = 7", ["topics.memory"]),
        ("[topics]\nreplies = [1]", ["topics.replies"]),
        ("[kafka.librdkafka]\ndebug = ['all']", ["kafka.librdkafka.debug"]),
        ("[kafka.librdkafka]\nsasl.pasword = 'x'", ["sasl.pasword"]),
        ("[kafka.librdkafka]\nacks = 1", ["acks"]),
        ("[run]\nskip = ['elsewhere:0:1']", ["--skip", "memory.events", "query.events"]),
        ("partitions 4", ["recallflow.toml"]),
    ],
)
def test_error_in_a_file_names_the_setting(write: Callable[[str], Path], text: str, named: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        read_config({}, {}, write(text))
    assert [name for name in named if name not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("variable", "text", "named"),
    [
        ("RECALLFLOW_RUN_STNADBY", "1", "RECALLFLOW_RUN_STANDBY"),
        ("RECALLFLOW_CACHE_BYTES", "1", "RECALLFLOW_ENGINE_CACHE"), ("RECALLFLOW_RUN_ACCEPT_REPEATS", "1", "'1'"),
        ("RECALLFLOW_ENGINE_PARTITIONS", "a", "'a'"), ("RECALLFLOW_CONFIG", "/nowhere.toml", "/nowhere.toml"),
    ],
)  # fmt: skip
def test_error_in_the_environment_names_the_variable(variable: str, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)) as raised:
        read_config({}, ENVIRONMENT | {variable: text})
    assert variable in str(raised.value) or variable == "RECALLFLOW_CONFIG"


def test_printed_settings_can_be_read_again(write: Callable[[str], Path]) -> None:
    flags = {
        "state_dir": RawSetting("--state-dir", 'a "state" \\ dir'),
        "kafka.librdkafka.client.id": RawSetting("-X client.id", "engine-1"),
        "topics.replies": RawSetting("--reply-topic", ["a", "b"]),
        "engine.cache_bytes": RawSetting("--cache-bytes", "1GiB"),
        "run.deployment": RawSetting("--deployment", "élan"),
    }
    config, origins = read_config(flags, {})
    text = printed(config, origins)
    assert read_config({}, {}, write(text))[0] == config
    assert 'client.id" = "engine-1"  # -X client.id' in text
    assert "cache_bytes = 1073741824  # --cache-bytes" in text
    assert "# metrics_port is not set" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [("sasl.password", "hunter2"), ("sasl.oauthbearer.client.secret", "s3cret"), ("ssl.key.password", "hunter2")],
)
def test_secrets_are_not_printed(name: str, value: str) -> None:
    config, origins = read_config({f"kafka.librdkafka.{name}": RawSetting(f"-X {name}", value)}, {})
    text = printed(config, origins)
    assert value not in text
    assert tomllib.loads(text)["kafka"]["librdkafka"] == {name: "***"}


AUTH = {"api_key": ApiKeyText.new().text(), "secret": "s3cret " * 5, "control_secret": "hunter2 " * 4}
SECRETS = {
    "ENCRYPTION_MASTER_KEY": "aHVudGVyMg==" * 4, "ENGINE_RERANKER_KEY": "reranker-hunter2", "LLM_KEY": "llm-hunter2",
    "LLM_HEADERS": "x-key: header-hunter2", "EMBEDDING_KEY": "embedding-hunter2",
    **{f"AUTH_{name.upper()}": value for name, value in AUTH.items()},
}  # fmt: skip


def test_no_setting_that_is_secret_is_shown() -> None:
    config, origins = read_config({}, {f"RECALLFLOW_{name}": value for name, value in SECRETS.items()})
    text = printed(config, origins) + repr(config)
    assert [name for name, value in SECRETS.items() if value in text] == []
    assert text.count('"***"') >= len(SECRETS)


def test_two_master_keys_are_refused_without_being_shown() -> None:
    given = {"ENCRYPTION_MASTER_KEY_FILE": "master.key", "ENCRYPTION_MASTER_KEY": SECRETS["ENCRYPTION_MASTER_KEY"]}
    with pytest.raises(UsageError, match="master_key_file and master_key exclude") as raised:
        read_config({}, {f"RECALLFLOW_{name}": value for name, value in given.items()})
    assert SECRETS["ENCRYPTION_MASTER_KEY"] not in str(raised.value)


@pytest.mark.parametrize("name", AUTH)
def test_a_secret_of_auth_that_is_none_is_refused_unseen(name: str) -> None:
    for value in ("too short", AUTH["api_key"][:-1]):
        if len(value) < 32 or name == "api_key":
            with pytest.raises(UsageError, match=f"auth.{name}") as raised:
                read_config({}, {f"RECALLFLOW_AUTH_{name.upper()}": value})
            assert value not in str(raised.value)


def test_documented_settings_example_is_accepted_by_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The output of --print-config in docs/how-to/settings.md follows from its file, environment and flags."""
    file, shell, shown = re.search(
        r"```toml\n(.*?)```.*?```sh\n(.*?)```.*?```toml\n(.*?)```", SETTINGS_PAGE, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    monkeypatch.chdir(tmp_path)
    Path("recallflow.toml").write_text(file)
    *variables, command = shell.replace("\\\n", " ").splitlines()
    for variable in variables:
        name, _, value = variable.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value.strip('"'))
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    assert main(command.split()[1:]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in shown.splitlines() if line not in lines] == []
