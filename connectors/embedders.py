"""Embedding models by name."""

from pathlib import Path

from recallflow.connectors.hash_embedder import HashEmbedder
from recallflow.connectors.meaning_embedder import MeaningEmbedder
from recallflow.connectors.onnx_embedder import load_folder, load_minilm, load_named
from recallflow.connectors.remote_embedder import RemoteModel
from recallflow.connectors.static_embedder import StaticEmbedder
from recallflow.embedder import Embedder
from recallflow.errors import EmbedderError
from recallflow.llm import EmbeddingService

REMOTE = "openai"  # any service that speaks its protocol
NAMES = ("meaning", "hash", "static", "minilm", "onnx", REMOTE)


def check_embedder(name: str, model_path: Path | None = None) -> None:
    """Raise EmbedderError for an unknown name or a missing folder, without loading the model."""
    if name not in NAMES and "/" not in name:
        known = ", ".join(NAMES)
        raise EmbedderError(
            f"no embedder is called {name!r}: give one of {known}, or a model of fastembed's as ORG/NAME"
        )
    if name in ("hash", "meaning") and model_path is not None:
        raise EmbedderError(f"the {name} embedder takes no model: leave --model-path out, or give another --embedder")
    if name == "onnx" and model_path is None:
        raise EmbedderError("the onnx embedder needs --model-path: the folder of a model with model.onnx in it")
    if model_path is not None and not model_path.is_dir():
        raise EmbedderError(f"--model-path: {model_path} is no folder; give that of the model")


def load_remote(service: EmbeddingService, model_path: Path | None = None) -> RemoteModel:
    """Return the embedder whose vectors come from a service. Raise EmbedderError.

    Args:
        model_path: folder with an ONNX copy of the model, for questions that the service does not answer.
    """
    check_embedder(REMOTE, model_path)
    return RemoteModel(service, None if model_path is None else load_folder(model_path))


def load_embedder(name: str, model_path: Path | None = None) -> Embedder:
    """Return the embedder of this name in this process. Raise EmbedderError with the remedy."""
    check_embedder(name, model_path)
    if name == REMOTE:
        raise EmbedderError("the openai embedder asks a service, and is not loaded")
    if name == "meaning":
        return MeaningEmbedder()
    if name == "hash":
        return HashEmbedder()
    if name == "static":
        return StaticEmbedder(model_path)
    if name == "minilm":
        return load_minilm(model_path)
    if name == "onnx" and model_path is not None:
        return load_folder(model_path)
    return load_named(name, model_path)
