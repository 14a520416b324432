"""Models behind an API, over real HTTP: requests and responses."""

import asyncio
import subprocess
import sys
from typing import Literal

import numpy as np
import pytest

from recallflow.connectors.llm import Endpoint, load_embedding_service, load_language_model
from recallflow.errors import ModelError
from recallflow.llm import Completion, Embedded, Prompt, Spent
from tests.llm_server import LlmServer

SECRET, TEXT = "sk-very-secret", "Ana lives in Porto"
SCHEMA = {
    "type": "object",
    "properties": {"relation": {"type": "string", "enum": ["agrees", "contradicts"]}, "confidence": {"type": "number"}},
    "required": ["relation", "confidence"],
    "additionalProperties": False,
}
PROMPT = Prompt("classify", "v1", "Judge.", TEXT, SCHEMA, 50)


def complete(server: LlmServer, timeout_s: float = 30.0, prompt: Prompt = PROMPT) -> Completion:
    async def asked() -> Completion:
        model = load_language_model("m-1", Endpoint(server.url, SECRET, ("X-Team: memory",), timeout_s))
        try:
            return await model.complete("acme", prompt)
        finally:
            await model.close()

    return asyncio.run(asked())


def embed(server: LlmServer, *texts: str, model: str = "e-1", dimension: int = 64) -> Embedded:
    async def asked() -> Embedded:
        service = load_embedding_service(model, dimension, Endpoint(server.url, SECRET))
        try:
            return await service.embed("acme", texts)
        finally:
            await service.close()

    return asyncio.run(asked())


def test_a_language_model_is_asked_for_the_prompts_schema(llm_server: LlmServer) -> None:
    llm_server.answer("classify", {"relation": "contradicts", "confidence": 0.9})
    answer = complete(llm_server)
    assert answer.value == {"relation": "contradicts", "confidence": 0.9}
    (asked,) = llm_server.requests
    assert (asked.system, asked.user, asked.schema, asked.body["model"]) == ("Judge.", TEXT, SCHEMA, "m-1")
    assert asked.body["response_format"]["json_schema"]["strict"] is True
    assert asked.body["max_tokens"] == 50
    assert (asked.headers["authorization"], asked.headers["x-team"]) == (f"Bearer {SECRET}", "memory")
    assert answer.spent == Spent(1, 6, 17)


@pytest.mark.parametrize("fault", ["hang", "slow"])
def test_slow_model_is_disconnected(llm_server: LlmServer, fault: Literal["hang", "slow"]) -> None:
    llm_server.fail(fault)
    with pytest.raises(ModelError, match="timeout"):
        complete(llm_server, timeout_s=0.2)
    llm_server.wait_for(lambda now: now.hung_up == 1)


def test_the_body_of_an_error_is_not_waited_for(llm_server: LlmServer) -> None:
    llm_server.fail("endless_error")
    with pytest.raises(ModelError, match="unavailable"):
        complete(llm_server)
    llm_server.wait_for(lambda now: now.hung_up == 1)


def test_vectors_are_normalised_and_in_the_order_of_their_texts(llm_server: LlmServer) -> None:
    llm_server.vectors["b"] = [3.0, 4.0]
    found = embed(llm_server, "a", "b", " ", "a").vectors
    assert (str(found.dtype), found.shape) == ("float32", (4, 64))
    assert found[1][:2].tolist() == pytest.approx([0.6, 0.8])
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1, 0, 1])
    assert (found[0] == found[3]).all()
    assert [asked.texts for asked in llm_server.requests] == [["a", "b", "a"]]


def test_a_server_may_answer_with_numbers(llm_server: LlmServer) -> None:
    packed = embed(llm_server, "Ana lives in Porto", "nuts").vectors
    llm_server.packs = False
    assert (embed(llm_server, "Ana lives in Porto", "nuts").vectors == packed).all()


def test_dimension_is_sent_to_models_that_take_it(llm_server: LlmServer) -> None:
    assert embed(llm_server, "a", model="openai/text-embedding-3-small", dimension=32).vectors.shape == (1, 32)
    embed(llm_server, "a")
    assert [asked.body.get("dimensions") for asked in llm_server.requests] == [32, None]


def test_many_texts_and_long_ones_go_in_several_calls(llm_server: LlmServer) -> None:
    texts = [f"text {n}" for n in range(300)] + ["é" * 10_000] * 80
    found = embed(llm_server, *texts)
    assert found.vectors.shape == (380, 64)
    sizes = [len(asked.texts) for asked in llm_server.requests]
    assert (sum(sizes), max(sizes), found.spent.calls) == (380, 256, len(sizes))
    assert all(sum(len(text.encode()) for text in asked.texts) <= 512 * 1024 for asked in llm_server.requests)
    assert max(len(text) for asked in llm_server.requests for text in asked.texts) == 4_000
    assert (found.vectors[299] == embed(llm_server, "text 299").vectors[0]).all()
    assert found.spent.prompt_tokens == 2 * 300 + 80


@pytest.mark.processes
def test_commands_without_models_do_not_import_the_client() -> None:
    script = "import sys, recallflow.cli, recallflow.flows.kafka, recallflow.flows.enrich; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "recallflow.connectors.llm" in loaded
    assert not {"openai", "jsonschema"} & {*loaded}
