"""Requests within the size limit of their topic: first the context of the memory is cut, then its text."""

from dataclasses import replace

from recallflow.enrichment import EnrichmentRequest
from recallflow.outputs import Requested

_CONTEXT = ("recent", "entities", "similar")  # in the order of removal
_LEAST_CHARACTERS = 100


def fitted_request(requested: Requested, most_bytes: int) -> Requested:
    """Return the request with a body of at most `most_bytes`, if possible."""
    if len(requested.body) <= most_bytes:
        return requested
    request = EnrichmentRequest.model_validate_json(requested.body)
    while len(body := request.model_dump_json(exclude_none=True).encode()) > most_bytes:
        smaller = _without_the_last(request) or _with_half_of_the_texts(request)
        if smaller is None:
            break
        request = smaller
    return replace(requested, body=body)


def _without_the_last(request: EnrichmentRequest) -> EnrichmentRequest | None:
    """Return the request without half of its least important context; None without context."""
    for name in _CONTEXT:
        if context := getattr(request, name):
            return request.model_copy(update={name: context[: len(context) // 2]})
    if len(request.memories) > 1:
        return request.model_copy(update={"memories": request.memories[len(request.memories) // 2 :]})
    return None


def _with_half_of_the_texts(request: EnrichmentRequest) -> EnrichmentRequest | None:
    (memory,) = request.memories
    half = len(memory.content) // 2
    if half < _LEAST_CHARACTERS:
        return None
    text = None if request.text is None else request.text[:half]
    summary = None if request.summary is None else request.summary[:half]
    cut = memory.model_copy(update={"content": memory.content[:half]})
    return request.model_copy(update={"memories": [cut], "text": text, "summary": summary})
