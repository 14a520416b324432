"""Static word vectors (model2vec): a table of tokens; a text is the mean of its tokens."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.connectors.token_counters import ModelTokenCounter, unlimited
from recallflow.embedder import Kind, Matrix, TextVectors
from recallflow.errors import EmbedderError
from recallflow.language import FUNCTION_WORDS

_MODEL = "minishlab/potion-base-8M"
_TOKENS_MAX = 512
_TOKEN_DIMENSIONS = 128  # leading columns of the table, which is sorted by importance


class StaticEmbedder(ModelTokenCounter):
    """Embedder of a model2vec model: thousands of texts a second, and meaning beyond spelling.

    Token vectors leave out function words and punctuation, and have the weights of the table. The name contains a
    digest of the table, so that vectors of two models are never mixed.
    """

    kind: Kind = "static"

    def __init__(self, model_path: Path | None) -> None:
        if model_path is not None and not (model_path / "model.safetensors").is_file():
            raise EmbedderError(f"{model_path} has no model.safetensors: give the folder of a model2vec model")
        try:
            from model2vec import StaticModel
        except ImportError:
            raise EmbedderError("the static embedder needs model2vec: pip install 'recallflow[static]'") from None
        try:
            model = StaticModel.from_pretrained(model_path or _MODEL, force_download=False)
        except Exception as error:  # the hub client and the tokenizers raise undocumented errors
            origin = model_path or f"{_MODEL} from the model hub (--model-path takes a local folder)"
            raise EmbedderError(f"cannot load {origin}: {error}") from error
        self._tokenizer: Any = unlimited(model.tokenizer)
        self._tokenizer.enable_truncation(_TOKENS_MAX)
        self._table = _table(model)
        self._meaningful = _meaningful(self._tokenizer)
        self._unknown = model.unk_token_id
        self.dimension = self._table.shape[1]
        self.name = f"static-{self.dimension}-{_digest(self._table, self._tokenizer)}"

    def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return np.stack([_mean(self._rows(tokens)) for tokens in self._tokens(texts)])

    def embed_tokens(self, texts: Sequence[str]) -> list[TextVectors]:
        return [self._read(tokens) for tokens in self._tokens(texts)]

    def _read(self, tokens: npt.NDArray[np.int64]) -> TextVectors:
        rows = self._rows(tokens)
        return TextVectors(_mean(rows), rows[self._meaningful[tokens], :_TOKEN_DIMENSIONS])

    def _rows(self, tokens: npt.NDArray[np.int64]) -> Matrix:
        return self._table[tokens].astype(np.float32)

    def _tokens(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Return the token ids of each text, without unknown tokens."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([t for t in one.ids if t != self._unknown], np.int64) for one in found]


def _table(model: Any) -> npt.NDArray[np.float16]:
    """Return (tokens, dimension): each token's vector, weighted. Quantised models keep vectors and weights apart."""
    vectors = np.asarray(model.embedding)
    if (places := getattr(model, "token_mapping", None)) is not None:
        vectors = vectors[np.asarray(places)]
    if (weights := getattr(model, "weights", None)) is not None:
        vectors = vectors * np.asarray(weights)[:, None]
    return vectors.astype(np.float16)


def _meaningful(tokenizer: Any) -> npt.NDArray[np.bool_]:
    """Return a mask by token id: neither punctuation nor a function word."""
    kept = np.zeros(tokenizer.get_vocab_size(), np.bool_)
    for token, number in tokenizer.get_vocab().items():
        kept[number] = token not in FUNCTION_WORDS and any(map(str.isalnum, token))
    return kept


def _digest(table: npt.NDArray[np.float16], tokenizer: Any) -> str:
    digest = hashlib.blake2b(table.tobytes(), digest_size=4)
    digest.update("\n".join(token for token, _ in sorted(tokenizer.get_vocab().items())).encode())
    return digest.hexdigest()


def _mean(rows: Matrix) -> Matrix:
    """Return the L2-normalised mean of rows; zeros for no rows."""
    total: Matrix = rows.sum(axis=0)
    norm = np.linalg.norm(total)
    return total / norm if norm > 0 else total
