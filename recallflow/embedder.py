"""What recallflow asks of an embedding model."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]

NO_FLOATS: Matrix = np.zeros((0, 0), np.float32)

# What a model knows of words: their spelling; what each means by itself; what it means among the words around it; or
# spelling and meaning in one vector.
Kind = Literal["spelling", "static", "contextual", "blended"]


class TextVectors(NamedTuple):
    """A text as a model sees it. `vector`: (dimension,) float32, L2-normalised, of the whole. `tokens`: (tokens,
    token_dimension) float32, one row for each token that carries meaning, in text order; a row's length is what the
    token weighs in a question."""

    vector: Matrix
    tokens: Matrix


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
    def kind(self) -> Kind:
        """What the vectors know; decides which ranking weights apply."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """texts → (len(texts), dimension) float32, L2-normalised rows. Raises EmbedderError."""


@runtime_checkable
class TokenEmbedder(Protocol):
    """What an embedder may be beside: a model that gives a vector for each token too, from the same run."""

    def embed_tokens(self, texts: Sequence[str]) -> list[TextVectors]:
        """Each text's vectors; `vector` is the row that `embed` gives. Raises EmbedderError."""


@runtime_checkable
class QuestionEmbedder(Protocol):
    """What an embedder may be beside: a model that reads a question otherwise than what may answer it."""

    def embed_question(self, text: str) -> TextVectors:
        """The question's vectors, to compare with those of texts. Raises EmbedderError."""


@runtime_checkable
class TokenCounter(Protocol):
    """What counts a text's tokens; an embedder may, by its own tokenizer."""

    @property
    def counted_by(self) -> str:
        """Whose tokens they are, as a response shows it."""

    def count_tokens(self, text: str) -> int:
        """Tokens of the whole text, without marks of beginning and end. 0 for an empty text only."""


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> list[TextVectors]:
    """Each text's vectors, without tokens where the model gives none. Raises EmbedderError."""
    if not texts:
        return []
    if isinstance(embedder, TokenEmbedder):
        return embedder.embed_tokens(texts)
    return [TextVectors(row, NO_FLOATS) for row in embedder.embed(texts)]
