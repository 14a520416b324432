"""A chat service: what is said goes to Kafka, and each answer is given with what recallflow remembers.

uvicorn app:app --port 8000
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from openai import AsyncOpenAI
from prompt import build_prompt
from pydantic import BaseModel

from recallflow import SearchResults
from recallflow.client import AsyncRecallClient
from recallflow.errors import RecallflowError

log = logging.getLogger("uvicorn.error")
MODEL = os.environ.get("CHAT_MODEL", "gpt-4o-mini")


class Said(BaseModel):
    """A message of a user in one of their chats."""

    user: str
    session: str
    text: str


class Answer(BaseModel):
    """`remembered`: the ids of the memories that the model was told."""

    text: str
    remembered: list[str]


@asynccontextmanager
async def clients(app: FastAPI) -> AsyncIterator[None]:
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092")
    async with AsyncRecallClient(servers, "chat-service") as memory, AsyncOpenAI() as model:
        app.state.memory, app.state.model = memory, model
        yield


app = FastAPI(lifespan=clients)


@app.post("/chat")
async def chat(said: Said) -> Answer:
    """Answers a message with what is remembered of its user, and has both remembered."""
    found = await remembered(said)
    messages = build_prompt(said.text, found)
    completion = await app.state.model.chat.completions.create(model=MODEL, messages=messages)
    text = completion.choices[0].message.content or ""
    await remember(said, text)
    return Answer(text=text, remembered=[memory.id for memory in found or ()])


async def remembered(said: Said) -> SearchResults | None:
    """What bears on a message. A chat without memory is better than none: None while the engine is away."""
    memory: AsyncRecallClient = app.state.memory
    try:
        return await memory.search(said.text, user=said.user, session=said.session, max_tokens=1_000, timeout_s=2)
    except RecallflowError as error:
        log.warning("answering without memory: %s", error)
        return None


async def remember(said: Said, text: str) -> None:
    """Both turns, in their order. Kafka keeps them, also while the engine is away."""
    memory: AsyncRecallClient = app.state.memory
    turns = [{"role": "user", "content": said.text}, {"role": "assistant", "content": text}]
    try:
        await memory.add(turns, user=said.user, session=said.session)
    except RecallflowError:
        log.exception("not remembered")
