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
    if name is None:
        if url is not None or path is not None:
            raise UsageError("give --reranker: the model's name")
        return None
    if url is not None:
        if path is not None:
            raise UsageError("a reranker is a service (--reranker-url) or a local model (--reranker-path), not both")
        return HttpReranker(name, url, key, timeout_s)
    return CrossEncoder(name, path)
