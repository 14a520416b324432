"""The MCP server and the interface of mem0 before an engine behind Kafka, where every record needs a key."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from benchmarks.broker import Cluster
from benchmarks.kafka_flow import own_topics
from recallflow.credentials import ApiKeyText
from tests.kafka.harness import FLAGS, GIVE_UP_S, SCRIPT, Deployment, watched
from tests.services.mcp_calls import call, over_stdio, run, text
from tests.services.mem0_clients import LONG_AGO_MS, address_of, import_mem0
from tests.unit.senders import api_key

KEY = ApiKeyText.new()


@pytest.fixture(scope="module")
def where(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Flags that name the broker and the topics of an engine that runs."""
    topics, folder = own_topics(), tmp_path_factory.mktemp("engine")
    broker.create_topics(dict.fromkeys((topics.memory, topics.queries, *topics.outputs()), 2))
    broker.create_topics({topics.control: 1}, {"message.timestamp.type": "CreateTime"})
    producer, event = Producer({"bootstrap.servers": broker.bootstrap_servers}), api_key(KEY)
    value = event.model_dump_json(exclude_none=True).encode()
    producer.produce(topics.control, value, event.record_key, timestamp=time.time_ns() // 1_000_000 - LONG_AGO_MS)
    assert producer.flush(GIVE_UP_S) == 0
    named = [word for flag, name in FLAGS.items() for word in (flag, getattr(topics, name))]
    with Deployment(broker, topics, folder / "s").running():
        yield ["--bootstrap-servers", broker.bootstrap_servers, *named]


def test_tools_find_what_they_added(where: list[str], tmp_path: Path) -> None:
    async def session(*flags: str) -> tuple[str, list[str]]:
        async with over_stdio(*where, "--tenant", "acme", "--user", "ann", *flags, errors=tmp_path / "log") as client:
            added = await call(client, "add_memory", content="Ann's flight to Oslo leaves on 3 June.")
            found = await call(client, "search_memory", query="When does Ann fly?")
            memories = (found.structured_content or {}).get("memories", [])
            return text(added), [memory["content"] for memory in memories]

    config = tmp_path / "key.toml"
    config.write_text(f'[auth]\napi_key = "{KEY.text()}"\n[serve]\ntimeout_s = {GIVE_UP_S}\n')
    added, contents = run(lambda: session("--config", str(config)))
    assert added.startswith("Remembered as ")
    assert "do not add it again" not in added
    assert contents == ["Ann's flight to Oslo leaves on 3 June."]
    refused, _ = run(session)  # without the key
    assert refused.startswith("unauthenticated: no credentials")


def test_mem0s_client_finds_what_it_added(where: list[str], tmp_path: Path) -> None:
    mem0 = import_mem0(tmp_path)
    words = [sys.executable, "-c", SCRIPT, "0", "serve", "--port", "0", *where]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with watched(process):
        host = f"{address_of(process)}/mem0/acme"
        client: Any = mem0.MemoryClient(api_key=KEY.text(), host=host)
        added = client.add("Bob's cat is called Miso.", user_id="bob", metadata={"pet": True})
        [found] = client.search("What is the cat's name?", filters={"user_id": "bob"})["results"]
        assert found["id"] == added["results"][0]["id"]
        assert (found["memory"], found["metadata"]) == ("Bob's cat is called Miso.", {"pet": True})
        client.update(found["id"], text="Bob's cat is called Sushi.")
        assert [one["new_memory"] for one in client.history(found["id"])][-1] == "Bob's cat is called Sushi."
        client.delete(found["id"])
        assert client.get_all(filters={"user_id": "bob"})["count"] == 0
        client.client.close()
        with httpx.Client() as http, pytest.raises(ValueError, match="no API key of this tenant"):
            mem0.MemoryClient(api_key=ApiKeyText.new().text(), host=host, client=http)
