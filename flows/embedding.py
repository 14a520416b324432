"""The embedder that settings choose, with what asks its service, if it has one."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from recallflow.connectors.embedders import REMOTE, load_remote
from recallflow.decisions import History
from recallflow.embedder import Embedder, Matrix
from recallflow.enrichment import text_to_embed
from recallflow.errors import EmbedderError, ModelError
from recallflow.events import MemoryEvent
from recallflow.flows.model_settings import Asker, EmbeddingSettings
from recallflow.flows.settings import Settings
from recallflow.llm import ONE_TO_BLAME, EmbeddingService, RemoteEmbedder
from recallflow.operators.async_call import Completions, Runtime
from recallflow.operators.events import Item, Write
from recallflow.operators.prepare import said
from recallflow.state.directory import StateDirectory

SPENT = "embedding.spent"  # in the state directory

_log = logging.getLogger(__name__)


@contextmanager
def open_embedder(
    engine: Settings,
    embedding: EmbeddingSettings,
    asker: Asker = "line",
    decisions: History | None = None,
    state_dir: Path | None = None,
) -> Iterator[Embedder]:
    """The embedder; its service, if it has one, is closed in the end. `decisions`: with tenants' quotas; `state_dir`:
    what was spent is remembered there. Raises EmbedderError, and UsageError."""
    if engine.embedder != REMOTE:
        yield engine.load_embedder()
        return
    service = embedding.load_service(asker, decisions, state_dir and state_dir / SPENT)
    with Runtime(Completions()) as runtime:
        try:
            yield load_remote(service, engine.model_path)
        finally:
            runtime.run(service.close())


class Ahead:
    """Has texts embedded before their events are applied, and waits for it: for a run whose input ends, which has no
    enrichment flow beside it. A memory whose vector cannot be had is stored without, and its receipt says so."""

    def __init__(self, service: EmbeddingService, directory: StateDirectory, runtime: Runtime) -> None:
        self._service, self._directory, self._runtime = service, directory, runtime
        self._warned = False

    @classmethod
    @contextmanager
    def of(cls, embedder: RemoteEmbedder, directory: StateDirectory) -> Iterator[Self]:
        with Runtime(Completions()) as runtime:
            yield cls(embedder.service, directory, runtime)

    def embed(self, prepared: Sequence[Item]) -> list[Item]:
        """The items with the vectors of their texts. Raises EmbedderError where the service has given none of the size
        that is set, in this run or an earlier one."""
        items = [*prepared]
        wanted: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for at, item in enumerate(items):
            if isinstance(item, Write) and (text := _to_embed(item)) is not None:
                wanted[item.owner.tenant_id].append((at, text))
        for tenant_id, texts in wanted.items():
            found = self._runtime.run(self.ask(tenant_id, [text for _, text in texts]))
            for (at, _), one in zip(texts, found, strict=True):
                items[at] = with_vector(items[at], one)
        return items

    async def ask(self, tenant_id: str, texts: Sequence[str]) -> list[Matrix | str]:
        """The vector of each text, or the code of what went wrong. Raises EmbedderError as `embed` does."""
        try:
            return [*(await self._service.embed(tenant_id, texts)).vectors]
        except EmbedderError as error:
            if not self._directory.has_vectors():
                raise EmbedderError(f"{error}; a state directory keeps its size, so begin with a new one") from None
            failed = ModelError("malformed", str(error))
        except ModelError as error:
            failed = error
        if failed.code in ONE_TO_BLAME and len(texts) > 1:
            half = len(texts) // 2
            return [*await self.ask(tenant_id, texts[:half]), *await self.ask(tenant_id, texts[half:])]
        if not self._warned:
            self._warned = True
            _log.warning("memories are stored without vectors, and found by words alone: %s", failed)
        return [failed.code] * len(texts)

    def start(self, tenant_id: str, texts: Sequence[str]) -> "Future[list[Matrix | str]]":
        """The same, for who does not wait for it on this thread."""
        return self._runtime.start(self.ask(tenant_id, texts))


def _to_embed(write: Write) -> str | None:
    """What the service is to read of an event; None where nothing, or where a vector came with it."""
    if write.analysis is None or write.analysis.vectors is not None:
        return None
    return text_of(write.event)


def text_of(event: MemoryEvent) -> str | None:
    """What a service is to read of an event; None where it brings no text."""
    brought = said(event)
    if brought is None:
        return None
    author, text = brought
    return None if not text or text.isspace() else text_to_embed(author, text)


def with_vector(item: Item, found: Matrix | str) -> Item:
    """The item with its vector, or with why it has none."""
    assert isinstance(item, Write)  # noqa: S101 nothing else brings text
    assert item.analysis is not None  # noqa: S101
    if isinstance(found, str):
        return item._replace(analysis=item.analysis._replace(unembedded=found))
    return item._replace(analysis=item.analysis._replace(vectors=found[np.newaxis]))
