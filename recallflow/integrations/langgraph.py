"""LangGraph: a store whose items are memories of users.

    store = RecallStore(client)                  # ("ann", "food"): the memory of the user ann
    store = RecallStore(client, user_label=1)    # ("memories", "ann"): the same
    store = RecallStore(client, user="ann")      # every namespace is in the memory of the user ann
    graph = builder.compile(store=store)

The label at index `user_label` of a namespace is the user id. An item is a memory of that user: the texts of its value
are the content; namespace, key and value are metadata. A put to an existing key creates a new version of the memory. A
delete forgets it permanently. Puts and deletes return once they are applied, so later reads see them. They query the
item first, and raise NothingWritten if that query fails: repeat the call.

The engine filters by `$eq` and `$ne` on texts, numbers and truth values; the store reads all items for other
conditions. A query ranks up to 50 items; others follow without a score, newest first. TTLs are refused; so are
searches, and lists of namespaces, of several users. Simultaneous puts to a new key create two memories: a delete
forgets both."""

import asyncio
import hashlib
import json
import operator
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice, takewhile
from types import MappingProxyType
from typing import Any

from recallflow.errors import UsageError
from recallflow.integrations import checked_untruncated, extra, guard_query_before_write, wait_applied
from recallflow.limits import FILTER_VALUES_MAX, METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS, METADATA_VALUES_MAX
from recallflow.queries import K_MAX
from recallflow.responses import ListedMemory
from recallflow.verbs.verbs import SyncCalls

with extra("langgraph"):
    from langgraph.store import base

Namespace = tuple[str, ...]
Filters = dict[str, Any]
# Metadata fields. Filters use all but the first.
ITEM = "langgraph"  # {namespace, key, value}; the value is JSON text, so that reads return it unchanged
WITHIN = "langgraph.in"  # the namespace, and every prefix of it
DIGEST = "langgraph.item"
UNINDEXED = "langgraph.unindexed"  # true for an item that queries must not rank
FIELD = "value.{}"  # one field of the item's value, for filters
EQUALITIES = MappingProxyType({"$eq": operator.eq, "$ne": operator.ne})  # comparisons that the engine's filters have
RANGES = MappingProxyType({"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le})


def digest_of(namespace: Namespace, key: str) -> str:
    return hashlib.sha256(json.dumps([namespace, key]).encode()).hexdigest()[:32]


def new_id(namespace: Namespace, key: str) -> str:
    """Return a new memory id, with the item's digest in it. The id of a forgotten memory cannot be reused."""
    return f"{digest_of(namespace, key)}-{uuid.uuid4().hex}"


def digest_in(memory_id: str) -> str:
    return memory_id.partition("-")[0]


def newest_of_each(rows: Iterable[ListedMemory]) -> Iterator[ListedMemory]:
    digests = set()
    for row in rows:
        if (digest := digest_in(row.id)) not in digests:
            digests.add(digest)
            yield row


def fields_of(namespace: Namespace, key: str, value: Mapping[str, Any], paths: Sequence[str] | None) -> dict[str, Any]:
    """Return the memory fields of an item. `paths` are the indexed parts of the value: None for none, empty for all
    texts. Raise UsageError if the item has more fields than filters can use, or too long a namespace."""
    prefixes = [_path(namespace[:length]) for length in range(len(namespace) + 1)]
    if len(prefixes[-1]) > METADATA_TEXT_CHARACTERS:
        raise UsageError(f"a namespace may have {METADATA_TEXT_CHARACTERS} characters in all, not {len(prefixes[-1])}")
    found = {FIELD.format(name): one for name, one in value.items() if _is_filterable(name, one)}
    if (most := METADATA_VALUES_MAX - len(prefixes) - 2) < len(found):
        raise UsageError(f"a value may have {most} texts, numbers and truth values at its top, not {len(found)}")
    item = {"namespace": list(namespace), "key": key, "value": json.dumps(value, ensure_ascii=False)}
    metadata = {ITEM: item, WITHIN: prefixes, DIGEST: digest_of(namespace, key), **found}
    if paths is None:
        return {"content": "-", "metadata": metadata | {UNINDEXED: True}}
    return {"content": _text(value, paths), "metadata": metadata}


def item_fields(row: ListedMemory) -> dict[str, Any]:
    item = (row.metadata or {})[ITEM]
    times = {name: datetime.fromisoformat(getattr(row, name)) for name in ("created_at", "updated_at")}
    return {"namespace": tuple(item["namespace"]), "key": item["key"], "value": json.loads(item["value"])} | times


def items_filter(digests: Sequence[str]) -> Filters:
    return {"metadata": {DIGEST: list(digests)}}


def namespace_filter(prefix: Namespace, conditions: Mapping[str, Any] | None = None) -> tuple[Filters, bool]:
    """Return filters for a namespace and the namespaces below it, and whether they express all conditions."""
    filters: list[Filters] = [{"metadata": {WITHIN: _path(prefix)}}]
    is_complete = True
    for name, condition in (conditions or {}).items():
        compared = condition if isinstance(condition, Mapping) else {"$eq": condition}
        for comparison, value in compared.items():
            if comparison in EQUALITIES and _is_filterable(name, value):
                equal = {"metadata": {FIELD.format(name): value}}
                filters.append(equal if comparison == "$eq" else {"not": equal})
            else:
                is_complete = False
    return {"all": filters}, is_complete


def meets(found: Any, condition: Any) -> bool:
    """Return whether a value meets a condition, by the rules of LangGraph's stores. Ranges match only numbers."""
    if isinstance(condition, Mapping) and any(name.startswith("$") for name in condition):
        return all(_compare(found, comparison, value) for comparison, value in condition.items())
    if isinstance(condition, Mapping):
        return isinstance(found, Mapping) and all(meets(found.get(name), one) for name, one in condition.items())
    if isinstance(condition, list | tuple):
        return isinstance(found, list) and len(found) == len(condition) and all(map(meets, found, condition))
    return bool(found == condition)


def _compare(found: Any, comparison: str, value: Any) -> bool:
    if comparison in EQUALITIES:
        return bool(EQUALITIES[comparison](found, value))
    if comparison not in RANGES:
        known = ", ".join([*EQUALITIES, *RANGES])
        raise UsageError(f'unknown comparison "{comparison}" in a filter; LangGraph has {known}')
    numbers = isinstance(found, int | float) and isinstance(value, int | float)
    return numbers and RANGES[comparison](found, value)


def matches(namespace: Namespace, condition: base.MatchCondition) -> bool:
    """Return whether a namespace matches a prefix or suffix condition; `*` is any label."""
    path = condition.path
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return len(part) == len(path) and all(pattern in ("*", label) for pattern, label in zip(path, part, strict=True))


def _path(namespace: Namespace) -> str:
    return ".".join(namespace) or "."  # no label has a dot


def _is_filterable(name: object, value: object) -> bool:
    """Return whether filters can find a field: a short text, a number or a truth value."""
    if isinstance(value, str):
        return len(value) <= METADATA_TEXT_CHARACTERS
    return isinstance(value, int | float) and len(FIELD.format(name)) <= METADATA_NAME_CHARACTERS


def _text(value: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return the indexed text of a value: the texts at the paths, or without paths all texts. Without a text,
    return its JSON."""
    found = [text for path in paths for text in base.get_text_at_path(value, path)] if paths else [*_texts(value)]
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


class RecallStore(base.BaseStore):
    """Items as memories of users. `user_label` is the index of the user's label in a namespace; with `user`, all
    namespaces are of this user. `fields` are the indexed paths of a value in LangGraph's notation; without any, all
    its texts are indexed. A put may override them with `index`."""

    def __init__(
        self, client: SyncCalls, *, user_label: int = 0, user: str | None = None, fields: Sequence[str] = ()
    ) -> None:
        self._client = client
        self._user_label = user_label
        self._user_id = user
        self._fields = tuple(fields)

    def batch(self, ops: Iterable[base.Op]) -> list[base.Result]:
        """Run the operations in order; each sees the effects of earlier ones."""
        return [self._run(op) for op in ops]

    async def abatch(self, ops: Iterable[base.Op]) -> list[base.Result]:
        return await asyncio.to_thread(self.batch, [*ops])

    def _run(self, op: base.Op) -> base.Result:
        base.validate_op_namespace(op)
        match op:
            case base.GetOp():
                row = next(self._at(op.namespace, op.key), None)
                return None if row is None else base.Item(**item_fields(row))
            case base.PutOp():
                self._put(op)
                return None
            case base.SearchOp():
                if op.query:
                    return self._best(op)
                newest = islice(self._matching(op), op.offset, op.offset + op.limit)
                return [base.SearchItem(**item_fields(row)) for row in newest]
            case base.ListNamespacesOp():
                return self._namespaces(op)

    def _put(self, op: base.PutOp) -> None:
        if op.ttl is not None:
            raise NotImplementedError("RecallStore has no TTLs: reads cannot extend them; put the item without ttl")
        user_id = self._user(op.namespace)
        with guard_query_before_write():
            existing_ids = [row.id for row in self._at(op.namespace, op.key)]
        if op.value is None:
            # All events are sent before the wait, so that a timeout leaves no memory of the item.
            forgotten = [self._client.forget(memory_id, user=user_id) for memory_id in existing_ids]
            for position in forgotten[-1:]:
                wait_applied(self._client, user_id, position)
            return
        paths = None if op.index is False else op.index or self._fields
        memory_fields = fields_of(op.namespace, op.key, op.value, paths)
        if existing_ids:
            position = self._client.update(existing_ids[0], user=user_id, **memory_fields)
        else:
            content, memory_id = memory_fields.pop("content"), new_id(op.namespace, op.key)
            position = self._client.add(content, user=user_id, id=memory_id, **memory_fields).position
        wait_applied(self._client, user_id, position)

    def _best(self, op: base.SearchOp) -> list[base.SearchItem]:
        """Return the items that the engine ranks, and then the others, as LangGraph's stores do."""
        user_id, last = self._user(op.namespace_prefix), op.offset + op.limit
        filters, is_complete = namespace_filter(op.namespace_prefix, op.filter)
        if not is_complete:
            filters = items_filter([digest_in(row.id) for row in islice(self._matching(op), FILTER_VALUES_MAX)] or [""])
        indexed = {"all": [filters, {"not": {"metadata": {UNINDEXED: True}}}]}
        best = self._client.search(op.query or "", user=user_id, k=min(last, K_MAX), filters=indexed)
        # Search results have no metadata, but lists have; the ids connect both.
        digests = {digest_in(memory.id) for memory in best}
        best_rows = self._rows(user_id, items_filter([*digests])) if digests else ()
        rows = {row.id: row for row in newest_of_each(best_rows)}
        ranked = [base.SearchItem(**item_fields(rows[one.id]), score=one.score) for one in best if one.id in rows]
        others = (base.SearchItem(**item_fields(row)) for row in self._matching(op) if digest_in(row.id) not in digests)
        return [*islice(chain(ranked, others), op.offset, last)]

    def _matching(self, op: base.SearchOp) -> Iterator[ListedMemory]:
        """Yield the items of a search, newest first. The store checks conditions that filters cannot express."""
        filters, is_complete = namespace_filter(op.namespace_prefix, op.filter)
        rows = newest_of_each(self._rows(self._user(op.namespace_prefix), filters))
        return rows if is_complete else (row for row in rows if meets(item_fields(row)["value"], op.filter))

    def _namespaces(self, op: base.ListNamespacesOp) -> list[Namespace]:
        conditions = op.match_conditions or ()
        path = next((condition.path for condition in conditions if condition.match_type == "prefix"), ())
        prefix = tuple(takewhile("*".__ne__, path))
        rows = self._rows(self._user(prefix), namespace_filter(prefix)[0])
        every = {tuple(item_fields(row)["namespace"]) for row in rows}
        matching = {space[: op.max_depth] for space in every if all(matches(space, one) for one in conditions)}
        return sorted(matching)[op.offset : op.offset + op.limit]

    def _at(self, namespace: Namespace, key: str) -> Iterator[ListedMemory]:
        """Yield the memories of an item, newest first: at most one, unless two processes created it."""
        return self._rows(self._user(namespace), items_filter([digest_of(namespace, key)]))

    def _rows(self, user_id: str, filters: Filters) -> Iterator[ListedMemory]:
        """Yield the current memories of a user, newest first."""
        return map(checked_untruncated, self._client.each(user=user_id, filters=filters))

    def _user(self, namespace: Namespace) -> str:
        if self._user_id is not None:
            return self._user_id
        if len(namespace) <= (label := self._user_label):
            remedy = 'add it, or use RecallStore(client, user="ann")'
            raise UsageError(f"{namespace} has no label {label}, the user; {remedy}")
        return namespace[label]
