"""The models that the enrichment flow asks, as settings name them."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from recallflow.connectors.llm.meter import Meter
from recallflow.decisions import History, categories
from recallflow.enrichment import EnrichmentResult
from recallflow.flows.config import Config
from recallflow.llm import Completion, Embedded, EmbeddingService, LanguageModel, Prompt
from recallflow.operators.async_call import Runtime
from recallflow.operators.enrichment.enrich import enrich
from recallflow.operators.enrichment.plan import Thresholds
from recallflow.operators.enrichment.results import Asked

LLM_SPENDING, EMBEDDING_SPENDING = "llm.spent", "embedding.spent"


class EnrichmentModels(NamedTuple):
    """A language model, if one is named, and an embedding service; and what each costs."""

    model: LanguageModel | None
    embeddings: EmbeddingService
    meters: Sequence[Meter]
    thresholds: Thresholds
    decisions: History

    async def enrich(self, asked: Sequence[Asked], at_ms: int) -> Sequence[EnrichmentResult]:
        """One result for each request, in their order, by what the tenant's operator had decided at a time."""
        known = categories(self.decisions, asked[0].request.tenant_id, at_ms)
        described = {one.name: one.description for one in known}
        return await enrich(asked, self.model, self.embeddings, self.thresholds, described)


@contextlib.contextmanager
def open_models(config: Config, runtime: Runtime, decisions: History) -> Iterator[EnrichmentModels]:
    """The models, on the loop of async calls. What tenants spent today is kept in the state directory."""
    folder, chosen = config.named_state_dir(), config.enrichment
    thresholds = Thresholds(chosen.relationship_confidence, chosen.semantic_confidence)
    with ExitStack() as stack:
        model, meters = None, []
        opened = config.llm.load_model("enrichment", decisions, folder / LLM_SPENDING)
        if opened is not None:
            stack.callback(lambda: runtime.run(opened.close()))
            model = _ModelInTurn(opened, config.llm.capacity)
            meters.append(opened.meter)
        service = config.embedding.load_service("enrichment", decisions, folder / EMBEDDING_SPENDING)
        stack.callback(lambda: runtime.run(service.close()))
        meters.append(service.meter)
        yield EnrichmentModels(model, _ServiceInTurn(service, config.embedding.capacity), meters, thresholds, decisions)


class _ModelInTurn:
    """A language model that is asked so many questions at a time; a further one waits for its turn."""

    def __init__(self, model: LanguageModel, capacity: int) -> None:
        self.name = model.name
        self._model = model
        self._places = asyncio.Semaphore(capacity)

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        async with self._places:
            return await self._model.complete(tenant_id, prompt)


class _ServiceInTurn:
    """An embedding service, likewise."""

    def __init__(self, service: EmbeddingService, capacity: int) -> None:
        self.name, self.dimension = service.name, service.dimension
        self._service = service
        self._places = asyncio.Semaphore(capacity)

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
        async with self._places:
            return await self._service.embed(tenant_id, texts)
