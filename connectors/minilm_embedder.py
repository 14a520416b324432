"""all-MiniLM-L6-v2 in ONNX through fastembed: one run of the model gives a text's vector and those of its tokens."""

import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Kind, Matrix, TextVectors
from recallflow.errors import EmbedderError

_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# (dimension, token dimensions): the directions in which the vectors of words differ most
# (benchmarks/token_directions.py).
DIRECTIONS = Path(__file__).with_name("minilm_tokens.npy")


class MiniLMEmbedder:
    """Mean pooling, L2-normalised. Token vectors are of what stands before the pooling, without punctuation, cut to 128
    directions; each weighs the same.

    One text a run: padding to a neighbour's length would change a vector's last bits with the batch it is in, and on
    two cores a batch is no faster.
    """

    name = "all-MiniLM-L6-v2"
    dimension = 384
    kind: Kind = "contextual"

    def __init__(self, model_path: Path | None) -> None:
        if model_path is not None and not (model_path / "model.onnx").is_file():
            raise EmbedderError(f"{model_path} has no model.onnx: give the folder of an ONNX export of {_MODEL}")
        try:
            from fastembed import TextEmbedding
        except ImportError:
            raise EmbedderError("the minilm embedder needs fastembed: pip install 'recallflow[minilm]'") from None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # fastembed warns of a pooling change that this model's users wanted
                found = TextEmbedding(_MODEL, specific_model_path=str(model_path) if model_path else None)
        except Exception as error:  # onnxruntime and the hub client raise what they like
            origin = model_path or "the model hub (--model-path takes a local folder)"
            raise EmbedderError(f"cannot load {_MODEL} from {origin}: {error}") from error
        self._model: Any = found.model

    def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return np.stack([_pooled(self._run(text)[0]) for text in texts])

    def embed_tokens(self, texts: Sequence[str]) -> list[TextVectors]:
        return [self._read(text) for text in texts]

    def _read(self, text: str) -> TextVectors:
        hidden, tokens = self._run(text)
        return TextVectors(_pooled(hidden), _unit(_unit(hidden[self._meaningful[tokens]]) @ self._directions))

    def hidden(self, text: str) -> Matrix:
        """(tokens, dimension) unit vectors of the text's own tokens, before they are cut."""
        hidden, _ = self._run(text)
        return _unit(hidden[1:-1])

    def vocabulary(self) -> list[str]:
        """The model's tokens, as its tokenizer writes them."""
        return [*self._model.tokenizer.get_vocab()]

    @cached_property
    def _directions(self) -> Matrix:
        directions: Matrix = np.load(DIRECTIONS).astype(np.float32)
        return directions

    def _run(self, text: str) -> tuple[Matrix, npt.NDArray[np.int64]]:
        """(tokens, dimension) of the model's last layer, and the tokens' numbers."""
        run = self._model.onnx_embed([text])
        return np.asarray(run.model_output[0], np.float32), np.asarray(run.input_ids[0])

    @cached_property
    def _meaningful(self) -> npt.NDArray[np.bool_]:
        """By token number: neither punctuation nor one of the model's own marks."""
        tokenizer = self._model.tokenizer
        marks = tokenizer.get_added_tokens_decoder()
        kept = np.zeros(tokenizer.get_vocab_size(), np.bool_)
        for token, number in tokenizer.get_vocab().items():
            kept[number] = number not in marks and any(map(str.isalnum, token))
        return kept

    @property
    def counted_by(self) -> str:
        return self.name

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _tokenizer(self) -> Any:
        """The model's tokenizer without its limit: what is counted may be longer than what is embedded."""
        own = self._model.tokenizer
        whole = type(own).from_str(own.to_str())
        whole.no_truncation()
        whole.no_padding()
        return whole


def _pooled(hidden: Matrix) -> Matrix:
    mean: Matrix = hidden.mean(axis=0, keepdims=True)
    pooled: Matrix = _unit(mean)[0]
    return pooled


def _unit(rows: Matrix) -> Matrix:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: Matrix = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return unit
