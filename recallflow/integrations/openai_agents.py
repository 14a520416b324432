"""OpenAI Agents SDK: a session whose items are messages in a user's memory.

    session = RecallSession("s1", client, "ann")
    await Runner.run(agent, "I am allergic to peanuts", session=session)

Each item is a message of the session. Its text is a memory, which other sessions of the user recall as well. Items are
returned unchanged. An addition or removal is visible to all readers once the call returns."""

import json
from collections.abc import Mapping
from typing import Any, cast

from recallflow.fields import Role
from recallflow.integrations import await_applied, checked_untruncated, extra, guard_query_before_write
from recallflow.records import Position
from recallflow.responses import ListedMemory
from recallflow.verbs.verbs import PAGE, AsyncCalls

with extra("openai-agents"):
    from agents import SessionSettings, TResponseInputItem

ITEM = "openai_agents.item"  # metadata field with the item as JSON, if the item has more than a role and a text
_ROLES: dict[str, Role] = {"function_call_output": "tool"}  # roles of item types without one; default: assistant


class RecallSession:
    """The SDK's `Session` over one session of a user's memory."""

    def __init__(
        self, session_id: str, client: AsyncCalls, user_id: str, session_settings: SessionSettings | None = None
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = session_settings
        self._client = client
        self._user_id = user_id

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the session's items in order: all, or the latest `limit`."""
        settings = self.session_settings
        maximum = settings.limit if limit is None and settings is not None else limit
        return [_item(row) for row in reversed(await self._rows(maximum))]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add the items in order. If one fails, the items before it are stored."""
        position: Position | None = None
        for item in items:
            message = _message(cast("Mapping[str, Any]", item))
            position = (await self._client.add(message, user=self._user_id, session=self.session_id)).position
        if position is not None:
            await await_applied(self._client, self._user_id, position)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item, and forget its memory. Raise NothingWritten if its query fails."""
        with guard_query_before_write():
            rows = await self._rows(1)
        for row in rows:
            await await_applied(self._client, self._user_id, await self._client.forget(row.id, user=self._user_id))
            return _item(row)
        return None

    async def clear_session(self) -> None:
        """Forget all memories of the session, derived facts included."""
        forgotten = await self._client.forget(user=self._user_id, where={"session_id": self.session_id})
        await await_applied(self._client, self._user_id, forgotten)

    async def _rows(self, limit: int | None) -> list[ListedMemory]:
        """Return the session's messages, newest first: all, or the latest `limit`."""
        rows: list[ListedMemory] = []
        if limit is not None and limit < 1:
            return rows
        page = PAGE if limit is None else min(PAGE, limit)
        filters = {"session_ids": [self.session_id], "kinds": ["message"]}
        async for memory in self._client.each(user=self._user_id, filters=filters, limit=page):
            rows.append(checked_untruncated(memory))
            if len(rows) == limit:
                break
        return rows


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    role = item.get("role") or _ROLES.get(item.get("type", ""), "assistant")
    message = {"role": role, "content": _text(item.get("content") or item.get("output"))}
    return message if item == message else message | {"metadata": {ITEM: json.dumps(item, ensure_ascii=False)}}


def _item(row: ListedMemory) -> TResponseInputItem:
    stored = (row.metadata or {}).get(ITEM)
    item = {"role": row.role, "content": row.content} if stored is None else json.loads(stored)
    return cast("TResponseInputItem", item)


def _text(content: object) -> str | None:
    """Return the text of an item, or of its parts; the engine ignores other parts."""
    if isinstance(content, str):
        return content if content.strip() else None
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, Mapping)]
    joined = "\n".join(text for text in texts if isinstance(text, str))
    return joined if joined.strip() else None
