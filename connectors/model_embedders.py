"""Embedders with model files (ONNX exports and model2vec tables), and token counters."""

import hashlib
import importlib
import json
import os
import tempfile
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Kind, Matrix, TextVectors, TokenCounter
from recallflow.errors import EmbedderError
from recallflow.language.tables import ENGLISH

_ENCODINGS_URL = "https://openaipublic.blob.core.windows.net/encodings"
# SHA-256 of the file of each encoding, as in tiktoken's registry; the newest encoding first.
_SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}


def _is_cached(encoding: str) -> bool:
    """Return whether tiktoken's cache has a valid file of an encoding: it would download a missing or broken one."""
    default = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    name = hashlib.sha1(f"{_ENCODINGS_URL}/{encoding}.tiktoken".encode()).hexdigest()  # noqa: S324 a file's name
    try:  # an empty setting turns the cache off
        return folder != "" and hashlib.sha256((Path(folder) / name).read_bytes()).hexdigest() == _SHA256[encoding]
    except OSError:
        return False


class TiktokenCounter:
    """Token counter of a tiktoken encoding. Special tokens in a text count as text."""

    def __init__(self, encoding: Any) -> None:
        self.counted_by = f"tiktoken {encoding.name}"
        self._encoding = encoding

    def count_tokens(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))


class ModelTokenCounter:
    """Token counter of an embedder that has a tokenizer of Hugging Face's `tokenizers`."""

    name: str
    _tokenizer: Any

    @property
    def counted_by(self) -> str:
        return self.name

    def count_tokens(self, text: str) -> int:
        return len(self._unlimited.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _unlimited(self) -> Any:
        """Return the tokenizer without its limit, because a counted text may be longer than an embedded one."""
        return unlimited(self._tokenizer)


def unlimited(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that neither truncates nor pads."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def load_tiktoken() -> TokenCounter | None:
    """Return a counter of the newest encoding in tiktoken's cache, or None. Nothing is downloaded."""
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError:
        return None
    name = next(filter(_is_cached, _SHA256), None)
    return None if name is None else TiktokenCounter(tiktoken.get_encoding(name))


Pooling = Literal["mean", "cls", "max", "last", "model"]
_POOLING_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_LAYERS = ("Transformer", "Pooling", "Normalize")
_TOKENS_MAX = 512  # of a text, if the model does not say
_CONFIGS = ("1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json", "modules.json")


def _config(path: Path) -> Any:
    """Return the JSON of a file; None for a missing file. Raise EmbedderError."""
    try:
        return json.loads(path.read_text("utf-8")) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise EmbedderError(f"cannot read {path}: {error}") from error


def digest(files: Iterable[Path]) -> str:
    """Return a digest of the contents of the existing files."""
    found = hashlib.blake2b(digest_size=4)
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        else:
            found.update(b"-")
    return found.hexdigest()


MINILM = "sentence-transformers/all-MiniLM-L6-v2"
# (dimension, token dimensions): principal directions of MiniLM's word vectors, by tools/token_directions.py.
DIRECTIONS = Path(__file__).with_name("minilm_tokens.npy")
TOKEN_DIMENSIONS = 128
WORDS = 512  # sample size for the directions of a model
_MIN_WORD_CHARACTERS = 3
_PROBE = "How long did the flight take?"
_TOLERANCE = 1e-3  # of each number of the vector of `_PROBE`
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_WORD_MARKS = "▁Ġ#"  # with which tokenizers mark the beginning or the inside of a word


class OnnxEmbedder(ModelTokenCounter):
    """Embedder of an ONNX model.

    Token vectors come from the last layer before pooling. They are reduced to 128 dimensions; punctuation is left out.
    A model that returns only a text vector has no token vectors.

    Texts are not batched: padding would change the last bits of a vector, and on two cores a batch is no faster."""

    kind: Kind = "contextual"

    def __init__(
        self, name: str, session: Any, tokenizer: Any, pooling: Pooling = "mean", prompts: tuple[str, str] = ("", "")
    ) -> None:
        """`prompts` are the prefixes of a question and of a passage. Raise EmbedderError."""
        self.name = name
        self._session, self._tokenizer, self._pooling = session, tokenizer, pooling
        self._before_questions, self._before_texts = prompts
        self._inputs = {one.name for one in session.get_inputs()}
        if unknown := sorted(self._inputs - _INPUTS):
            raise EmbedderError(f"{name} needs the inputs {', '.join(unknown)}: give the export of a text model")
        ranks = {output.name: len(output.shape) for output in session.get_outputs()}
        of_tokens = next((output for output, rank in ranks.items() if rank == 3), None)
        of_text = next((output for output, rank in ranks.items() if rank == 2), None)
        self._pooled_by_model = of_tokens is None or (pooling == "model" and of_text is not None)
        if of_tokens is None and of_text is None:
            raise EmbedderError(f"{name} returns no vectors: give the ONNX export of an embedding model")
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

    def known_words(self) -> list[str]:
        """Return the words of the model's vocabulary in alphabetical order."""
        plain = {token.strip(_WORD_MARKS) for token in self._tokenizer.get_vocab()}
        return sorted(word for word in plain if word.isalpha() and len(word) >= _MIN_WORD_CHARACTERS)

    def _run(self, prompt: str, text: str) -> tuple[Matrix, Matrix, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return vector, last layer (tokens, dimension), token ids, and a mask of the text's own tokens."""
        encoded = self._tokenizer.encode(prompt + text)
        tokens = np.array(encoded.ids, np.int64)
        own = np.array([end > len(prompt) for _, end in encoded.offsets], np.bool_)
        rows = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        feed = {name: row[np.newaxis] for name, row in rows.items() if name in self._inputs}
        found = [np.asarray(output[0], np.float32) for output in self._session.run(self._outputs, feed)]
        hidden = found[0] if self._has_tokens else np.zeros((0, 0), np.float32)
        whole = found[-1] if self._pooled_by_model else pooled(hidden, self._pooling)
        return unit(whole), hidden, tokens, own

    @cached_property
    def _directions(self) -> Matrix:
        if self.name == MINILM.partition("/")[2]:
            return np.asarray(np.load(DIRECTIONS), np.float32)
        if self.dimension <= TOKEN_DIMENSIONS:
            return np.eye(self.dimension, dtype=np.float32)
        words = self.known_words()
        rows = np.concatenate([self.hidden(word) for word in words[:: max(len(words) // WORDS, 1)]])
        return directions(rows, TOKEN_DIMENSIONS)[0]

    @cached_property
    def _meaningful(self) -> npt.NDArray[np.bool_]:
        special_tokens = self._tokenizer.get_added_tokens_decoder().values()
        return _token_mask(self._tokenizer, {token.content for token in special_tokens})


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
    expected = unit(np.asarray(next(iter(whole.embed([_PROBE]))), np.float32))
    # fastembed does not tell the pooling of a model: take the one that reproduces the vector of `_PROBE`.
    for pooling in get_args(Pooling):
        embedder = OnnxEmbedder(f"{name.partition('/')[2]}-{identity}", found.model, found.tokenizer, pooling)
        if np.allclose(embedder.embed([_PROBE])[0], expected, atol=_TOLERANCE):
            return embedder
    raise EmbedderError(f"recallflow does not support the pooling of {name}: give another model")


def load_folder(path: Path) -> OnnxEmbedder:
    """Return the ONNX model in a folder in the layout of sentence-transformers. Its name contains a digest of the
    files, so that vectors of different models are never mixed. These files are read:

    model.onnx, or onnx/model.onnx      the network
    tokenizer.json                      its tokens
    1_Pooling/config.json               pooling of token vectors (default: the model's own, or their mean)
    sentence_bert_config.json           max_seq_length: token limit (default: 512)
    config_sentence_transformers.json   prompts: prefixes of a question ("query") and of a text ("passage", "document")
    modules.json                        layers: only transformer, pooling and normalising are accepted

    Raise EmbedderError for missing or unsupported parts, and without the libraries."""
    network = next((file for file in (path / "model.onnx", path / "onnx" / "model.onnx") if file.is_file()), None)
    tokens = path / "tokenizer.json"
    if network is None or not tokens.is_file():
        missing = "model.onnx" if network is None else tokens.name
        raise EmbedderError(f"{path} has no {missing}: give the folder of a model's ONNX export")
    pooling, lengths, prompting, modules = (_config(path / name) for name in _CONFIGS)
    layers = [str(layer.get("type", "")).rpartition(".")[2] for layer in modules or ()]
    if unknown := [layer for layer in layers if layer not in _LAYERS]:
        raise EmbedderError(f"{path} has a layer {unknown[0]} outside of model.onnx: export the whole model")
    flags = [name for name, value in (pooling or {}).items() if name.startswith("pooling_mode") and value is True]
    if len(flags) > 1 or any(name not in _POOLING_FLAGS for name in flags):
        requested, supported = " and ".join(flags), ", ".join(_POOLING_FLAGS)
        raise EmbedderError(f"{path / _CONFIGS[0]} sets {requested}: recallflow supports one of {supported}")
    prompts = (prompting or {}).get("prompts") or {}
    of_question, of_text = prompts.get("query", ""), prompts.get("passage", "") or prompts.get("document", "")
    files = [network, *sorted(network.parent.glob("*.onnx_data")), tokens, *(path / name for name in _CONFIGS)]
    try:
        from onnxruntime import InferenceSession
        from tokenizers import Tokenizer
    except ImportError:
        raise EmbedderError("the onnx embedder needs onnxruntime: pip install 'recallflow[minilm]'") from None
    with _loading(str(path)):
        tokenizer = Tokenizer.from_file(str(tokens))
        tokenizer.no_padding()
        tokenizer.enable_truncation((lengths or {}).get("max_seq_length") or _TOKENS_MAX)
        session = InferenceSession(str(network), providers=["CPUExecutionProvider"])
        name, mode = f"{path.resolve().name}-{digest(files)}", _POOLING_FLAGS[flags[0]] if flags else "model"
        return OnnxEmbedder(name, session, tokenizer, mode, (of_question, of_text))


def _fastembed(name: str, folder: Path | None) -> Any:
    """Return fastembed's model. Its `model` has the attributes `model`, the ONNX session, and `tokenizer`."""
    try:
        from fastembed import TextEmbedding
    except ImportError:
        raise EmbedderError(f"the {name} embedder needs fastembed: pip install 'recallflow[minilm]'") from None
    origin = folder or "the model hub (--model-path takes a local folder)"
    with warnings.catch_warnings(), _loading(f"{name} from {origin}"):
        warnings.simplefilter("ignore")  # fastembed warns that an earlier version pooled differently
        return TextEmbedding(name, specific_model_path=str(folder) if folder else None)


@contextmanager
def _loading(origin: str) -> Iterator[None]:
    """Convert errors of model libraries into EmbedderError."""
    try:
        yield
    except EmbedderError:
        raise
    except Exception as error:  # onnxruntime, the tokenizers and the hub client raise undocumented errors
        raise EmbedderError(f"cannot load {origin}: {error}") from error


def pooled(hidden: Matrix, pooling: Pooling) -> Matrix:
    if pooling in ("cls", "last"):
        return np.asarray(hidden[0 if pooling == "cls" else -1])
    return np.asarray(hidden.max(axis=0) if pooling == "max" else hidden.mean(axis=0))


def unit(rows: Matrix) -> Matrix:
    """Return one or several rows, L2-normalised."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    scaled: Matrix = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return scaled


def directions(rows: Matrix, count: int) -> tuple[Matrix, float]:
    """Return (dimension, count) principal directions of unit rows, not centred, and their share of all squares' sum."""
    _, singular, vectors = np.linalg.svd(rows.astype(np.float64), full_matrices=False)
    # A direction and its opposite are equally good: choose the one whose component of largest magnitude is positive.
    signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
    kept = (vectors * signs[:, None])[:count].T.astype(np.float32)
    return kept, float((singular[:count] ** 2).sum() / (singular**2).sum())


_MODEL = "minishlab/potion-base-8M"


class StaticEmbedder(ModelTokenCounter):
    """Embedder of a model2vec model. It is fast (thousands of texts a second), and reflects meaning, not only spelling.

    Token vectors are the leading columns of the table, which are the most important ones; function words and
    punctuation are left out. The name contains a digest of the table, so that vectors of two models are never mixed."""

    kind: Kind = "static"

    def __init__(self, model_path: Path | None) -> None:
        if model_path is not None and not (model_path / "model.safetensors").is_file():
            raise EmbedderError(f"{model_path} has no model.safetensors: give the folder of a model2vec model")
        try:
            from model2vec import StaticModel
        except ImportError:
            raise EmbedderError("the static embedder needs model2vec: pip install 'recallflow[static]'") from None
        origin = str(model_path or f"{_MODEL} from the model hub (--model-path takes a local folder)")
        with _loading(origin):
            model = StaticModel.from_pretrained(model_path or _MODEL, force_download=False)
        self._tokenizer: Any = unlimited(model.tokenizer)
        self._tokenizer.enable_truncation(_TOKENS_MAX)
        self._table = _table(model)
        self._meaningful = _token_mask(self._tokenizer, ENGLISH.function_words)
        self._unknown = model.unk_token_id
        self.dimension = self._table.shape[1]
        digest = hashlib.blake2b(self._table.tobytes(), digest_size=4)
        digest.update("\n".join(sorted(self._tokenizer.get_vocab())).encode())
        self.name = f"static-{self.dimension}-{digest.hexdigest()}"

    def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return np.stack([_mean(self._rows(tokens)) for tokens in self._tokens(texts)])

    def embed_tokens(self, texts: Sequence[str]) -> list[TextVectors]:
        return [self._read(tokens) for tokens in self._tokens(texts)]

    def _read(self, tokens: npt.NDArray[np.int64]) -> TextVectors:
        rows = self._rows(tokens)
        return TextVectors(_mean(rows), rows[self._meaningful[tokens], :TOKEN_DIMENSIONS])

    def _rows(self, tokens: npt.NDArray[np.int64]) -> Matrix:
        return self._table[tokens].astype(np.float32)

    def _tokens(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Return the token ids of each text, without unknown tokens."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([t for t in one.ids if t != self._unknown], np.int64) for one in found]


def _table(model: Any) -> npt.NDArray[np.float16]:
    """Return (tokens, dimension): each token's vector, weighted. Quantised models keep vectors and weights apart."""
    vectors = np.asarray(model.embedding)
    if (mapping := getattr(model, "token_mapping", None)) is not None:
        vectors = vectors[np.asarray(mapping)]
    if (weights := getattr(model, "weights", None)) is not None:
        vectors = vectors * np.asarray(weights)[:, None]
    return vectors.astype(np.float16)


def _token_mask(tokenizer: Any, excluded: Container[str]) -> npt.NDArray[np.bool_]:
    """Return a mask by token id: neither punctuation nor an excluded token."""
    vocabulary = tokenizer.get_vocab()
    kept = np.zeros(max(vocabulary.values()) + 1, np.bool_)
    for token, number in vocabulary.items():
        kept[number] = token not in excluded and any(map(str.isalnum, token))
    return kept


def _mean(rows: Matrix) -> Matrix:
    """Return the L2-normalised mean of rows; zeros for no rows."""
    total: Matrix = rows.sum(axis=0)
    norm = np.linalg.norm(total)
    return total / norm if norm > 0 else total
