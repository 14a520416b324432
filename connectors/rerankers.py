"""Rerankers by name: an HTTP service, or a local cross-encoder."""

import asyncio
import http.client
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from recallflow.errors import RerankerError, UsageError
from recallflow.llm import Reranker

MAX_REQUESTS = 8  # at the same time
MAX_BYTES = 1024 * 1024  # size of a response
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class HttpReranker:
    """Reranking service over HTTP. `key` is sent as a bearer token."""

    def __init__(self, name: str, url: str, key: str | None, timeout_s: float) -> None:
        """Raise UsageError for an invalid URL or key. The message never shows the key."""
        self.name = name
        problem = f"the reranker's URL must begin with http:// or https:// and name a host, not {url!r}"
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:  # an invalid host or port
            raise UsageError(problem) from None
        if parts.scheme not in _CONNECTIONS or not parts.hostname:
            raise UsageError(problem)
        # An answer may show the error of a request, and that of an invalid header quotes it.
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("the reranker's key must consist of printable ASCII characters, in one line")
        self._connection, self._host = _CONNECTIONS[parts.scheme], parts.hostname
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(MAX_REQUESTS, "recallflow-rerank")

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        from recallflow.telemetry import model_call  # imported here: it loads OpenTelemetry

        with model_call("rerank", self.name):
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._request, question, texts)

    def _request(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        document = {"model": self.name, "query": question, "documents": [*texts], "top_n": len(texts)}
        # The caller has the same time limit; this one frees the thread.
        connection = self._connection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request("POST", self._path, orjson.dumps(document), self._headers)
            with connection.getresponse() as response:
                body = response.read(MAX_BYTES + 1)  # a longer body is cut, which makes it invalid JSON
        except (OSError, http.client.HTTPException) as error:
            raise RerankerError(f"the request failed: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RerankerError(f"the service answered with status {response.status} {response.reason}")
        return _scores(body, len(texts))


def _scores(body: bytes, count: int) -> list[float]:
    """Return the score of each text. Raise RerankerError if one is missing."""
    try:
        results: list[dict[str, Any]] = orjson.loads(body)["results"]
        found = {result["index"]: result["relevance_score"] for result in results}
        return [float(found[at]) for at in range(count)]
    except KeyError as error:
        raise RerankerError(f"the response for {count} texts has no {error.args[0]!r}") from None
    except (TypeError, ValueError) as error:
        raise RerankerError(f"the response is invalid: {type(error).__name__}") from None  # it may quote a memory


BATCH = 8  # texts per run of the model; they are padded to the longest one


class CrossEncoder:
    """Local cross-encoder. It has one thread, because the model itself uses all processors."""

    def __init__(self, name: str, path: Path | None) -> None:
        """`path` is a folder with an ONNX export and its tokenizer; without one, fastembed finds the model."""
        self.name = name
        self._model = _load(name, path)
        self._thread = ThreadPoolExecutor(1, "recallflow-rerank")

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        def rerank() -> Sequence[float]:
            return [*self._model.rerank(question, texts, batch_size=BATCH)]

        return await asyncio.get_running_loop().run_in_executor(self._thread, rerank)


def _load(name: str, path: Path | None) -> Any:
    try:
        from fastembed.common.model_description import ModelSource
        from fastembed.rerank.cross_encoder import TextCrossEncoder
    except ImportError:
        raise RerankerError("a local reranker needs fastembed: pip install 'recallflow[rerank]'") from None
    if path is not None:  # fastembed may not know the model
        file = next((file for file in ("model.onnx", "onnx/model.onnx") if (path / file).is_file()), None)
        if file is None:
            raise RerankerError(f"{path} has no model.onnx: give the folder of an ONNX export of {name}")
        known = {model["model"].lower(): model["model_file"] for model in TextCrossEncoder.list_supported_models()}
        if name.lower() not in known:
            TextCrossEncoder.add_custom_model(name, ModelSource(hf=name), file)
        elif not (path / known[name.lower()]).is_file():
            raise RerankerError(f"{path} has no {known[name.lower()]}: give the folder of the ONNX export of {name}")
    try:
        return TextCrossEncoder(name, specific_model_path=str(path) if path else None)
    except Exception as error:  # onnxruntime, tokenizers and the hub client raise undocumented errors
        origin = path or "the model hub (--reranker-path takes a local folder)"
        raise RerankerError(f"cannot load the reranker {name} from {origin}: {error}") from error


def load_reranker(
    name: str | None, *, path: Path | None, url: str | None, key: str | None, timeout_s: float
) -> Reranker | None:
    """Return a service, a local cross-encoder, or None without settings. Raise UsageError or RerankerError."""
    check_reranker(name, path=path, url=url)
    if name is None:
        return None
    return CrossEncoder(name, path) if url is None else HttpReranker(name, url, key, timeout_s)


def check_reranker(name: str | None, *, path: Path | None, url: str | None) -> None:
    """Raise UsageError for contradictory settings, without loading the model."""
    if name is None and (url is not None or path is not None):
        raise UsageError("--reranker is missing: give the name of the model")
    if url is not None and path is not None:
        raise UsageError("a reranker is a service (--reranker-url) or a local model (--reranker-path), not both")
