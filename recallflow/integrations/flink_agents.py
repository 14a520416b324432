"""Flink Agents: a long-term memory of one user.

    memory = RecallLongTermMemory(client=client, user_id="ann")  # in an action, for the user of its event
    chats = memory.get_memory_set("chats")
    await ctx.durable_execute_async(chats.add, "I am allergic to peanuts")

A memory set is a session of the user, and an item is a memory. Writes return once they are applied, so later reads see
them. A delete forgets permanently. If it queries items first, and the query fails, it raises NothingWritten.

There is no `switch_context`: your program gives the user id, not Flink's key. So a memory set always belongs to one
user, also in calls that run after the action of another key has begun."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pydantic import ConfigDict, Field, SkipValidation

from recallflow.errors import UsageError
from recallflow.integrations import checked_untruncated, guard_query_before_write, wait_applied
from recallflow.queries import K_MAX
from recallflow.responses import ListedMemory, MemoryVersion
from recallflow.verbs.verbs import SyncCalls

try:
    from flink_agents.api.memory.long_term_memory import BaseLongTermMemory, MemorySet, MemorySetItem
except ModuleNotFoundError:
    # PyFlink and the engine need different versions of pyarrow, so only the client has this extra.
    remedy = "pip install 'recallflow-client[flink-agents]' in an environment without recallflow"
    raise ImportError(f"recallflow.integrations.flink_agents needs flink_agents: {remedy}") from None

Metadata = dict[str, Any]


class RecallLongTermMemory(BaseLongTermMemory):  # type: ignore[misc]  # its package has its own environment
    """Memory sets of a user. Create an object for each event: it opens no connection. The caller closes the client."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    client: SkipValidation[SyncCalls] = Field(exclude=True)
    user_id: str

    def get_memory_set(self, name: str) -> MemorySet:
        """Return a memory set. It need not exist: an addition of an item creates it."""
        return MemorySet(name=name, ltm=self)

    def delete_memory_set(self, name: str) -> bool:
        """Forget all items. Return whether there were any."""
        memory_set = self.get_memory_set(name)
        with guard_query_before_write():
            existed = bool(self.get(memory_set, limit=1))
        self.delete(memory_set)
        return existed

    def add(
        self, memory_set: MemorySet, memory_items: str | list[str], metadatas: Metadata | list[Metadata] | None = None
    ) -> list[str]:
        """Add memories and return their ids. A single dictionary of metadata applies to every item."""
        items, session = _as_list(memory_items), memory_set.name
        by_item = metadatas if isinstance(metadatas, list) else [metadatas] * len(items)
        if len(by_item) != len(items):
            raise UsageError(f"{len(items)} items have {len(by_item)} metadatas; give one for each, or one for all")
        pairs = zip(items, by_item, strict=True)
        added = [self.client.add(item, user=self.user_id, session=session, metadata=data) for item, data in pairs]
        if added:
            wait_applied(self.client, self.user_id, added[-1].position)
        return [memory.id for memory in added]

    def get(
        self,
        memory_set: MemorySet,
        ids: str | list[str] | None = None,
        filters: Metadata | None = None,
        limit: int = 100,
    ) -> list[MemorySetItem]:
        """Return the items with these ids that are in the set; without ids, the newest items with this metadata."""
        if ids is not None:
            return [*self._items(memory_set, _as_list(ids))]
        rows = self.client.each(user=self.user_id, filters=_filters(memory_set, filters))
        return [_item(memory_set, row) for row in islice(rows, limit)]

    def delete(self, memory_set: MemorySet, ids: str | list[str] | None = None) -> None:
        """Forget the items with these ids that are in the set; without ids, all items of the set."""
        if ids is None:
            forgotten = [self.client.forget(user=self.user_id, where={"session_id": memory_set.name})]
        else:
            with guard_query_before_write():
                items = self.get(memory_set, ids)
            forgotten = [self.client.forget(item.id, user=self.user_id) for item in items]
        for position in forgotten[-1:]:
            wait_applied(self.client, self.user_id, position)

    def search(
        self, memory_set: MemorySet, query: str, limit: int, filters: Metadata | None = None, **kwargs: Any
    ) -> list[MemorySetItem]:
        """Return the best items for a query, at most 50. `kwargs` are other fields of a `recall`."""
        where = _filters(memory_set, filters)
        found = self.client.search(query, user=self.user_id, k=min(limit, K_MAX), filters=where, **kwargs)
        return [*self._items(memory_set, [memory.id for memory in found])]  # search results have no metadata

    def close(self) -> None:
        """Keep the client open: other users share it."""

    def _items(self, memory_set: MemorySet, ids: Iterable[str]) -> Iterator[MemorySetItem]:
        for memory_id in ids:
            memory = self.client.get(memory_id, user=self.user_id)
            if memory is not None and memory.session_id == memory_set.name:
                yield _item(memory_set, memory)


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _filters(memory_set: MemorySet, metadata: Metadata | None) -> dict[str, Any]:
    return {"session_ids": [memory_set.name]} | ({"metadata": metadata} if metadata else {})


def _item(memory_set: MemorySet, memory: ListedMemory | MemoryVersion) -> MemorySetItem:
    checked_untruncated(memory)
    return MemorySetItem(
        memory_set_name=memory_set.name, id=memory.id, value=memory.content, additional_metadata=memory.metadata,
        created_at=memory.created_at, updated_at=memory.updated_at,
    )  # fmt: skip
