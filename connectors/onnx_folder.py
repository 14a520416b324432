"""Folder with an ONNX model in the layout of sentence-transformers. These files are read:

model.onnx, or onnx/model.onnx      the network
tokenizer.json                      its tokens
1_Pooling/config.json               pooling of token vectors (default: the model's own, or their mean)
sentence_bert_config.json           max_seq_length: token limit (default: 512)
config_sentence_transformers.json   prompts: prefixes of a question ("query") and of a text ("passage",
                                    "document")
modules.json                        layers: only transformer, pooling and normalising are accepted
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from recallflow.errors import EmbedderError

Pooling = Literal["mean", "cls", "max", "last", "model"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

_CONFIGURED: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_LAYERS = ("Transformer", "Pooling", "Normalize")
_TOKENS_MAX = 512
_CONFIGS = (
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modules.json",
)


@dataclass(frozen=True, slots=True)
class Folder:
    """Model folder. `name` contains a digest of the files, so that vectors of different models are never mixed."""

    name: str
    network: Path
    tokenizer: Path
    pooling: Pooling
    tokens_max: int
    prompts: tuple[str, str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a folder. Raise EmbedderError for missing or unsupported parts."""
        network = next((file for file in (path / "model.onnx", path / "onnx" / "model.onnx") if file.is_file()), None)
        tokenizer = path / "tokenizer.json"
        if network is None:
            raise EmbedderError(f"{path} has no model.onnx: give the folder of a model's ONNX export")
        if not tokenizer.is_file():
            raise EmbedderError(f"{path} has no tokenizer.json: give the folder of a model's ONNX export")
        pooling, read, said, modules = (_config(path / name) for name in _CONFIGS)
        layers = [str(layer.get("type", "")).rpartition(".")[2] for layer in modules or ()]
        if beyond := [layer for layer in layers if layer not in _LAYERS]:
            raise EmbedderError(f"{path} has a layer {beyond[0]} behind its model.onnx: export the model as a whole")
        chosen = [name for name, given in (pooling or {}).items() if name.startswith("pooling_mode") and given is True]
        if len(chosen) > 1 or any(name not in _CONFIGURED for name in chosen):
            asked, known = " and ".join(chosen), ", ".join(_CONFIGURED)
            raise EmbedderError(f"{path / _CONFIGS[0]} asks for {asked}: recallflow pools by one of {known}")
        prompts = (said or {}).get("prompts") or {}
        files = [network, *sorted(network.parent.glob("*.onnx_data")), tokenizer, *(path / name for name in _CONFIGS)]
        return cls(
            name=f"{path.resolve().name}-{digest(files)}",
            network=network,
            tokenizer=tokenizer,
            pooling=_CONFIGURED[chosen[0]] if chosen else "model",
            tokens_max=(read or {}).get("max_seq_length") or _TOKENS_MAX,
            prompts=(prompts.get("query", ""), prompts.get("passage", "") or prompts.get("document", "")),
        )

    def load(self) -> tuple[Any, Any]:
        """Return the session and the tokenizer. Raise EmbedderError where their libraries are not installed."""
        try:
            from onnxruntime import InferenceSession
            from tokenizers import Tokenizer
        except ImportError:
            raise EmbedderError("the onnx embedder needs onnxruntime: pip install 'recallflow[minilm]'") from None
        tokenizer = Tokenizer.from_file(str(self.tokenizer))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.tokens_max)
        return InferenceSession(str(self.network), providers=["CPUExecutionProvider"]), tokenizer


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
