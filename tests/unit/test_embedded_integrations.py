"""Adapters to frameworks over the engine in the same process; what they do at length, tests/kafka/test_integrations.py
shows over Kafka."""

import asyncio

from llama_index.core.base.llms.types import ChatMessage
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.models.test import TestModel

from recallflow import AsyncMemory, Memory
from recallflow.integrations.langchain import RecallRetriever
from recallflow.integrations.langgraph import RecallStore
from recallflow.integrations.llama_index import RecallMemoryBlock
from recallflow.integrations.openai_agents import RecallSession
from recallflow.integrations.pydantic_ai import memory_toolset

PEANUTS = "Ann is allergic to peanuts"


def test_langchain_retrieves_what_is_remembered() -> None:
    with Memory() as memory:
        added = memory.add(PEANUTS, user="ann")
        [document] = RecallRetriever(client=memory, user_id="ann", k=3).invoke("What can't Ann eat?")
        assert (document.id, document.page_content) == (added.id, PEANUTS)


def test_langgraph_stores_and_searches() -> None:
    with Memory() as memory:
        store = RecallStore(memory)
        store.put(("ann", "food"), "k", {"text": PEANUTS})
        store.put(("ann", "food"), "k", {"text": "Ann likes tea"})
        [found] = store.search(("ann",), query="tea")
        assert found.value == {"text": "Ann likes tea"}
        store.delete(("ann", "food"), "k")
        assert store.get(("ann", "food"), "k") is None


def test_an_agents_session_gives_its_items_back() -> None:
    async def items() -> list[object]:
        async with AsyncMemory() as memory:
            session = RecallSession("s1", memory, "ann")
            await session.add_items([{"role": "user", "content": PEANUTS}, {"role": "assistant", "content": "Noted"}])
            taken = await session.pop_item()
            left = await session.get_items()
            await session.clear_session()
            return [taken, left, await session.get_items()]

    assert asyncio.run(items()) == [
        {"role": "assistant", "content": "Noted"},
        [{"role": "user", "content": PEANUTS}],
        [],
    ]


def test_a_block_of_llama_index_recalls_what_it_stored() -> None:
    async def recalled() -> str:
        async with AsyncMemory() as memory:
            block = RecallMemoryBlock(client=memory, user_id="ann")
            await block.aput([ChatMessage(PEANUTS)])
            return await block.aget([ChatMessage("What can't I eat?")])

    assert asyncio.run(recalled()) == PEANUTS


def test_tools_of_pydantic_ai_search_and_add() -> None:
    async def run() -> list[str]:
        async with AsyncMemory() as memory:
            toolset: FunctionToolset[str] = memory_toolset(memory, lambda user: user)
            agent = Agent(TestModel(call_tools=["add_memory", "search_memory"]), deps_type=str, toolsets=[toolset])
            await agent.run("Remember something", deps="ann")
            return [one.content async for one in memory.each(user="ann")]

    assert len(asyncio.run(run())) == 1
