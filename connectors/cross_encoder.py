"""A cross-encoder in ONNX through fastembed: one run of the model for each question with its texts."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recallflow.errors import RerankerError

BATCH = 8  # texts a run: each is padded to the longest of them


class CrossEncoder:
    """Runs on a thread of its own, one question after the other: the model takes all the processors it is given."""

    def __init__(self, name: str, path: Path | None) -> None:
        """`path`: a folder with an ONNX export and its tokenizer; without one, fastembed knows where the model is."""
        self.name = name
        self._model = _load(name, path)
        self._thread = ThreadPoolExecutor(1, "recallflow-rerank")

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, question, texts)

    def _score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        return [*self._model.rerank(question, texts, batch_size=BATCH)]


def _load(name: str, path: Path | None) -> Any:
    try:
        from fastembed.rerank.cross_encoder import TextCrossEncoder
    except ImportError:
        raise RerankerError("a local reranker needs fastembed: pip install 'recallflow[rerank]'") from None
    if path is not None:
        _register(TextCrossEncoder, name, path)
    try:
        return TextCrossEncoder(name, specific_model_path=str(path) if path else None)
    except Exception as error:  # onnxruntime, tokenizers and the hub client raise what they like
        origin = path or "the model hub (--reranker-path takes a local folder)"
        raise RerankerError(f"cannot load the reranker {name} from {origin}: {error}") from error


def _register(library: Any, name: str, path: Path) -> None:
    """Tells fastembed of a model that it may not know, under the file that the folder has."""
    from fastembed.common.model_description import ModelSource

    file = next((file for file in ("model.onnx", "onnx/model.onnx") if (path / file).is_file()), None)
    if file is None:
        raise RerankerError(f"{path} has no model.onnx: give the folder of an ONNX export of {name}")
    known = {model["model"].lower(): model["model_file"] for model in library.list_supported_models()}
    if name.lower() not in known:
        library.add_custom_model(name, ModelSource(hf=name), file)
    elif not (path / known[name.lower()]).is_file():
        raise RerankerError(f"{path} has no {known[name.lower()]}, which is what {name} is read from")
