"""The configured models: embedder, remote embedding of batches and for concurrent callers, and models for queries."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np

from recallflow.connectors.embedders import REMOTE, load_remote
from recallflow.connectors.llm.policy import Meter
from recallflow.control import ControlHistory
from recallflow.embedder import Embedder, Matrix
from recallflow.errors import EmbedderError, ModelError
from recallflow.events import MemoryEvent, MemoryFields, Message, embedding_input
from recallflow.flows.model_settings import CallerKind, EmbeddingSettings, ModelSettings
from recallflow.flows.settings import Settings
from recallflow.llm import TEXT_FAILURES, EmbeddingService, RemoteEmbedder
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.async_call import Completions, Runtime
from recallflow.operators.events import Item, Write
from recallflow.operators.prepare import author_and_text
from recallflow.records import Position
from recallflow.state.directory import StateDirectory

# Files in the state directory with each tenant's spending of the day.
EMBEDDING_SPENDING, SPENDING = "embedding.spent", "questions.spent"
CALL_TEXTS = 32  # texts per call; they collect while the previous call is in progress
_Waiting = tuple[str, "asyncio.Future[Matrix | str]"]  # a text, and the future of its vector or of a failure code

_log = logging.getLogger(__name__)


@contextmanager
def open_embedder(
    engine: Settings,  # the settings with the embedder's name
    embedding: EmbeddingSettings,
    caller: CallerKind = "embedded",
    decisions: ControlHistory | None = None,  # the control events with tenants' quotas
    state_dir: Path | None = None,  # the directory that keeps the spending
) -> Iterator[Embedder]:
    """Open the embedder, and its remote service if it has one. Raise EmbedderError and UsageError."""
    if engine.embedder != REMOTE:
        yield engine.load_embedder()
        return
    service = embedding.load_service(caller, decisions, state_dir and state_dir / EMBEDDING_SPENDING)
    with Runtime(Completions()) as runtime:
        try:
            yield load_remote(service, engine.model_path)
        finally:
            runtime.run(service.close())


class BatchEmbedder:
    """A remote embedder for engines without an enrichment flow. It waits until the texts of a batch are embedded. A
    memory whose text cannot be embedded is stored without a vector, and its receipt says so."""

    def __init__(self, service: EmbeddingService, directory: StateDirectory, runtime: Runtime) -> None:
        self._service, self._directory, self._runtime = service, directory, runtime
        self._warned = False

    def embed(self, prepared: Sequence[Item]) -> list[Item]:
        """Return the items with vectors. Raise EmbedderError if a vector does not have the configured dimension and the
        directory has no vectors, because then the settings may be wrong."""
        items = [*prepared]
        texts_of: dict[str, list[tuple[int, str]]] = defaultdict(list)  # by tenant, each with the index of its item
        for at, item in enumerate(items):
            if not isinstance(item, Write) or item.analysis is None or item.analysis.vectors is not None:
                continue
            if (text := text_of(item.event)) is not None:
                texts_of[item.owner.tenant_id].append((at, text))
        for tenant_id, texts in texts_of.items():
            results = self.start(tenant_id, [text for _, text in texts]).result()
            for (at, _), result in zip(texts, results, strict=True):
                items[at] = with_vector(items[at], result)
        return items

    def start(self, tenant_id: str, texts: Sequence[str]) -> "Future[list[Matrix | str]]":
        """Return the future of the vector of each text, or the code of its failure. It raises EmbedderError as `embed`
        does."""
        return self._runtime.start(self._embed(tenant_id, texts))

    async def _embed(self, tenant_id: str, texts: Sequence[str]) -> list[Matrix | str]:
        try:
            return [*(await self._service.embed(tenant_id, texts)).vectors]
        except EmbedderError as error:
            if not self._directory.has_vectors():
                raise EmbedderError(f"{error}; a state directory keeps its dimension: start with a new one") from None
            failure = ModelError("malformed", str(error))
        except ModelError as error:
            failure = error
        if failure.code in TEXT_FAILURES and len(texts) > 1:
            half = len(texts) // 2
            return [*await self._embed(tenant_id, texts[:half]), *await self._embed(tenant_id, texts[half:])]
        if not self._warned:
            self._warned = True
            _log.warning("memories are stored without vectors, and only searchable by words: %s", failure)
        return [failure.code] * len(texts)


def text_of(event: MemoryEvent) -> str | None:
    """Return the text of an event for an embedding service; None if it has none."""
    author, text = author_and_text(event) or (None, None)
    return None if not text or text.isspace() else embedding_input(author, text)


def with_vector(item: Item, result: Matrix | str) -> Item:
    """Return the item with a vector, or with the code of a failure."""
    assert isinstance(item, Write)  # noqa: S101 only writes have text to embed
    assert item.analysis is not None  # noqa: S101
    if isinstance(result, str):
        return item._replace(analysis=item.analysis._replace(embedding_failure=result))
    return item._replace(analysis=item.analysis._replace(vectors=result[np.newaxis]))


class CallerEmbedder:
    """A remote embedder for concurrent callers, on their event loop. It keeps vectors until the dataflow reads the
    records of their texts."""

    def __init__(self, embedder: BatchEmbedder) -> None:
        self._embedder = embedder
        self._waiting: dict[str, list[_Waiting]] = defaultdict(list)  # by tenant
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by tenant
        self._kept: dict[Position, Matrix | str] = {}  # by position of the record

    async def embed(self, event: MemoryEvent) -> Matrix | str | None:
        """Return the vector of an event's text, or the code of the failure; None if it needs none."""
        has_vector = isinstance(event, Message | MemoryFields) and event.embedding is not None
        if has_vector or (text := text_of(event)) is None:
            return None
        future: asyncio.Future[Matrix | str] = asyncio.get_running_loop().create_future()
        self._waiting[event.tenant_id].append((text, future))
        if event.tenant_id not in self._tasks:
            self._tasks[event.tenant_id] = asyncio.create_task(self._embed_waiting(event.tenant_id))
        return await future

    def keep(self, position: Position, result: Matrix | str) -> None:
        """Keep the vector of a record, or its failure, until the dataflow reads the record."""
        self._kept[position] = result

    def attach(self, prepared: Sequence[Item]) -> list[Item]:
        """Return the items with the kept vectors. The dataflow's thread calls it."""
        return [self._with_kept_vector(item) for item in prepared]

    def _with_kept_vector(self, item: Item) -> Item:
        result = self._kept.pop(item.record.position, None)
        if result is None or not isinstance(item, Write) or item.analysis is None:
            return item
        return item if item.analysis.vectors is not None else with_vector(item, result)

    async def _embed_waiting(self, tenant_id: str) -> None:
        """Call the service until no text of the tenant is waiting."""
        try:
            while waiting := self._waiting.pop(tenant_id, None):
                waiting = [one for one in waiting if not one[1].done()]  # a caller may have been cancelled
                self._waiting[tenant_id] = waiting[CALL_TEXTS:]
                if waiting:
                    await self._call(tenant_id, waiting[:CALL_TEXTS])
        finally:
            del self._tasks[tenant_id]

    async def _call(self, tenant_id: str, waiting: Sequence[_Waiting]) -> None:
        try:
            results = await asyncio.wrap_future(self._embedder.start(tenant_id, [text for text, _ in waiting]))
        except Exception as error:  # noqa: BLE001 - the waiting callers receive it
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(waiting, results, strict=True):
            if not future.done():  # a caller may have been cancelled
                future.set_result(result)


@contextmanager
def open_question_models(
    engine: Settings,  # the settings with the reranker
    settings: ModelSettings,
    embedder: Embedder,  # the embedder, whose remote service embeds queries
    decisions: ControlHistory | None = None,  # see `load_model`
    spending_file: Path | None = None,  # see `load_model`
    around: Callable[[Position], AbstractContextManager[object]] = lambda _: nullcontext(),  # see `Models`
) -> Iterator[tuple[Models | None, tuple[Meter, ...]]]:
    """Open the models for queries. Yield them, or None if none is configured, with the meters of paid ones. Raise
    UsageError."""
    model, reranker = settings.llm.load_model("question", decisions, spending_file), engine.load_reranker()
    service = embedder.service if isinstance(embedder, RemoteEmbedder) else None
    if model is None and service is None and reranker is None:
        yield None, ()
        return
    models = Models(
        None if model is None else TimedModel(model, settings.llm.query_timeout_ms / 1000),
        None if service is None else TimedModel(service, settings.embedding.query_timeout_ms / 1000),
        None if reranker is None else TimedModel(reranker, engine.rerank_timeout_ms / 1000),
        call_context=around,
    )
    try:
        with models:
            paid = (one for one in (model, service) if one is not None and hasattr(one, "meter"))
            yield models, tuple(one.meter for one in paid)
    finally:
        if model is not None:
            models.runtime.run(model.close())
