"""Adapters to frameworks over clients on a real broker; in detail: tests/unit/test_framework_adapters.py."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from recallflow.client import AsyncRecallClient, RecallClient
from recallflow.errors import NothingWritten, UsageError
from recallflow.integrations.langgraph import RecallStore
from recallflow.integrations.openai_agents import RecallSession
from tests.kafka.engine import Engine


def async_client(engine: Engine) -> AsyncRecallClient:
    return AsyncRecallClient(engine.broker.bootstrap_servers, "acme", timeout_s=30.0, **engine.named)  # type: ignore[arg-type]


@pytest.fixture
def client(engine: Engine) -> Iterator[RecallClient]:
    with engine.client() as client:
        yield client


def test_store_reads_its_own_writes(client: RecallClient, user: str) -> None:
    store = RecallStore(client)
    for text in ("likes tea", "likes coffee"):
        store.put((user, "food"), "drink", {"text": text})
    item = store.get((user, "food"), "drink")
    assert item is not None
    assert item.value == {"text": "likes coffee"}
    assert [found.value["text"] for found in store.search((user,), query="coffee")] == ["likes coffee"]
    assert store.list_namespaces(prefix=(user,)) == [(user, "food")]
    store.delete((user, "food"), "drink")
    assert store.search((user,)) == []


def test_session_reads_its_own_writes(engine: Engine, user: str) -> None:
    items: list[Any] = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]

    async def use() -> None:
        async with async_client(engine) as client:
            session = RecallSession("s1", client, user)
            await session.add_items(items)
            assert await session.get_items() == items
            assert await session.pop_item() == items[1]
            assert await session.get_items() == items[:1]
            await session.clear_session()
            assert await session.get_items() == []

    asyncio.run(use())


def test_item_larger_than_an_answer_is_refused(engine: Engine, user: str) -> None:
    async def use() -> None:
        async with async_client(engine) as client:
            session = RecallSession("s1", client, user)
            await session.add_items([{"role": "user", "content": "x" * 1_048_300}])
            with pytest.raises(UsageError, match=r"max\.message\.bytes"):
                await session.get_items()

    asyncio.run(use())


def test_write_after_an_unanswered_query_is_not_sent(
    engine: Engine, deserted: Engine, client: RecallClient, user: str
) -> None:
    with engine.client(query_topic=deserted.topics.queries, timeout_s=0.5) as deaf, pytest.raises(NothingWritten):
        RecallStore(deaf).put((user,), "food", {"text": "likes cake"})
    client.add("a later write", user=user)
    assert [memory.content for memory in client.search("cake", user=user)] == ["a later write"]
