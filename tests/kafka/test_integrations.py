"""Adapters to frameworks, `Memory`, MCP and mem0's client before a real broker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recallflow.client import AsyncRecallClient, RecallClient
from recallflow.credentials import ApiKeyText
from recallflow.errors import UsageError
from recallflow.integrations.langgraph import RecallStore
from recallflow.integrations.openai_agents import RecallSession
from tests.kafka.engine import Engine
from tests.kafka.harness import GIVE_UP_S, Start
from tests.unit.services.mcp_calls import call, over_stdio, run, text
from tests.unit.services.mem0_clients import address_of, import_mem0


def async_client(engine: Engine) -> AsyncRecallClient:
    return AsyncRecallClient(engine.broker.bootstrap_servers, "acme", timeout_s=30.0, **engine.named)  # type: ignore[arg-type]


@pytest.fixture
def client(engine: Engine) -> Iterator[RecallClient]:
    with engine.client() as client:
        yield client


def test_store_reads_its_own_writes(client: RecallClient, user: str) -> None:
    store = RecallStore(client)
    for drink in ("likes tea", "likes coffee"):
        store.put((user, "food"), "drink", {"text": drink})
    item = store.get((user, "food"), "drink")
    assert item is not None
    assert item.value == {"text": "likes coffee"}
    assert [found.value["text"] for found in store.search((user,), query="coffee")] == ["likes coffee"]
    assert store.list_namespaces(prefix=(user,)) == [(user, "food")]
    store.delete((user, "food"), "drink")
    assert store.search((user,)) == []


def test_item_larger_than_an_answer_is_refused(engine: Engine, user: str) -> None:
    async def use() -> None:
        async with async_client(engine) as client:
            session = RecallSession("s1", client, user)
            await session.add_items([{"role": "user", "content": "x" * 1_048_300}])
            with pytest.raises(UsageError, match=r"max\.message\.bytes"):
                await session.get_items()

    asyncio.run(use())


@pytest.fixture
def key(guarded_engine: Engine) -> str:
    assert guarded_engine.key is not None
    return guarded_engine.key.text()


def test_mcp_tools_find_an_added_memory(guarded_engine: Engine, key: str, tmp_path: Path) -> None:
    async def session() -> tuple[str, list[str]]:
        who = ["--tenant", "acme", "--user", "ann", "--config", str(config)]
        async with over_stdio(*guarded_engine.flags, *who, errors=tmp_path / "log") as client:
            added = await call(client, "add_memory", content="Ann's flight to Oslo leaves on 3 June.")
            found = await call(client, "search_memory", query="When does Ann fly?")
            memories = (found.structured_content or {}).get("memories", [])
            return text(added), [memory["content"] for memory in memories]

    config = tmp_path / "key.toml"
    config.write_text(f'[auth]\napi_key = "{key}"\n[serve]\ntimeout_s = {GIVE_UP_S}\n')
    added, contents = run(session)
    assert added.startswith("Remembered as ")
    assert contents == ["Ann's flight to Oslo leaves on 3 June."]


def test_mem0_client_finds_an_added_memory(guarded_engine: Engine, key: str, start: Start, tmp_path: Path) -> None:
    mem0 = import_mem0(tmp_path)
    serving = start("serve", "--port", "0", *guarded_engine.flags)
    host = f"{address_of(serving)}/mem0/acme"
    client: Any = mem0.MemoryClient(api_key=key, host=host)
    added = client.add("Bob's cat is called Miso.", user_id="bob", metadata={"pet": True})
    [found] = client.search("What is the cat's name?", filters={"user_id": "bob"})["results"]
    assert found["id"] == added["results"][0]["id"]
    assert (found["memory"], found["metadata"]) == ("Bob's cat is called Miso.", {"pet": True})
    client.update(found["id"], text="Bob's cat is called Sushi.")
    assert [one["new_memory"] for one in client.history(found["id"])][-1] == "Bob's cat is called Sushi."
    client.delete(found["id"])
    assert client.get_all(filters={"user_id": "bob"})["count"] == 0
    client.client.close()
    with httpx.Client() as http, pytest.raises(ValueError, match="API key"):
        mem0.MemoryClient(api_key=ApiKeyText.new().text(), host=host, client=http)
