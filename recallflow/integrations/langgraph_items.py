"""LangGraph's items as memories: what is stored of one, and how it is found again."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from langgraph.store.base import MatchCondition, get_text_at_path

from recallflow.errors import UsageError
from recallflow.limits import METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS, METADATA_VALUES_MAX
from recallflow.responses import ListedMemory

Namespace = tuple[str, ...]
Filters = dict[str, Any]

# Fields of metadata. Filters know what is in the last three; what is in the first they cannot ask for.
ITEM = "langgraph"  # {namespace, key, value}; the value as JSON, so that it comes back as it is
WITHIN = "langgraph.in"  # the namespace, and every prefix of it
DIGEST = "langgraph.item"
FIELD = "value.{}"  # each field of the value that a filter may name


def digest_of(namespace: Namespace, key: str) -> str:
    """What is the same for all memories of one item."""
    return hashlib.sha256(json.dumps([namespace, key]).encode()).hexdigest()[:32]


def new_id(namespace: Namespace, key: str) -> str:
    """The id of a memory that is to be this item: another one each time, as that of a forgotten memory is never free
    again. It tells the item, as answers have no metadata."""
    return f"{digest_of(namespace, key)}-{uuid.uuid4().hex}"


def digest_in(memory_id: str) -> str:
    return memory_id.partition("-")[0]


def newest_of_each(rows: Iterable[ListedMemory]) -> Iterator[ListedMemory]:
    """Of each item one memory, the first."""
    seen = set()
    for row in rows:
        if (digest := digest_in(row.id)) not in seen:
            seen.add(digest)
            yield row


def fields_of(namespace: Namespace, key: str, value: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The fields of a memory that is this item. Raises UsageError where filters could not find all of it."""
    prefixes = [_path(namespace[:length]) for length in range(1, len(namespace) + 1)]
    if len(prefixes[-1]) > METADATA_TEXT_CHARACTERS:
        raise UsageError(f"a namespace may have {METADATA_TEXT_CHARACTERS} characters in all, not {len(prefixes[-1])}")
    found = {FIELD.format(name): one for name, one in value.items() if _is_found(name, one)}
    if (most := METADATA_VALUES_MAX - len(prefixes) - 1) < len(found):
        raise UsageError(f"a value may have {most} texts, numbers and truth values at its top, not {len(found)}")
    item = {"namespace": list(namespace), "key": key, "value": json.dumps(value, ensure_ascii=False)}
    metadata = {ITEM: item, WITHIN: prefixes, DIGEST: digest_of(namespace, key), **found}
    return {"content": _text(value, paths), "metadata": metadata}


def stored_in(row: ListedMemory) -> dict[str, Any]:
    """What LangGraph makes an item of."""
    item = (row.metadata or {})[ITEM]
    return {
        "namespace": tuple(item["namespace"]),
        "key": item["key"],
        "value": json.loads(item["value"]),
        "created_at": datetime.fromisoformat(row.created_at),
        "updated_at": datetime.fromisoformat(row.updated_at),
    }


def of_items(digests: Sequence[str]) -> Filters:
    return {"metadata": {DIGEST: list(digests)}}


def within(prefix: Namespace, wanted: Mapping[str, Any] | None = None) -> Filters:
    """What lets items of a namespace through, and of those below it, that fit a filter of LangGraph's. Raises
    NotImplementedError for a condition that cannot be asked for."""
    every: list[Filters] = [{"metadata": {WITHIN: _path(prefix)}}]
    for name, condition in (wanted or {}).items():
        compared = condition if isinstance(condition, Mapping) else {"$eq": condition}
        for operator, value in compared.items():
            if operator not in ("$eq", "$ne") or not isinstance(value, str | int | float):
                raise NotImplementedError(
                    f"{name}: a filter asks for a text, a number, true or false, with $eq or $ne, not for {condition!r}"
                )
            equal = {"metadata": {FIELD.format(name): value}}
            every.append(equal if operator == "$eq" else {"not": equal})
    return {"all": every}


def matches(namespace: Namespace, condition: MatchCondition) -> bool:
    """Whether a namespace begins, or ends, as the condition says; `*` is any label."""
    path = condition.path
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return len(part) == len(path) and all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


def _path(namespace: Namespace) -> str:
    return ".".join(namespace)  # no label has a dot


def _is_found(name: object, value: object) -> bool:
    """Whether filters know a field; a longer text is none that one could ask for."""
    if isinstance(value, str):
        return len(value) <= METADATA_TEXT_CHARACTERS
    return isinstance(value, int | float) and len(FIELD.format(name)) <= METADATA_NAME_CHARACTERS


def _text(value: Mapping[str, Any], paths: Sequence[str]) -> str:
    """What is read of a value: what stands at the paths, or else all its texts; as JSON, where that is nothing."""
    found = [text for path in paths for text in get_text_at_path(value, path)] if paths else [*_texts(value)]
    text = "\n".join(found)
    return text if text.strip() else json.dumps(value, ensure_ascii=False)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)
