"""What recallflow asks of an embedding model."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]


class Embedder(Protocol):
    """A model that turns texts into vectors.

    The vector of a text must not depend on the texts beside it in the call: a replay that cuts its batches elsewhere
    has to arrive at the same state.
    """

    @property
    def name(self) -> str:
        """The model, as kept with the vectors: vectors of different models never meet."""

    @property
    def dimension(self) -> int:
        """Floats per vector."""

    @property
    def semantic(self) -> bool:
        """Whether the vectors carry meaning beyond spelling; decides which ranking weights apply."""

    @property
    def splits_sentences(self) -> bool:
        """Whether a vector per sentence pays off beside the one of the whole text."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """texts → (len(texts), dimension) float32, L2-normalised rows. Raises EmbedderError."""
