"""Requests, and models that answer them as a test has it, behind the protocols that all models are behind."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recallflow.embedder import Matrix
from recallflow.errors import EmbedderError, ModelError
from recallflow.events import EnrichmentRequest, EnrichmentResult, Event, ShownMemory, content_hash
from recallflow.fields import parse_time
from recallflow.llm import Cost, Embeddings, EmbeddingService, LanguageModel
from recallflow.operators.enrichment.enrich import Thresholds, enrich
from recallflow.operators.enrichment.results import PositionedRequest
from recallflow.parsing import parse
from recallflow.records import Position
from tests.unit.operators.models import Language

DAY = "2026-05-20T09:00:00Z"
OWNER = {"tenant_id": "acme", "user_id": "ann", "environment": "prod"}


def memory(memory_id: str, content: str, at: str | int = DAY, **fields: Any) -> ShownMemory:
    given = {"kind": "message", "role": "user", "name": "Ann"} | fields
    return ShownMemory(
        memory_id=memory_id, content=content, content_hash=content_hash(content), created_at=parse_time(at), **given
    )


def request(tasks: Sequence[str], *memories: ShownMemory, **fields: Any) -> EnrichmentRequest:
    given = {"type": "enrichment.request", "source": "memory.events:0:7", "session_id": "s1", "timestamp": 7}
    return EnrichmentRequest.model_validate({**OWNER, **given, "tasks": [*tasks], "memories": [*memories], **fields})


def asked(*requests: EnrichmentRequest) -> list[PositionedRequest]:
    """Requests, one after the other in their topic."""
    return [PositionedRequest(Position("enrichment.requests", 0, 40 + n), one) for n, one in enumerate(requests)]


class Scripted(Language):
    name, spent = "scripted", Cost(1, 100, 11)

    def data(self) -> dict[str, Any]:
        (prompt,) = self.asked
        found: dict[str, Any] = json.loads(prompt.user.split("\n")[1])
        return found


class Vectors:
    name, dimension = "scripted-vectors", 3

    def __init__(self, *, bad: Sequence[str] = (), error: ModelError | EmbedderError | None = None) -> None:
        self._bad, self._error = bad, error
        self.calls: list[list[str]] = []

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:
        assert tenant_id == "acme"
        self.calls.append([*texts])
        await asyncio.sleep(0)
        if self._error is not None and (not self._bad or {*texts} & {*self._bad}):
            raise self._error
        rows: Matrix = np.array([[0.1 * len(text), 0.2, -0.3] for text in texts], np.float32)
        return Embeddings(rows, Cost(1, sum(map(len, texts)), 0))


def results(
    requests: Sequence[EnrichmentRequest],
    model: LanguageModel | None = None,
    embeddings: EmbeddingService | None = None,
    categories: Mapping[str, str] | None = None,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 a value
) -> list[EnrichmentResult]:
    return asyncio.run(enrich(asked(*requests), model, embeddings, thresholds, categories or {}))


def texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for one in data.values() if isinstance(data, dict) else data:
            yield from texts(one)


def parsed(result: EnrichmentResult) -> list[Event]:
    return [parse(json.dumps(event).encode()) for event in result.events]
