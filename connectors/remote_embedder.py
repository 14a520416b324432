"""Embedding model behind an API, whose vectors arrive later."""

from collections.abc import Sequence

from recallflow.embedder import Embedder, Kind, Matrix
from recallflow.errors import EmbedderError
from recallflow.llm import EmbeddingService


class RemoteModel:
    """`RemoteEmbedder` with the name and dimension of its service. `copy` is the same model in this process."""

    kind: Kind = "contextual"

    def __init__(self, service: EmbeddingService, copy: Embedder | None = None) -> None:
        """Raise EmbedderError where the copy is of another model."""
        self.service = service
        self.name, self.dimension = service.name, service.dimension
        self._copy = copy
        if copy is not None and copy.dimension != self.dimension:
            raise EmbedderError(
                f"--model-path: {copy.name} gives {copy.dimension} floats, and embedding.dimension is "
                f"{self.dimension}: give the folder of {self.name}, or none"
            )

    def embed(self, texts: Sequence[str]) -> Matrix:
        if self._copy is None:
            raise EmbedderError(f"there is no copy of {self.name} here: --model-path names one")
        return self._copy.embed(texts)
