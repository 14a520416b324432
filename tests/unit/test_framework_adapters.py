"""Adapters to frameworks, each in a small real use of its library, over the engine in the same process. Over Kafka:
tests/kafka/test_clients.py."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from agents import Session, SessionSettings, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import ConfigurableField
from langgraph.store.base import PutOp
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from sqlalchemy import StaticPool
from sqlalchemy.ext.asyncio import create_async_engine

from recallflow import AsyncMemory
from recallflow import Memory as Engine
from recallflow.errors import NothingWritten, QueryTimeout, UsageError
from recallflow.integrations.langchain import RecallRetriever
from recallflow.integrations.langgraph import RecallStore, fields_of, new_id
from recallflow.integrations.openai_agents import RecallSession
from recallflow.integrations.pydantic_ai import memory_toolset

USER = "ann"
SERVICES = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md"
PEANUTS = "Ann is allergic to peanuts"


@dataclass
class Asking:
    user_id: str


@pytest.fixture(autouse=True)
def _one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_ENGINE_PARTITIONS", "1")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as memory:
        yield memory


@pytest.fixture
def client(engine: Engine) -> Iterator[Engine]:
    """Return a client that remembers nothing of the user."""
    yield engine
    engine.erase(user=USER)


@pytest.fixture(scope="module", autouse=True)
def _no_traces() -> None:
    set_tracing_disabled(True)  # they would go to a service


def texts(found: list[Document]) -> str:
    return "\n".join(one.page_content for one in found)


def test_document_has_id_tags_and_category(client: Engine) -> None:
    at = client.add(PEANUTS, user=USER, tags=["food"], category="health")
    [found] = RecallRetriever(client=client, user_id=USER).invoke("peanuts", after=at)
    assert (found.id, found.metadata["tags"], found.metadata["category"]) == (at.id, ["food"], "health")
    assert found.metadata["rank"] == 1


def test_chain_configuration_selects_the_user(client: Engine) -> None:
    asked = RecallRetriever(client=client, user_id="nobody", fields={"after": client.add(PEANUTS, user=USER)})
    retriever = asked.configurable_fields(user_id=ConfigurableField(id="user_id"))
    chain = retriever | texts
    assert asyncio.run(chain.ainvoke("peanuts", {"configurable": {"user_id": USER}})) == PEANUTS


@pytest.fixture
def store(client: Engine) -> RecallStore:
    return RecallStore(client)


VALUE = {"text": "likes tea", "score": 5, "nested": {"list": [1, None, 2**70]}, "π": [True, 0.1]}


def test_item_is_returned_unchanged_until_deleted(store: RecallStore) -> None:
    namespace = (USER, "food", "likes")
    store.put(namespace, "tea", VALUE)
    item = store.get(namespace, "tea")
    assert item is not None
    assert ((item.namespace, item.key, item.value), item.created_at) == ((namespace, "tea", VALUE), item.updated_at)
    assert [store.get((USER, "food"), "tea"), store.get(namespace, "coffee")] == [None, None]
    store.delete(namespace, "tea")
    assert store.get(namespace, "tea") is None
    store.put(namespace, "tea", {"text": "likes it again"})
    again = store.get(namespace, "tea")
    assert again is not None
    assert again.value == {"text": "likes it again"}


def test_second_put_replaces_the_value(store: RecallStore) -> None:
    store.put((USER,), "drink", {"text": "likes tea", "drink": "tea"})
    [first] = store.search((USER,))
    store.put((USER,), "drink", {"text": "likes coffee", "drink": "coffee"})
    [item] = store.search((USER,))
    assert (item.value, item.created_at) == ({"text": "likes coffee", "drink": "coffee"}, first.created_at)
    assert store.search((USER,), filter={"drink": "tea"}) == []
    assert [found.value["drink"] for found in store.search((USER,), query="likes tea")] == ["coffee"]


def test_search_applies_prefix_filter_and_offset(store: RecallStore) -> None:
    for number, colour in enumerate(("red", "green", "red")):
        store.put((USER, "a", str(number)), "k", {"text": f"a {colour} kite", "colour": colour, "number": number})
    store.put((USER, "ab"), "k", {"text": "a red kite of another", "colour": "red", "long": "x" * 600})

    def found(*prefix: str, **asked: Any) -> list[Any]:
        return [item.value.get("number") for item in store.search((USER, *prefix), **asked)]

    assert (found("a"), found("a", limit=1, offset=1)) == ([2, 1, 0], [1])
    assert found("a", filter={"colour": "red"}) == [2, 0]
    assert found("a", filter={"colour": {"$ne": "red"}, "number": {"$eq": 1}}) == [1]
    assert found("a", filter={"missing": {"$ne": 1}}) == [2, 1, 0]
    assert (set(found("a", filter={"colour": "red"}, query="kite")), found(query="a green kite")[0]) == ({0, 2}, 1)
    assert len(found(query="kite", limit=60, offset=2)) == 2
    assert found("a", filter={"number": {"$gt": 0}}) == found("a", filter={"number": {"$gte": 1}, "text": {"$ne": [1]}})
    assert found(query="kite", filter={"number": {"$lt": 1}}) == [0]
    assert found(query="kite", filter={"text": {"$gt": 1}}) == []
    store.put((USER, "a", "3"), "k", {"text": "a green kite", "number": 3}, index=False)
    assert (found("a", limit=1), found("a", query="green kite")[-1]) == ([3], 3)
    with pytest.raises(UsageError, match=r"\$lte"):
        found("a", filter={"number": {"$in": [1]}})
    assert store.search((USER,), query="green kite")[0].score is not None


def test_concurrent_new_items_read_newest_and_delete_both(client: Engine, store: RecallStore) -> None:
    for text in ("likes tea", "likes green tea"):  # written as two processes do at the same moment
        said = fields_of((USER,), "drink", {"text": text}, [])
        client.add(said["content"], user=USER, id=new_id((USER,), "drink"), metadata=said["metadata"])
    store.put((USER,), "food", {"text": "likes cake"})
    item = store.get((USER,), "drink")
    assert item is not None
    assert item.value == {"text": "likes green tea"}
    assert [found.value["text"] for found in store.search((USER,))] == ["likes cake", "likes green tea"]
    assert [found.key for found in store.search((USER,), query="tea", filter={"text": {"$ne": "likes cake"}})] == [
        "drink"
    ]
    store.delete((USER,), "drink")
    assert [store.get((USER,), "drink"), len(store.search((USER,)))] == [None, 1]


class Deaf:
    """A client whose questions time out, while its writes are stored."""

    def __init__(self, memory: Engine | AsyncMemory, unanswered: tuple[str, ...]) -> None:
        self._memory, self._unanswered = memory, unanswered

    def __getattr__(self, name: str) -> Any:
        time_out = Mock(side_effect=QueryTimeout("q", 1.0, None))
        return time_out if name in self._unanswered else getattr(self._memory, name)


def test_unanswered_look_before_a_write_writes_nothing(client: Engine, store: RecallStore) -> None:
    store.put((USER,), "drink", {"text": "likes tea"})
    deaf: Any = Deaf(client, ("search", "each"))
    with pytest.raises(NothingWritten):
        RecallStore(deaf).put((USER,), "food", {"text": "likes cake"})
    with pytest.raises(NothingWritten):
        RecallStore(deaf).delete((USER,), "drink")
    assert [item.value["text"] for item in store.search((USER,))] == ["likes tea"]


def test_user_label_and_indexed_fields_are_configurable(client: Engine) -> None:
    store = RecallStore(client, user_label=1, fields=["summary"])
    store.put(("memories", USER), "k", {"summary": PEANUTS, "text": "It rains in Porto"})
    store.put(("memories", USER), "l", {"summary": "", "text": "The cat sleeps"}, index=["text"])
    assert [memory.content for memory in client.search("peanuts", user=USER, k=1)] == [PEANUTS]
    assert [item.key for item in store.search(("memories", USER), query="cat sleeps", limit=1)] == ["l"]


MANY = {f"field {number}": number for number in range(80)}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda store: store.search(()), "no label 0"),
        (lambda store: store.list_namespaces(prefix=("*",)), "no label 0"),
        (lambda store: store.put((USER,), "k", {"a": "b"}, ttl=5), "TTL is not supported"),
        (lambda store: store.batch([PutOp((USER,), "k", {"a": "b"}, ttl=5)]), "no TTL"),
        (lambda store: store.put((USER,), "k", MANY), "texts, numbers and truth values at its top"),
        (lambda store: store.put((USER, "x" * 512), "k", {"a": "b"}), "512 characters"),
    ],
    ids=["all", "wildcard", "ttl", "batched-ttl", "fields", "namespace"],
)
def test_unsupported_store_call_is_refused(store: RecallStore, wrong: Any, said: str) -> None:
    with pytest.raises((UsageError, NotImplementedError), match=said):
        wrong(store)


ITEMS: list[Any] = [
    {"role": "user", "content": "hello"},
    {"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "x:"}]},
    {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "…"},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"big": 1180591620717411303424}'},
    {"type": "function_call_output", "call_id": "c1", "output": "42"},
    {
        "type": "message", "id": "m1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "it is 42", "annotations": []}],
    },
    {"type": "function_call_output", "call_id": "c2", "output": " "},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": ""},
]  # fmt: skip


def test_session_items_of_every_kind_keep_order_and_content() -> None:
    async def use() -> None:
        async with AsyncMemory() as client:
            session, other = RecallSession("s1", client, USER), RecallSession("s2", client, USER)
            assert isinstance(session, Session)
            assert (await session.get_items(), await session.pop_item()) == ([], None)
            await session.add_items(ITEMS)
            await other.add_items([ITEMS[0]])
            assert await session.get_items() == ITEMS
            assert await session.get_items(2) == ITEMS[-2:]
            limited = RecallSession("s1", client, USER, SessionSettings(limit=3))
            assert await limited.get_items() == ITEMS[-3:]
            assert [await session.pop_item(), await session.pop_item()] == [ITEMS[-1], ITEMS[-2]]
            assert await session.get_items() == ITEMS[:-2]
            await session.add_items([ITEMS[0]])
            assert await session.get_items() == [*ITEMS[:-2], ITEMS[0]]
            await session.clear_session()
            assert (await session.get_items(), await other.get_items()) == ([], [ITEMS[0]])

    asyncio.run(use())


NUMBERS = [str(number) for number in range(10)]


def test_long_session_is_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.integrations.openai_agents.PAGE", 3)

    async def use() -> list[Any]:
        async with AsyncMemory() as client:
            session = RecallSession("s1", client, USER)
            await session.add_items([{"role": "user", "content": number} for number in NUMBERS])
            return [[item["content"] for item in await session.get_items(limit)] for limit in (None, 7, 0)]  # type: ignore[typeddict-item]

    assert asyncio.run(use()) == [NUMBERS, NUMBERS[3:], []]


def user_of(asking: Asking) -> str:
    return asking.user_id


def test_model_tools_add_search_and_forget() -> None:
    searched: list[Any] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        searched[:] = [part.content for part in returned if part.tool_name == "search_memory"]
        search = ToolCallPart("search_memory", {"query": "What can't Ann eat?"})
        match len(returned):
            case 0:
                return ModelResponse([ToolCallPart("add_memory", {"content": PEANUTS})])
            case 1 | 3:
                return ModelResponse([search])
            case 2:
                return ModelResponse([ToolCallPart("forget_memory", {"memory_id": searched[0][0].id})])
        assert {tool.name for tool in info.function_tools} == {"search_memory", "add_memory", "forget_memory"}
        return ModelResponse([TextPart("done")])

    async def run() -> str:
        async with AsyncMemory() as client:
            toolset = memory_toolset(client, user_of)
            agent = Agent(FunctionModel(model), deps_type=Asking, toolsets=[toolset])
            return (await agent.run("Remember me", deps=Asking(USER))).output

    assert (asyncio.run(run()), [[one.content for one in found] for found in searched]) == ("done", [[PEANUTS], []])


def test_invalid_tool_call_is_explained_to_the_model() -> None:
    told: list[str] = []

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        told[:] = [str(part.content) for part in returned]
        return ModelResponse([TextPart("done") if told else ToolCallPart("search_memory", {"query": " "})])

    async def run() -> None:
        async with AsyncMemory() as client:
            toolset = memory_toolset(client, user_of)
            await Agent(FunctionModel(model), deps_type=Asking, toolsets=[toolset]).run("", deps=Asking(USER))

    asyncio.run(run())
    assert told == ["query: is blank"]


Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a snippet of the documentation with local clients, and return its globals."""

    def ran(extra: str) -> dict[str, Any]:
        [snippet] = re.findall(rf"^```python {extra}\n(.*?)^```", SERVICES.read_text(), re.MULTILINE | re.DOTALL)
        for package in ("recallflow", "recallflow.client"):  # wherever a page has it from
            monkeypatch.setattr(f"{package}.RecallClient", lambda *_: Engine())
            monkeypatch.setattr(f"{package}.AsyncRecallClient", lambda *_: AsyncMemory())
        defined: dict[str, Any] = {"__name__": extra}
        exec(compile(snippet, extra, "exec", dont_inherit=True), defined)
        return defined

    return ran


def test_documented_graph_prints_its_output(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("langgraph")
    assert capsys.readouterr().out == "['I am allergic to peanuts']\n"


def test_documented_chain_answers(run: Run) -> None:
    model = FakeListChatModel(responses=["Peanuts"])
    assert run("langchain")["answer"](model, "What can't Ann eat?") == "Peanuts"


def test_documented_session_answers(run: Run) -> None:
    model = ScriptedModel([[assistant_message("Noted")], [assistant_message("Peanuts")]])
    assert (asyncio.run(run("openai-agents")["talk"](model)), len(model.calls[-1].input)) == ("Peanuts", 3)


# As above.
@pytest.mark.filterwarnings("ignore:The `__fields__` attribute is deprecated")
@pytest.mark.filterwarnings("ignore:The `__fields_set__` attribute is deprecated")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute on the instance is deprecated")
def test_documented_block_answers(run: Run) -> None:
    given: list[str] = []

    def answer(messages: list[ChatMessage], **_: Any) -> ChatMessage:
        given.extend(str(message.content) for message in messages)
        return ChatMessage(role="assistant", content="Peanuts")

    async def talk() -> str:
        engine = create_async_engine("sqlite+aiosqlite:///:memory:", poolclass=StaticPool)
        said = await run("llama-index")["talk"](MockFunctionCallingLLM(response_generator=answer), engine)
        await engine.dispose()
        return str(said)

    assert asyncio.run(talk()) == "Peanuts"
    assert "I am allergic to peanuts" in given[0]


def test_documented_tools_store(run: Run) -> None:
    assert "stored" in asyncio.run(run("pydantic-ai")["talk"](TestModel(call_tools=["add_memory"])))
