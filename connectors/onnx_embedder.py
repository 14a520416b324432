"""Embedders in ONNX: one run gives a text's vector and its token vectors."""

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recallflow.connectors.onnx_folder import POOLINGS, Folder, Pooling, digest
from recallflow.connectors.token_counters import ModelTokenCounter
from recallflow.embedder import Kind, Matrix, TextVectors
from recallflow.errors import EmbedderError

T = TypeVar("T")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
# (dimension, token dimensions): principal directions of MiniLM's word vectors (benchmarks/token_directions.py). Those
# of other models are computed at their first text.
DIRECTIONS = Path(__file__).with_name("minilm_tokens.npy")
TOKEN_DIMENSIONS = 128
WORDS = 512  # that directions are found from
_SHORTEST = 3
_PROBE = "How long did the flight take?"
_AGREES = 1e-3  # of each number
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_WORD_MARKS = "▁Ġ#"  # what tokenizers write for the beginning, or the inside, of a word


class OnnxEmbedder(ModelTokenCounter):
    """Embedder of an ONNX model.

    Token vectors come from the last layer before pooling, without punctuation, reduced to 128 dimensions, with equal
    weights. A model that returns a text vector only has no token vectors.

    Each run has one text: padding to a neighbour's length would change a vector's last bits with its batch, and on two
    cores a batch is no faster.
    """

    kind: Kind = "contextual"

    def __init__(
        self, name: str, session: Any, tokenizer: Any, pooling: Pooling = "mean", prompts: tuple[str, str] = ("", "")
    ) -> None:
        """`prompts` are the prefixes of a question and of a passage. Raise EmbedderError."""
        self.name = name
        self._session, self._tokenizer, self._pooling = session, tokenizer, pooling
        self._before_questions, self._before_texts = prompts
        self._inputs = {given.name for given in session.get_inputs()}
        if unknown := sorted(self._inputs - _INPUTS):
            raise EmbedderError(f"{name} wants {', '.join(unknown)} beside tokens: give the export of a text model")
        ranks = {output.name: len(output.shape) for output in session.get_outputs()}
        of_tokens = next((output for output, rank in ranks.items() if rank == 3), None)
        of_text = next((output for output, rank in ranks.items() if rank == 2), None)
        self._pooled_by_model = of_tokens is None or (pooling == "model" and of_text is not None)
        if of_tokens is None and of_text is None:
            raise EmbedderError(f"{name} gives no vectors: give the ONNX export of an embedding model")
        self._outputs = [output for output in (of_tokens, of_text if self._pooled_by_model else None) if output]
        self._has_tokens = of_tokens is not None
        self.dimension = len(self.embed(["a"])[0])

    def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return np.stack([self._run(self._before_texts, text)[0] for text in texts])

    def embed_tokens(self, texts: Sequence[str]) -> list[TextVectors]:
        return [self._read(self._before_texts, text) for text in texts]

    def embed_question(self, text: str) -> TextVectors:
        return self._read(self._before_questions, text)

    def _read(self, prompt: str, text: str) -> TextVectors:
        vector, hidden, tokens, own = self._run(prompt, text)
        kept = hidden[self._meaningful[tokens] & own]
        return TextVectors(vector, unit(unit(kept) @ self._directions) if self._has_tokens else hidden)

    def hidden(self, text: str) -> Matrix:
        """Return (tokens, dimension) unit vectors of the text's own tokens, at full dimension."""
        _, hidden, _, own = self._run("", text)
        return unit(hidden[own])

    def vocabulary(self) -> list[str]:
        """Return the model's tokens in the tokenizer's spelling."""
        return [*self._tokenizer.get_vocab()]

    def _run(self, prompt: str, text: str) -> tuple[Matrix, Matrix, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the text's vector, the model's last layer (tokens, dimension), the token ids, and a mask of the
        text's own tokens."""
        encoded = self._tokenizer.encode(prompt + text)
        tokens = np.array(encoded.ids, np.int64)
        own = np.array([end > len(prompt) for _, end in encoded.offsets], np.bool_)
        given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        feed = {name: rows[np.newaxis] for name, rows in given.items() if name in self._inputs}
        found = [np.asarray(output[0], np.float32) for output in self._session.run(self._outputs, feed)]
        hidden = found[0] if self._has_tokens else np.zeros((0, 0), np.float32)
        whole = found[-1] if self._pooled_by_model else pooled(hidden, self._pooling)
        return unit(whole), hidden, tokens, own

    @cached_property
    def _directions(self) -> Matrix:
        if self.name == MINILM.partition("/")[2]:
            kept: Matrix = np.load(DIRECTIONS).astype(np.float32)
            return kept
        if self.dimension <= TOKEN_DIMENSIONS:
            return np.eye(self.dimension, dtype=np.float32)
        words = known_words(self)
        rows = np.concatenate([self.hidden(word) for word in words[:: max(len(words) // WORDS, 1)]])
        return directions(rows, TOKEN_DIMENSIONS)[0]

    @cached_property
    def _meaningful(self) -> npt.NDArray[np.bool_]:
        """Return a mask by token id: neither punctuation nor special tokens."""
        vocabulary = self._tokenizer.get_vocab()
        marks = self._tokenizer.get_added_tokens_decoder()
        kept = np.zeros(max(vocabulary.values()) + 1, np.bool_)
        for token, number in vocabulary.items():
            kept[number] = number not in marks and any(map(str.isalnum, token))
        return kept


def load_minilm(folder: Path | None) -> OnnxEmbedder:
    """Return all-MiniLM-L6-v2 from a folder or the model hub. Raise EmbedderError."""
    if folder is not None and not (folder / "model.onnx").is_file():
        raise EmbedderError(f"{folder} has no model.onnx: give the folder of an ONNX export of {MINILM}")
    found = _fastembed(MINILM, folder).model
    return OnnxEmbedder(MINILM.partition("/")[2], found.model, found.tokenizer)


def load_named(name: str, folder: Path | None) -> OnnxEmbedder:
    """Return a model of fastembed from a folder or the model hub. Raise EmbedderError."""
    whole = _fastembed(name, folder)
    found = whole.model
    files = Path(found._model_dir)
    identity = digest([files / found.model_description.model_file, files / "tokenizer.json"])
    theirs = next(iter(whole.embed([_PROBE])))
    # fastembed's classes hide the pooling, so it is the one that reproduces fastembed's vector.
    for pooling in POOLINGS:
        ours = OnnxEmbedder(f"{name.partition('/')[2]}-{identity}", found.model, found.tokenizer, pooling)
        if np.allclose(ours.embed([_PROBE])[0], unit(np.asarray(theirs, np.float32)), atol=_AGREES):
            return ours
    raise EmbedderError(f"{name} makes a text's vector in a way that recallflow does not know: give another model")


def load_folder(path: Path) -> OnnxEmbedder:
    """Return the model in a folder of sentence-transformers. Raise EmbedderError."""
    folder = Folder.read(path)
    return _loading(str(path), lambda: OnnxEmbedder(folder.name, *folder.load(), folder.pooling, folder.prompts))


def _fastembed(name: str, folder: Path | None) -> Any:
    """Return fastembed's model; its `model` has a session, `model`, and a tokenizer."""
    try:
        from fastembed import TextEmbedding
    except ImportError:
        raise EmbedderError(f"the {name} embedder needs fastembed: pip install 'recallflow[minilm]'") from None
    origin = folder or "the model hub (--model-path takes a local folder)"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fastembed warns of a pooling change that this model's users wanted
        path = str(folder) if folder else None
        return _loading(f"{name} from {origin}", lambda: TextEmbedding(name, specific_model_path=path))


def _loading(origin: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except EmbedderError:
        raise
    except Exception as error:  # onnxruntime, the tokenizers and the hub client raise undocumented errors
        raise EmbedderError(f"cannot load {origin}: {error}") from error


def pooled(hidden: Matrix, pooling: Pooling) -> Matrix:
    """Pool the token vectors of a text into one vector."""
    found: Matrix
    match pooling:
        case "cls":
            found = hidden[0]
        case "last":
            found = hidden[-1]
        case "max":
            found = hidden.max(axis=0)
        case _:
            found = hidden.mean(axis=0)
    return found


def unit(rows: Matrix) -> Matrix:
    """Return rows, or one, L2-normalised."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    scaled: Matrix = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return scaled


# ---------------------------------------------------------------------- directions of token vectors


def known_words(embedder: OnnxEmbedder) -> list[str]:
    """Return the words of the model's vocabulary in alphabetical order."""
    plain = {token.strip(_WORD_MARKS) for token in embedder.vocabulary()}
    return sorted(word for word in plain if word.isalpha() and len(word) >= _SHORTEST)


def directions(rows: Matrix, count: int) -> tuple[Matrix, float]:
    """Return (dimension, count) principal directions of unit rows about the origin, and their share of the rows'
    squared length."""
    _, spread, turned = np.linalg.svd(rows.astype(np.float64), full_matrices=False)
    # A direction and its opposite are equal: the larger half points up.
    signs = np.sign(turned[np.arange(len(turned)), np.abs(turned).argmax(axis=1)])
    kept = (turned * signs[:, None])[:count].T.astype(np.float32)
    return kept, float((spread[:count] ** 2).sum() / (spread**2).sum())
