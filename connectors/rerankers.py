"""Rerankers by what settings name."""

from pathlib import Path

from recallflow.connectors.cross_encoder import CrossEncoder
from recallflow.connectors.http_reranker import HttpReranker
from recallflow.errors import UsageError
from recallflow.reranker import Reranker


def load_reranker(
    name: str | None, *, path: Path | None, url: str | None, key: str | None, timeout_s: float
) -> Reranker | None:
    """The service at `url`, or else a local cross-encoder; None where none is named. Raises UsageError or RerankerError
    with what to correct."""
    check_reranker(name, path=path, url=url)
    if name is None:
        return None
    return CrossEncoder(name, path) if url is None else HttpReranker(name, url, key, timeout_s)


def check_reranker(name: str | None, *, path: Path | None, url: str | None) -> None:
    """Raises UsageError for what does not go together, without loading anything."""
    if name is None and (url is not None or path is not None):
        raise UsageError("give --reranker: the model's name")
    if url is not None and path is not None:
        raise UsageError("a reranker is a service (--reranker-url) or a local model (--reranker-path), not both")
