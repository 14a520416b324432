"""An embedding model behind an API."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from recallflow.connectors.llm.connection import CHARACTERS_PER_TOKEN, CallFailed, Connection
from recallflow.connectors.llm.endpoint import Endpoint
from recallflow.embedder import Matrix
from recallflow.errors import EmbedderError
from recallflow.llm import Embedded, Spent

BATCH_TEXTS = 256
BATCH_BYTES = 512 * 1024  # services take 300,000 tokens a call
TEXT_BYTES = 16_000  # services take 8,191 tokens a text; of a longer one its beginning is read
FLOAT_BYTES = 32  # in decimal digits, at most
ENVELOPE_BYTES = 64 * 1024  # of an answer, beside its floats
SHORTENED = "text-embedding-3"  # models of this name give as many floats as they are asked for


class OpenAiEmbeddings:
    """An `EmbeddingService`. Use and close it on one event loop."""

    def __init__(self, model: str, dimension: int, endpoint: Endpoint) -> None:
        """Raises UsageError for a URL or a header that is none."""
        self.name = model
        self.dimension = dimension
        self._connection = Connection(endpoint)
        shortened = model.rpartition("/")[2].startswith(SHORTENED)
        self._asked: dict[str, Any] = {"dimensions": dimension} if shortened else {}

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
        """A text without a word has the zero vector, and is not sent."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        spoken = [at for at, text in enumerate(texts) if text.strip()]
        calls = tokens = 0
        for batch in _batches([(at, _beginning(texts[at])) for at in spoken]):
            found, spent = await self._call(tenant_id, [text for _, text in batch])
            vectors[[at for at, _ in batch]] = found
            calls, tokens = calls + spent.calls, tokens + spent.prompt_tokens
        return Embedded(vectors, Spent(calls, tokens))

    async def close(self) -> None:
        await self._connection.close()

    async def _call(self, tenant_id: str, texts: list[str]) -> Embedded:  # noqa: ARG002 budgets are by tenant
        return await self._attempt(texts)

    async def _attempt(self, texts: list[str]) -> Embedded:
        embeddings = self._connection.client.embeddings.with_streaming_response
        # As the official client asks for; many servers answer with numbers all the same.
        opened = embeddings.create(model=self.name, input=texts, encoding_format="base64", **self._asked)
        most_bytes = len(texts) * (self.dimension * FLOAT_BYTES + 1024) + ENVELOPE_BYTES
        answer = await self._connection.ask(opened, most_bytes)
        try:
            found = sorted((item["index"], item["embedding"]) for item in answer["data"])
            rows = [_floats(embedding) for _, embedding in found]
            whole = [at for at, _ in found] == [*range(len(texts))]
            usage = answer.get("usage")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise CallFailed("malformed", "the answer has no embeddings") from None
        if not whole:
            raise CallFailed("malformed", f"the answer has {len(rows)} embeddings for {len(texts)} texts")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        estimate = sum(map(len, texts)) // CHARACTERS_PER_TOKEN
        return Embedded(self._normalised(rows), Spent(1, tokens if isinstance(tokens, int) else estimate))

    def _normalised(self, rows: list[Any]) -> Matrix:
        """Raises EmbedderError for another size, CallFailed for what is no vector."""
        for row in rows:
            if row.shape != (self.dimension,):
                raise EmbedderError(
                    f"{self.name} gives vectors of {row.size} floats: set embedding.dimension to that, "
                    f"which is {self.dimension}, or name another model"
                )
        found = np.stack(rows)
        with np.errstate(all="ignore"):  # of what is no number
            norms = np.sqrt((found * found).sum(axis=1, keepdims=True))
        if not np.isfinite(norms).all() or not norms.all():
            raise CallFailed("malformed", "the answer has embeddings that are no vectors")
        vectors: Matrix = (found / norms).astype(np.float32)
        return vectors


def _floats(embedding: Any) -> Any:
    if isinstance(embedding, str):
        return np.frombuffer(b64decode(embedding, validate=True), "<f4").astype(np.float64)
    return np.array(embedding, np.float64)


def _beginning(text: str) -> str:
    encoded = text.encode()
    return text if len(encoded) <= TEXT_BYTES else encoded[:TEXT_BYTES].decode(errors="ignore")


def _batches(texts: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """In their order, each as large as a call may be."""
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
