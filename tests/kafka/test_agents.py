"""The MCP server and mem0's client before an engine on Kafka where each record needs a key."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from recallflow.credentials import ApiKeyText
from tests.kafka.engine import Engine
from tests.kafka.harness import GIVE_UP_S, Start
from tests.unit.services.mcp_calls import call, over_stdio, run, text
from tests.unit.services.mem0_clients import address_of, import_mem0


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
