"""Settings of models behind an API: sources, refusals, secrets and effects."""

import asyncio
import io
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from recallflow import Memory
from recallflow.cli import main
from recallflow.connectors.llm import Meter
from recallflow.control import Quota
from recallflow.decisions import History
from recallflow.errors import ModelError, UsageError
from recallflow.flows.config import Config, read_config
from recallflow.flows.engine_metrics import model_metrics
from recallflow.flows.enrich import EnrichFlow
from recallflow.flows.model_settings import Asker, EmbeddingSettings, EnrichmentSettings, LlmSettings
from recallflow.llm import Prompt, Spent
from tests.llm_server import Fault, LlmServer

PROMPT = Prompt("classify", "v1", "", "Ana", {"type": "object", "properties": {}}, 40)


def config_of(**environment: str) -> Any:
    return read_config({}, environment)[0]


def test_variables_of_the_official_client_are_defaults(tmp_path: Path) -> None:
    known = {"OPENAI_API_KEY": "theirs", "OPENAI_BASE_URL": "http://theirs/v1"}
    config, origins = read_config({}, known)
    assert (config.llm.key, config.llm.base_url) == ("theirs", "http://theirs/v1")
    assert origins["llm.key"] == "OPENAI_API_KEY"
    assert config_of(**known, RECALLFLOW_LLM_KEY="ours").llm.key == "ours"
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


@pytest.mark.parametrize(("asker", "calls"), [("question", 1), ("line", 3)])
def test_question_is_tried_once(
    llm_server: LlmServer, monkeypatch: pytest.MonkeyPatch, asker: Asker, calls: int
) -> None:
    monkeypatch.setattr("recallflow.connectors.llm.policy.FIRST_WAIT_S", 0.0)
    settings = LlmSettings("m", base_url=llm_server.url, attempts=3)
    llm_server.fail(Fault("status"), times=None)

    async def asked() -> None:
        model = settings.load_model(asker)
        assert model is not None
        with pytest.raises(ModelError, match="unavailable"):
            await model.complete("acme", PROMPT)
        await model.close()

    asyncio.run(asked())
    assert llm_server.calls["classify"] == calls
    assert LlmSettings().load_model(asker) is None


def test_a_tenants_quota_comes_before_the_limit_of_the_settings(llm_server: LlmServer) -> None:
    history = History()

    def decide(name: str, limit: int | None) -> None:
        event = Quota.model_validate({"type": "quota", "tenant_id": "acme", "name": name, "limit": limit})
        history.add(round(time.time() * 1000), event)

    async def codes() -> list[str]:
        model = LlmSettings("m", base_url=llm_server.url, tokens_per_day=0).load_model("line", history)
        service = EmbeddingSettings(base_url=llm_server.url, dimension=64, tokens_per_day=0).load_service(
            "line", history
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
    return EnrichmentSettings(relationships=True).unavailable() or ""


def test_engine_without_kafka_warns_that_enrichment_does_nothing(
    unavailable: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "enrichment.relationships" in unavailable
    assert EnrichmentSettings().unavailable() is None
    with Memory(tmp_path / "memory", embedder="hash"):  # which opens its engine as `serve` and `mcp` do
        pass
    assert unavailable in caplog.messages
    (tmp_path / "log.jsonl").write_bytes(b'{"type": "message", "tenant_id": "a", "user_id": "b", "content": "c"}\n')
    log = [str(tmp_path / "log.jsonl"), "--embedded", "--create", "--state-dir", str(tmp_path / "replayed")]
    assert main(["replay", *log, "--embedder", "hash"]) == 0
    assert unavailable in capfd.readouterr().err


def test_pipe_warns_that_enrichment_does_nothing(
    unavailable: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(logging, "disable", lambda _: None)
    assert main(["pipe", "--embedder", "hash"]) == 0
    assert unavailable in capfd.readouterr().err


def test_enrichment_without_its_language_model_is_refused(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path, enrichment=EnrichmentSettings(facts=True))
    with pytest.raises(UsageError, match=r"llm\.model .* enrichment\.facts"):
        EnrichFlow(config)


def test_cost_of_models_is_exported_to_prometheus() -> None:
    meter = Meter("m-1")
    meter.spend("acme", "classify", Spent(2, 30, 4))
    meter.spend("acme", "embed", Spent(1, 5))
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
