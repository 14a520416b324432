"""Interfaces of embedding models and token counters."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]
NO_FLOATS: Matrix = np.zeros((0, 0), np.float32)
# Content of a model's vectors: spelling; meaning of single words; meaning of words in context; spelling and meaning.
Kind = Literal["spelling", "static", "contextual", "blended"]
CHARACTERS_PER_TOKEN = 4
# Han, kana, Hangul and their punctuation: about one token per character, because vocabularies have few of their words.
_CJK = re.compile(
    "[\u1100-\u11ff\u3000-\u30ff\u3100-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff00-\uffef\U00020000-\U0003134f]"
)


class TextVectors(NamedTuple):
    """Vectors of a text. `vector` is (dimension,) float32, L2-normalised, for the whole text. `tokens` is (tokens,
    token_dimension) float32, one row per meaningful token in text order; the L2 norm of a row is the token's weight."""

    vector: Matrix
    tokens: Matrix


class Embedder(Protocol):
    """Embedding model. A text's vector must not depend on other texts of the call: a replay may have other batches."""

    @property
    def name(self) -> str:
        """Return the model's name, which is stored with the vectors: vectors of different models are never mixed."""

    @property
    def dimension(self) -> int:
        """Return the number of floats per vector."""

    @property
    def kind(self) -> Kind:
        """Return the kind of information in the vectors, which selects the ranking weights."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Embed texts as (len(texts), dimension) float32, L2-normalised rows. Raise EmbedderError."""


@runtime_checkable
class TokenEmbedder(Protocol):
    """Optional interface of an embedder: text vectors and token vectors from one run of the model."""

    def embed_tokens(self, texts: Sequence[str]) -> list[TextVectors]:
        """Return each text's vectors; `vector` equals the row of `embed`. Raise EmbedderError."""


@runtime_checkable
class QuestionEmbedder(Protocol):
    """Optional interface of an embedder: separate encoding of questions."""

    def embed_question(self, text: str) -> TextVectors:
        """Return the question's vectors, for comparison with text vectors. Raise EmbedderError."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counter of a text's tokens. An embedder with a tokenizer may implement it."""

    @property
    def counted_by(self) -> str:
        """Return the name of the tokenizer for responses."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of the whole text, without special tokens; 0 for an empty text only."""


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> list[TextVectors]:
    """Return each text's vectors, without token vectors where the model has none. Raise EmbedderError."""
    if not texts:
        return []
    if isinstance(embedder, TokenEmbedder):
        return embedder.embed_tokens(texts)
    return [TextVectors(row, NO_FLOATS) for row in embedder.embed(texts)]


class Estimate:
    """Estimates one token per four characters, rounded up, and one per Chinese, Japanese or Korean character."""

    counted_by = "estimate"

    def count_tokens(self, text: str) -> int:
        cjk = len(_CJK.findall(text))
        return cjk + -(-(len(text) - cjk) // CHARACTERS_PER_TOKEN)


def token_counter(exact: TokenCounter | None, embedder: Embedder) -> TokenCounter:
    """Return the most exact counter: the exact encoding, else the embedder's tokenizer, else an estimate."""
    if exact is not None:
        return exact
    return embedder if isinstance(embedder, TokenCounter) else Estimate()
