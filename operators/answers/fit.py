"""Size limit of answers: an answer above its topic's limit is shortened, the largest text first.

Shortenable values are found by shape, not by name: texts, lists and free-form values of rows (memories, versions,
context items, edges), and texts outside rows. Values above a common size are cut to it, the largest size with which the
answer fits. A single huge value is therefore cut alone, and smaller ones stay whole."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from recallflow.outputs import Answer
from recallflow.responses import ErrorBody, Response, Warn

TRUNCATED = "truncated"
CUT = Warn(code="content_cut", detail="the largest texts were shortened to fit the topic; their parts say so")
MIN_CUT_BYTES = 200  # of a cut text: an answer of shorter fragments is useless
# References are not shortened: a part of one would name something else.
_REFERENCES = frozenset(
    ("id", "query_id", "session_id", "episode_id", "memory_id", "source", "target", "key", "memory", "node", "code")
)
_REMEDIES = {  # part of an answer → remedy that reduces it
    "memories": "a lower k",
    "context": "a lower max_tokens",
    "episodes": "a lower limit",
    "memory_page": "a lower limit",
    "graph_facts": "a lower limit",
    "graph_trace": "a lower k or traversal_depth",
    "subgraph": "lower hops, fewer nodes or a lower limit",
}
_MARK_BYTES = len(f',"{TRUNCATED}":true')


def fitted(answer: Answer, limit_bytes: int) -> Answer:
    """Return the answer with a body of at most `limit_bytes`: unchanged, shortened, or an error."""
    if len(answer.body) <= limit_bytes:
        return answer
    if (shortened := _shorten(answer, limit_bytes)) is not None:
        return shortened
    document = from_json(answer.body)
    advices = [advice for part, advice in _REMEDIES.items() if document.get(part)]
    remedy = f"ask for less, with {' or '.join(advices)}, or " if advices else ""
    size = f"the answer has {len(answer.body)} bytes, and its topic takes {limit_bytes}"
    return failed(answer, f"{size}: {remedy}let the topic take more (max.message.bytes)", limit_bytes)


def failed(answer: Answer, reason: str, limit_bytes: int) -> Answer:
    """Return an error in place of an answer that cannot be sent; without `applied` if it does not fit."""
    error = ErrorBody(code="too_large", message=reason, fields=[])
    failed_response = Response(query_id=answer.response.query_id, status="error", error=error)
    for response in (failed_response.model_copy(update={"applied": answer.response.applied}), failed_response):
        body = response.model_dump_json(exclude_unset=True, exclude_none=True).encode()
        if len(body) <= limit_bytes:
            break
    return replace(answer, body=body, response=response)


def _shorten(answer: Answer, limit_bytes: int) -> Answer | None:
    """Return the answer with its largest texts cut; None if that is not sufficient."""
    warned = answer.response.warned([CUT])
    document = from_json(answer.body)
    document |= warned.model_dump(include={"status", "warnings"}, exclude_unset=True)
    texts = [*_shortenable(document)]
    size_bytes = _common_size(sorted((t.size_bytes for t in texts), reverse=True), _size(document) - limit_bytes)
    if size_bytes < MIN_CUT_BYTES:
        return None
    for text in texts:
        if text.size_bytes > size_bytes:
            cut = text.holder[text.name] = _cut(text.holder[text.name], size_bytes)
            text.owner[TRUNCATED] = True
            excerpt = text.holder.get("excerpt")
            if text.name == "content" and excerpt is not None and excerpt["end"] > len(cut):
                text.holder["excerpt"] = None  # the cut text does not contain it
    return replace(answer, body=to_json(document), response=warned)


class _Text(NamedTuple):
    """A shortenable value under a name. The object `owner` gets the mark that it is truncated."""

    holder: dict[str, Any]
    name: str
    owner: dict[str, Any]
    size_bytes: int


def _shortenable(
    holder: dict[str, Any], owner: dict[str, Any] | None = None, *, is_row: bool = False
) -> Iterator[_Text]:
    """Yield all shortenable values of a response, an object in it, or a row. The fields of the response itself, which
    has no owner, stay."""
    for name, value in holder.items():
        if not is_row and isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                yield from _shortenable(row, row, is_row=True)
        elif not is_row and isinstance(value, dict):
            yield from _shortenable(value, value if owner is None else owner)
        elif owner is not None and isinstance(value, str | list | dict) and name not in _REFERENCES:
            yield _Text(holder, name, owner, _size(value))


def _common_size(sizes: list[int], over_bytes: int) -> int:
    """Return the largest size to which larger texts are cut to save `over_bytes`, and room for the marks that they are
    truncated; 0 if there is none. `sizes` descend."""
    total = 0
    for count, (size, following) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True), 1):
        total += size
        common = (total - over_bytes) // count - _MARK_BYTES
        if common >= following:
            return common
    return 0


def _cut(value: Any, limit_bytes: int) -> Any:
    """Return the beginning of a text, or the first entries of a list or mapping, within a limit of JSON bytes."""
    match value:
        case str():
            length = bisect_right(range(len(value)), limit_bytes, key=lambda count: _size(value[:count]))
            return value[: length - 1]
        case list():
            return value[: _fitting_count(map(_size, value), limit_bytes)]
        case dict():
            sizes = (_size(name) + 1 + _size(entry) for name, entry in value.items())
            return dict([*value.items()][: _fitting_count(sizes, limit_bytes)])
    raise TypeError(f"{type(value).__name__} cannot be shortened")


def _fitting_count(sizes: Iterator[int], limit_bytes: int) -> int:
    """Return the number of entries that fit, with an opening bracket, and a comma or a bracket after each entry."""
    totals_bytes = accumulate(size + 1 for size in sizes)
    return sum(1 for _ in takewhile(lambda total_bytes: total_bytes < limit_bytes, totals_bytes))


def _size(value: object) -> int:
    return len(to_json(value))
