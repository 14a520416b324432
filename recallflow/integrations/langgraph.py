"""LangGraph: a store whose items are memories of users.

    store = RecallStore(client)                  # ("ann", "food"): the memory of the user ann
    store = RecallStore(client, user_label=1)    # ("memories", "ann"): the same
    graph = builder.compile(store=store)

A namespace names a user, in the label that `user_label` counts out; an item is a memory of that user, with the texts of
its value as content, and namespace, key and value in its metadata. A put to a key that is there is a new version of the
memory; a delete forgets it, for good. Both are over once they are applied: whoever reads after them sees them. Both
look first what is there, and raise NothingWritten where they are not told: they may simply be done again.

What recallflow does not have is refused: TTLs, items that no search finds, searches and lists of namespaces across
users, conditions of a filter other than `$eq` and `$ne`, and a query for more than the 50 best items. Where two
processes put to a new key at the same moment, two memories are made of it: the store reads the newer one, and a delete
forgets both.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from recallflow.errors import UsageError
from recallflow.integrations.applied import before_a_write, wait
from recallflow.integrations.client import Client
from recallflow.integrations.extras import extra
from recallflow.integrations.pages import PAGE, listed_whole
from recallflow.queries import K_MAX
from recallflow.responses import ListedMemory

with extra("langgraph"):
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        validate_op_namespace,
    )

    from recallflow.integrations.langgraph_items import (
        Filters,
        Namespace,
        digest_in,
        digest_of,
        fields_of,
        matches,
        new_id,
        newest_of_each,
        of_items,
        stored_in,
        within,
    )


class RecallStore(BaseStore):
    """Items as memories of users. `user_label`: which label of a namespace is the user, counted from 0. `fields`: the
    paths of a value that searches read, as LangGraph writes them; without any, every text in it. A put may name others
    as its `index`."""

    def __init__(self, client: Client, *, user_label: int = 0, fields: Sequence[str] = ()) -> None:
        self._client = client
        self._user_label = user_label
        self._fields = tuple(fields)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Does one after the other; each sees what those before it did."""
        return [self._done(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, [*ops])

    def _done(self, op: Op) -> Result:
        validate_op_namespace(op)
        match op:
            case GetOp():
                row = next(self._at(op.namespace, op.key), None)
                return None if row is None else Item(**stored_in(row))
            case PutOp():
                self._put(op)
                return None
            case SearchOp():
                return self._best(op) if op.query else self._newest(op)
            case ListNamespacesOp():
                return self._namespaces(op)

    # ------------------------------------------------------------------ writing

    def _put(self, op: PutOp) -> None:
        if op.ttl is not None:
            raise NotImplementedError("RecallStore has no TTL that reading refreshes: put without one")
        if op.index is False:
            raise NotImplementedError("RecallStore has no items that no search finds: name fields as index, or none")
        user_id = self._user(op.namespace)
        with before_a_write():
            there = [row.id for row in self._at(op.namespace, op.key)]
        if op.value is None:
            # All are sent before one is waited for: where that takes too long, none is left over.
            forgotten = [self._client.forget(memory_id, user=user_id) for memory_id in there]
            for position in forgotten[-1:]:
                wait(self._client, user_id, position)
            return
        said = fields_of(op.namespace, op.key, op.value, op.index or self._fields)
        if there:
            position = self._client.update(there[0], user=user_id, **said)
        else:
            memory_id = new_id(op.namespace, op.key)
            position = self._client.add(said.pop("content"), user=user_id, id=memory_id, **said).position
        wait(self._client, user_id, position)

    # ------------------------------------------------------------------ reading

    def _newest(self, op: SearchOp) -> list[SearchItem]:
        rows = newest_of_each(self._rows(self._user(op.namespace_prefix), within(op.namespace_prefix, op.filter)))
        return [SearchItem(**stored_in(row)) for row in islice(rows, op.offset, op.offset + op.limit)]

    def _best(self, op: SearchOp) -> list[SearchItem]:
        if (last := op.offset + op.limit) > K_MAX:
            raise UsageError(f"a query finds the {K_MAX} best items: offset and limit come to {last}")
        user_id, filters = self._user(op.namespace_prefix), within(op.namespace_prefix, op.filter)
        found = self._client.search(op.query or "", user=user_id, k=last, filters=filters, explain=False)
        best = found[op.offset :]
        # An answer has no metadata; a list has, and the ids tell which items are meant.
        digests = {digest_in(memory.id) for memory in best}
        of_best = self._rows(user_id, of_items([*digests])) if digests else iter(())
        rows = {row.id: row for row in newest_of_each(of_best)}
        scored = [(rows[memory.id], memory.score) for memory in best if memory.id in rows]
        return [SearchItem(**stored_in(row), score=score) for row, score in scored]

    def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        """Reads every item of the user."""
        given = op.match_conditions or ()
        named = next((one.path for one in given if one.match_type == "prefix"), ())
        prefix = tuple(takewhile("*".__ne__, named))
        rows = self._rows(self._user(prefix), within(prefix))
        every = {tuple(stored_in(row)["namespace"]) for row in rows}
        matching = {one[: op.max_depth] for one in every if all(matches(one, condition) for condition in given)}
        return sorted(matching)[op.offset : op.offset + op.limit]

    def _at(self, namespace: Namespace, key: str) -> Iterator[ListedMemory]:
        """The memories of an item, the newest first: one at most, but where two processes made it."""
        return self._rows(self._user(namespace), of_items([digest_of(namespace, key)]))

    def _rows(self, user_id: str, filters: Filters) -> Iterator[ListedMemory]:
        """Memories of a user as they are now, the newest first."""
        end: str | None = None
        while True:
            page = listed_whole(self._client.all(user=user_id, filters=filters, limit=PAGE, after=end))
            yield from page
            if (end := page.after) is None:
                return

    def _user(self, namespace: Namespace) -> str:
        if len(namespace) <= self._user_label:
            raise UsageError(
                f"{namespace} names no user: a user's memory is what is searched, by label {self._user_label}"
            )
        return namespace[self._user_label]
