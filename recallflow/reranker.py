"""What recallflow asks of a reranker."""

from collections.abc import Sequence
from typing import Protocol


class Reranker(Protocol):
    """Reads a question and a text together, which no index can, and says how well they fit."""

    @property
    def name(self) -> str:
        """The model, as answers name it."""

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """A number for each text, in their order: the higher the better it fits. Raises RerankerError.

        It must not block, and lets itself be cancelled: a timeout ends it so."""
