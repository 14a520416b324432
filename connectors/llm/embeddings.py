"""Embedding model behind an API."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from recallflow.connectors.llm.calls import ModelCalls
from recallflow.connectors.llm.connection import CallFailed, ModelConnection
from recallflow.connectors.llm.policy import Endpoint, Meter, Policy, counted, estimate_tokens
from recallflow.embedder import Matrix
from recallflow.enrichment import EMBEDDED_BYTES
from recallflow.errors import EmbedderError
from recallflow.llm import Embedded, Spent

BATCH_TEXTS = 256
BATCH_BYTES = 512 * 1024  # services take 300,000 tokens a call
FLOAT_BYTES = 32  # in decimal digits, at most
ENVELOPE_BYTES = 64 * 1024  # size of an answer without its floats
SHORTENED = "text-embedding-3"  # models with this prefix return the requested dimension


class OpenAiEmbeddings:
    """`EmbeddingService`. Use and close it on one event loop."""

    def __init__(self, model: str, dimension: int, endpoint: Endpoint, policy: Policy) -> None:
        """Raise UsageError for an invalid URL or header."""
        self.name = model
        self.dimension = dimension
        self._connection = ModelConnection(endpoint)
        self._create = self._connection.client.embeddings.with_streaming_response.create  # loaded now, as of a chat
        self._calls = ModelCalls(model, policy)
        shortened = model.rpartition("/")[2].startswith(SHORTENED)
        self._asked: dict[str, Any] = {"dimensions": dimension} if shortened else {}
        self._fits = False  # after a vector of the configured dimension, another dimension is an error of the service

    @property
    def meter(self) -> Meter:
        return self._calls.meter

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
        """Return the vectors. A text without words gets the zero vector, and is not sent."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        spoken = [at for at, text in enumerate(texts) if text.strip()]
        total = Spent()
        for batch in _batches([(at, _beginning(texts[at])) for at in spoken]):
            texts_of = [text for _, text in batch]
            answer, spent = await self._calls.call(
                tenant_id, "embed", estimate_tokens(*texts_of), partial(self._attempt, texts_of)
            )
            vectors[[at for at, _ in batch]] = answer.vectors
            total = total.plus(spent)
        return Embedded(vectors, total)

    async def close(self) -> None:
        self._calls.close()
        await self._connection.close()

    async def _attempt(self, texts: list[str]) -> Embedded:
        # The official client asks for base64; many servers answer with numbers all the same.
        opened = self._create(model=self.name, input=texts, encoding_format="base64", **self._asked)
        most_bytes = len(texts) * (self.dimension * FLOAT_BYTES + 1024) + ENVELOPE_BYTES
        answer = await self._connection.ask(opened, most_bytes)
        try:
            found = sorted((item["index"], item["embedding"]) for item in answer["data"])
            rows = [_floats(embedding) for _, embedding in found]
            whole = [at for at, _ in found] == [*range(len(texts))]
            spent = Spent(1, counted(answer, "prompt_tokens", estimate_tokens(*texts)))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise CallFailed("malformed", "the answer has no embeddings") from None
        if not whole:
            raise CallFailed("malformed", f"the answer has {len(rows)} embeddings for {len(texts)} texts", spent=spent)
        return Embedded(self._normalised(rows, spent), spent)

    def _normalised(self, rows: list[Any], spent: Spent) -> Matrix:
        """Return normalised vectors. Raise CallFailed for an invalid vector, and EmbedderError for a constant wrong
        size: then the settings are wrong."""
        sizes = {row.size for row in rows}
        self._fits |= self.dimension in sizes
        if sizes != {self.dimension}:
            if self._fits or len(sizes) > 1:
                raise CallFailed(
                    "malformed", f"the answer has embeddings of other sizes than {self.dimension}", spent=spent
                )
            raise EmbedderError(
                f"{self.name} gives vectors of {sizes.pop():,} floats: set embedding.dimension to that, "
                f"which is {self.dimension}, or name another model"
            )
        found = np.stack(rows)
        with np.errstate(all="ignore"):  # invalid numbers
            norms = np.sqrt((found * found).sum(axis=1, keepdims=True))
        if not np.isfinite(norms).all() or not norms.all():
            raise CallFailed("malformed", "the answer has embeddings that are no vectors", spent=spent)
        vectors: Matrix = (found / norms).astype(np.float32)
        return vectors


def _floats(embedding: Any) -> Any:
    """Return the floats of an embedding. Raise ValueError or TypeError for other values."""
    if isinstance(embedding, str):
        row = np.frombuffer(b64decode(embedding, validate=True), "<f4").astype(np.float64)
    else:
        row = np.array(embedding, np.float64)
    if row.ndim != 1 or not row.size:
        raise ValueError
    return row


def _beginning(text: str) -> str:
    encoded = text.encode()
    return text if len(encoded) <= EMBEDDED_BYTES else encoded[:EMBEDDED_BYTES].decode(errors="ignore")


def _batches(texts: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield texts in order, in batches up to the limit of a call."""
    batch: list[tuple[int, str]] = []
    size_bytes = 0
    for at, text in texts:
        grown = size_bytes + len(text.encode())
        if batch and (len(batch) == BATCH_TEXTS or grown > BATCH_BYTES):
            yield batch
            batch, grown = [], len(text.encode())
        batch.append((at, text))
        size_bytes = grown
    if batch:
        yield batch
