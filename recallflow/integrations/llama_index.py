"""LlamaIndex: a memory block, the long-term part of its `Memory`.

    memory = Memory.from_defaults(session_id="s1", memory_blocks=[RecallMemoryBlock(client=client, user_id="ann")])

The block receives the messages that exceed the chat history, and stores them unchanged with their session. Before each
answer it recalls relevant memories for the last messages, from all sessions."""

from typing import Any

from pydantic import Field, SkipValidation

from recallflow.integrations import await_applied, extra
from recallflow.records import Position
from recallflow.verbs.verbs import AsyncCalls

with extra("llama-index"):
    from llama_index.core.base.llms.types import ChatMessage, MessageRole
    from llama_index.core.memory import BaseMemoryBlock

_ASSISTANTS = (MessageRole.CHATBOT, MessageRole.MODEL)  # LlamaIndex's other roles have the same names as OpenAI's


class RecallMemoryBlock(BaseMemoryBlock[str]):
    """Memory block with a user's best memories for the last `asked_with` messages, at most `k`, one per line. Messages
    without text, such as tool calls, are neither used nor stored. `fields` are other fields of a `recall`."""

    name: str = "long_term_memory"
    client: SkipValidation[AsyncCalls] = Field(exclude=True, repr=False)
    user_id: str
    k: int = 5
    asked_with: int = Field(default=1, ge=1)
    fields: dict[str, Any] = {}

    async def _aget(self, messages: list[ChatMessage] | None = None, **_: Any) -> str:
        texts = [text for message in messages or [] if (text := _text(message))]
        if not texts:
            return ""
        query = "\n".join(texts[-self.asked_with :])
        found = await self.client.search(query, user=self.user_id, k=self.k, **self.fields)
        return "\n".join(memory.content for memory in found)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        position: Position | None = None
        for message in messages:
            if text := _text(message):
                session_id = message.additional_kwargs.get("session_id")
                role = "assistant" if message.role in _ASSISTANTS else message.role.value
                fields = {"role": role, "content": text}
                position = (await self.client.add(fields, user=self.user_id, session=session_id)).position
        if position is not None:
            await await_applied(self.client, self.user_id, position)


def _text(message: ChatMessage) -> str:
    return (message.content or "").strip()
