"""Size limit of answers: an answer above its topic's limit is shortened, the largest text first.

Shortenable values are found by shape, not by name: texts, lists and free-form values of rows (memories, versions,
context items, edges), and texts outside rows. Values above a common size are cut to it, the largest size with which the
answer fits. A single huge value is therefore cut alone, and smaller ones stay whole."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from recallflow.outputs import Answer
from recallflow.responses import ErrorBody, Response, Warn

TRUNCATED = "truncated"
CUT = Warn(code="content_cut", detail="the largest texts were shortened to fit the topic; their parts say so")
LEAST_BYTES = 200  # minimum size of a cut text: an answer of shorter fragments is useless
# References: a cut one would name something else.
_KEPT = frozenset(
    ("id", "query_id", "session_id", "episode_id", "memory_id", "source", "target", "key", "memory", "node", "code")
)
_LESS = {  # part of an answer → remedy that reduces it
    "memories": "a lower k",
    "context": "a lower max_tokens",
    "episodes": "a lower limit",
    "memory_page": "a lower limit",
    "graph_facts": "a lower limit",
    "graph_trace": "a lower k or traversal_depth",
    "subgraph": "lower hops, fewer nodes or a lower limit",
}
_MARK_BYTES = len(f',"{TRUNCATED}":true')


def fitted(answer: Answer, most_bytes: int) -> Answer:
    """Return the answer with a body of at most `most_bytes`: unchanged, shortened, or an error."""
    if len(answer.body) <= most_bytes:
        return answer
    if (shortened := _shortened(answer, most_bytes)) is not None:
        return shortened
    document = from_json(answer.body)
    less = [how for part, how in _LESS.items() if document.get(part)]
    ask = f"ask for less, with {' or '.join(less)}, or " if less else ""
    size = f"the answer has {len(answer.body)} bytes, and its topic takes {most_bytes}"
    return failed(answer, f"{size}: {ask}let the topic take more (max.message.bytes)", most_bytes)


def failed(answer: Answer, reason: str, most_bytes: int) -> Answer:
    """Return an error in place of an answer that cannot be sent; without `applied` if that alone is too large."""
    error = ErrorBody(code="too_large", message=reason, fields=[])
    failed_response = Response(query_id=answer.response.query_id, status="error", error=error)
    for response in (failed_response.model_copy(update={"applied": answer.response.applied}), failed_response):
        body = response.model_dump_json(exclude_unset=True, exclude_none=True).encode()
        if len(body) <= most_bytes:
            break
    return replace(answer, body=body, response=response)


def _shortened(answer: Answer, most_bytes: int) -> Answer | None:
    """Return the answer with its largest texts cut; None if that is not sufficient."""
    warned = answer.response.warned([CUT])
    document = from_json(answer.body)
    document |= warned.model_dump(include={"status", "warnings"}, exclude_unset=True)
    texts = [*_texts(document)]
    size_bytes = _common_size(sorted((t.size_bytes for t in texts), reverse=True), _size(document) - most_bytes)
    if size_bytes < LEAST_BYTES:
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
    """A shortenable value under a name. `owner` records that it was shortened."""

    holder: dict[str, Any]
    name: str
    owner: dict[str, Any]
    size_bytes: int


def _texts(holder: dict[str, Any], owner: dict[str, Any] | None = None, *, is_row: bool = False) -> Iterator[_Text]:
    """Yield all shortenable values of a response, an object in it, or a row. The fields of the response itself, which
    has no owner, stay."""
    for name, value in holder.items():
        if not is_row and isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                yield from _texts(row, row, is_row=True)
        elif not is_row and isinstance(value, dict):
            yield from _texts(value, value if owner is None else owner)
        elif owner is not None and isinstance(value, str | list | dict) and name not in _KEPT:
            yield _Text(holder, name, owner, _size(value))


def _common_size(sizes: list[int], over_bytes: int) -> int:
    """Return the largest common size that saves `over_bytes` and the marks; 0 if none. `sizes` descend."""
    total = 0
    for count, (size, following) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True), 1):
        total += size
        common = (total - over_bytes) // count - _MARK_BYTES
        if common >= following:
            return common
    return 0


def _cut(value: Any, most_bytes: int) -> Any:
    """Return the beginning of a text, or the first entries of a list or mapping, within a limit of JSON bytes."""
    match value:
        case str():
            length = bisect_right(range(len(value)), most_bytes, key=lambda count: _size(value[:count]))
            return value[: length - 1]
        case list():
            return value[: _entries(map(_size, value), most_bytes)]
        case dict():
            sizes = (_size(name) + 1 + _size(entry) for name, entry in value.items())
            return dict([*value.items()][: _entries(sizes, most_bytes)])
    raise TypeError(f"{type(value).__name__} cannot be shortened")


def _entries(sizes: Iterator[int], most_bytes: int) -> int:
    """Return how many entries fit, with brackets and commas."""
    left, count = most_bytes - 2, 0
    for size in sizes:
        left -= size + 1
        if left < -1:  # the last one needs no comma
            break
        count += 1
    return count


def _size(value: object) -> int:
    return len(to_json(value))
