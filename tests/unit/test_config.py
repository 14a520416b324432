"""Settings from a file, the environment and flags, those of models among them: precedence and errors."""

import asyncio
import re
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from recallflow import Memory
from recallflow.cli import main
from recallflow.connectors.llm.policy import Meter
from recallflow.control import ControlHistory, Quota
from recallflow.credentials import ApiKeyText
from recallflow.errors import ModelError, UsageError
from recallflow.flows.config import VARIABLES, Config, RawSetting, RunSettings, as_file, default_file, read_config
from recallflow.flows.engine_metrics import model_metrics
from recallflow.flows.enrich import EnrichFlow
from recallflow.flows.model_settings import CallerKind, EmbeddingSettings, EnrichmentSettings, LlmSettings
from recallflow.flows.settings import Settings, TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.llm import Cost, Prompt
from recallflow.owner import parse_ranges, ranges_of
from tests.llm_server import Fault, LlmServer

SETTINGS_PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "settings.md").read_text()
ENVIRONMENT = {"PATH": "/bin", "RECALLFLOW_SHARED": "/models", "RECALLFLOW_ENGINE_SYNC_MS": ""}


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
        (["--embedder", "hsah"], "hsah"), (["--embedder", "onnx"], "--model-path"),
        (["--embedder", "minilm", "--model-path", "/nowhere"], "/nowhere"), (["--model-path", "/nowhere"], "meaning"),
        (["--reranker-url", "http://127.0.0.1:1"], "--reranker"), (["--log-format", "xml"], "log_format"),
    ],
)  # fmt: skip
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
        sync_ms = 250
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
        Path("/var/lib/recallflow"), KafkaOptions("kafka:9093", {"client.id": "engine-1", "log_level": "6"}),
        TopicNames("own.memory", replies=("own.answers", "own.others")),
        Settings(cache_bytes=2**31, sync_ms=250, episode_gap_minutes=45.0, graph_enabled=False),
        RunSettings(metrics_port=9464, skip=("own.memory:0:7",), standby=1),
    )  # fmt: skip
    assert origins["engine.sync_ms"] == f"{path}: engine.sync_ms"


def test_a_home_that_cannot_be_looked_into_has_no_file() -> None:
    home = "/" + "x" * 300  # refused by the system, as the home of another user is
    assert default_file({"HOME": home}) is None


def test_flag_precedes_environment_precedes_file(write: Callable[[str], Path]) -> None:
    path = write("[engine]\nsync_ms = 100\npartitions = 1\ncache_bytes = 3000000")
    environment = ENVIRONMENT | {"RECALLFLOW_ENGINE_SYNC_MS": "200", "RECALLFLOW_ENGINE_PARTITIONS": "2"}
    config, origins = read_config({"engine.sync_ms": RawSetting("--sync-ms", "300")}, environment, path)
    assert config.engine == Settings(sync_ms=300, partitions=2, cache_bytes=3_000_000)
    assert origins == {
        "engine.cache_bytes": f"{path}: engine.cache_bytes", "engine.sync_ms": "--sync-ms",
        "engine.partitions": "RECALLFLOW_ENGINE_PARTITIONS",
    }  # fmt: skip


def test_every_setting_has_a_variable() -> None:
    environment = {
        "RECALLFLOW_STATE_DIR": "s", "KAFKA_BOOTSTRAP_SERVERS": "old:1",
        "RECALLFLOW_KAFKA_BOOTSTRAP_SERVERS": "new:1", "RECALLFLOW_KAFKA_LIBRDKAFKA_CLIENT_ID": "engine-2",
        "RECALLFLOW_TOPICS_REPLIES": "a, b", "RECALLFLOW_RUN_STANDBY": "1", "SIMILARITY_EDGE_MAX_K": "6",
        "RECALLFLOW_ENGINE_SIMILARITY_MAX_K": "7",
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
        ("[engine]\nsyncms = 1\n[run]\nstnadby = 1", ["engine.sync_ms", "run.stnadby", "run.standby"]),
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
        "engine.cache_bytes": RawSetting("--cache-bytes", "1GiB"), "run.deployment": RawSetting("--deployment", "élan"),
    }  # fmt: skip
    config, origins = read_config(flags, {})
    text = as_file(config, origins, masks=True)
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
    text = as_file(config, origins, masks=True)
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
    text = as_file(config, origins, masks=True) + repr(config)
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


PROMPT = Prompt("classify", "v1", "", "Ana", {"type": "object", "properties": {}}, 40)


def config_of(**environment: str) -> Any:
    return read_config({}, environment)[0]


def test_variables_of_the_official_client_are_defaults(tmp_path: Path) -> None:
    known = {"OPENAI_API_KEY": "theirs", "OPENAI_BASE_URL": "http://theirs/v1"}
    config, origins = read_config({}, known)
    assert (config.llm.key, config.llm.base_url) == ("theirs", "http://theirs/v1")
    assert (origins["llm.key"], config_of(**known, RECALLFLOW_LLM_KEY="ours").llm.key) == ("OPENAI_API_KEY", "ours")
    file = tmp_path / "recallflow.toml"
    file.write_text('[llm]\nkey = "filed"\nbase_url = "http://filed/v1"')
    config, _ = read_config({}, known, file)
    assert (config.llm.key, config.llm.base_url) == ("filed", "http://filed/v1")
    assert config_of(OPENAI_API_KEY="", OPENAI_ORGANIZATION="x").llm == LlmSettings()


def test_embedding_model_uses_the_language_models_address() -> None:
    llm = {"RECALLFLOW_LLM_BASE_URL": "http://one/v1", "RECALLFLOW_LLM_KEY": "k1", "RECALLFLOW_LLM_HEADERS": "A: b"}
    shared = config_of(**llm).embedding
    assert (shared.base_url, shared.key, shared.headers) == ("http://one/v1", "k1", ("A: b",))
    assert config_of(**llm, RECALLFLOW_EMBEDDING_KEY="k2").embedding.key == "k2"
    own = config_of(**llm, RECALLFLOW_EMBEDDING_BASE_URL="http://two/v1").embedding
    assert (own.base_url, own.key, own.headers) == ("http://two/v1", None, ())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('base_url = "ftp://hunter2/v1"', "base URL"), ('base_url = "hunter2"', "base URL"),
        ('base_url = "https://me:hunter2@host/v1"', "base URL"), ('base_url = "https://hunter2@host/v1"', "base URL"),
        ('key = "hunter2\\n"', "key"), ('key = "hünter2"', "key"), ("key = 20202", "llm.key"),
        ('headers = ["hunter2"]', "header"), ('headers = ["X Y: hunter2"]', "header"),
        ('headers = ["X: hunter2\\r\\nY: z"]', "header"), ('model = ""', "model"), ("attempts = 0", "attempts"),
        ("timeout_ms = 0", "timeout_ms"), ("tokens_per_day = -1", "tokens_per_day"),
    ],
)  # fmt: skip
def test_invalid_model_settings_are_refused_without_secrets(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "recallflow.toml"
    file.write_text(f"[llm]\n{line}")
    with pytest.raises(UsageError, match=re.escape(says)) as raised:
        read_config({}, {}, file)
    assert not any(secret in str(raised.value) for secret in ("hunter2", "hünter2", "20202"))
    assert "\n" not in str(raised.value)


def test_the_graph_names_of_old_still_hold() -> None:
    config = config_of(GRAPH_LLM_EXTRACTION_ENABLED="true", GRAPH_LLM_RELATIONSHIP_MODEL_ID="anthropic/some-model")
    assert (config.enrichment.relationships, config.llm.model) == (True, "anthropic/some-model")


@pytest.mark.parametrize(("caller", "calls"), [("question", 1), ("embedded", 3)])
def test_question_is_tried_once(
    llm_server: LlmServer, monkeypatch: pytest.MonkeyPatch, caller: CallerKind, calls: int
) -> None:
    monkeypatch.setattr("recallflow.connectors.llm.policy.FIRST_WAIT_S", 0.0)
    settings = LlmSettings("m", base_url=llm_server.url, attempts=3)
    llm_server.fail(Fault("status"), times=None)

    async def asked() -> None:
        model = settings.load_model(caller)
        assert model is not None
        with pytest.raises(ModelError, match="unavailable"):
            await model.complete("acme", PROMPT)
        await model.close()

    asyncio.run(asked())
    assert llm_server.calls["classify"] == calls
    assert LlmSettings().load_model(caller) is None


def test_a_tenants_quota_comes_before_the_limit_of_the_settings(llm_server: LlmServer) -> None:
    history = ControlHistory()

    def decide(name: str, limit: int | None) -> None:
        event = Quota.model_validate({"type": "quota", "tenant_id": "acme", "name": name, "limit": limit})
        history.add(round(time.time() * 1000), event)

    async def codes() -> list[str]:
        model = LlmSettings("m", base_url=llm_server.url, tokens_per_day=0).load_model("embedded", history)
        service = EmbeddingSettings(base_url=llm_server.url, dimension=64, tokens_per_day=0).load_service(
            "embedded", history
        )
        assert model is not None
        found = []
        for call in (model.complete("acme", PROMPT), service.embed("acme", ["some words"])):
            try:
                await call
                found.append("ok")
            except ModelError as error:
                found.append(error.code)
        await model.close()
        await service.close()
        return found

    assert asyncio.run(codes()) == ["over_budget", "over_budget"]
    decide("llm_tokens_per_day", None)
    assert asyncio.run(codes()) == ["ok", "over_budget"]
    decide("embedding_tokens_per_day", 100)
    decide("llm_tokens_per_day", 10)
    assert asyncio.run(codes()) == ["over_budget", "ok"]


@pytest.fixture
def unavailable(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a task of the enrichment flow, and return the warning about it."""
    monkeypatch.setenv("GRAPH_LLM_EXTRACTION_ENABLED", "true")
    return EnrichmentSettings(relationships=True).unavailable_warning() or ""


def test_engine_without_kafka_warns_that_enrichment_does_nothing(
    unavailable: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "enrichment.relationships" in unavailable
    assert EnrichmentSettings().unavailable_warning() is None
    with Memory(tmp_path / "memory", embedder="hash"):  # which opens its engine as `serve` and `mcp` do
        pass
    assert unavailable in caplog.messages
    (tmp_path / "log.jsonl").write_bytes(b'{"type": "message", "tenant_id": "a", "user_id": "b", "content": "c"}\n')
    log = [str(tmp_path / "log.jsonl"), "--embedded", "--create", "--state-dir", str(tmp_path / "replayed")]
    assert main(["replay", *log, "--embedder", "hash"]) == 0
    assert unavailable in capfd.readouterr().err


def test_enrichment_without_its_language_model_is_refused(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path, enrichment=EnrichmentSettings(facts=True))
    with pytest.raises(UsageError, match=r"llm\.model .* enrichment\.facts"):
        EnrichFlow(config)


def test_cost_of_models_is_exported_to_prometheus() -> None:
    meter = Meter("m-1")
    meter.spend("acme", "classify", Cost(2, 30, 4))
    meter.spend("acme", "embed", Cost(1, 5))
    meter.fail("classify", "refused")
    meter.fail("extract", "refused")

    class Shown(Collector):
        def collect(self) -> Any:
            yield from model_metrics([meter])

    registry = CollectorRegistry()
    registry.register(Shown())
    lines = generate_latest(registry).decode().splitlines()
    assert {
        'recallflow_model_calls_total{model="m-1",task="classify",tenant="acme"} 2.0',
        'recallflow_model_tokens_total{kind="completion",model="m-1",task="classify",tenant="acme"} 4.0',
        'recallflow_model_tokens_total{kind="prompt",model="m-1",task="embed",tenant="acme"} 5.0',
        'recallflow_model_failures_total{code="refused",model="m-1"} 2.0',
        'recallflow_model_failures_total{code="timeout",model="m-1"} 0.0',
    } <= set(lines)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-7,9", {*range(8), 9}), ("3", {3}), (" 4 - 5 , 1", {1, 4, 5}), ("0-3,2-5", {*range(6)})]
)
def test_ranges_are_read(text: str, numbers: set[int]) -> None:
    assert parse_ranges(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "7-0", "0-9999999999", "1-2-3", "½"])
def test_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no list of numbers and ranges|ends before it begins"):
        parse_ranges(text)


@given(st.frozensets(st.integers(0, 40), min_size=1))
def test_numbers_are_written_as_they_are_read(numbers: frozenset[int]) -> None:
    assert parse_ranges(ranges_of(numbers)) == numbers


def test_the_shortest_way() -> None:
    assert ranges_of({0, 1, 2, 3, 5, 7, 8}) == "0-3,5,7-8"


def test_text_without_ranges_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is no list of numbers and ranges"):
        parse_ranges("a")
