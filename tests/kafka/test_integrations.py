"""Adapters to frameworks: each in a small real use of its library, over a real broker and a running main flow."""

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest
from agents import Agent as Agents
from agents import Runner, Session, SessionSettings, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnablePassthrough
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import GetOp, PutOp, SearchOp
from llama_index.core.agent import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from sqlalchemy import StaticPool
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.broker import Cluster
from benchmarks.kafka_flow import create, own_topics, running_flow
from recallflow.client import AsyncRecallClient, RecallClient
from recallflow.errors import NothingWritten, QueryTimeout, UsageError
from recallflow.integrations.langchain import RecallRetriever
from recallflow.integrations.langgraph import RecallStore
from recallflow.integrations.langgraph_items import fields_of, new_id
from recallflow.integrations.llama_index import RecallMemoryBlock
from recallflow.integrations.openai_agents import RecallSession
from recallflow.integrations.pydantic_ai import memory_toolset

TENANT = "acme"
SERVICES = Path(__file__).parents[2] / "docs" / "services.md"
PEANUTS = "Ann is allergic to peanuts"


@dataclass
class Asking:
    """Whose run it is."""

    user_id: str


@pytest.fixture(scope="module")
def connection(broker: Cluster) -> Iterator[dict[str, Any]]:
    """What clients are made with: topics that a main flow of their own answers on."""
    topics = own_topics()
    create(broker, topics, partitions=2)
    names = {"memory": "memory", "queries": "query", "responses": "response", "control": "control"}
    named = {f"{argument}_topic": getattr(topics, name) for name, argument in names.items()}
    with running_flow(broker, topics, TENANT):
        yield {"bootstrap_servers": broker.bootstrap_servers, "tenant": TENANT, "timeout_s": 30.0} | named


@pytest.fixture(scope="module")
def client(connection: dict[str, Any]) -> Iterator[RecallClient]:
    with RecallClient(**connection) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def _no_traces() -> None:
    set_tracing_disabled(True)  # they would go to a service


@pytest.fixture
def user() -> str:
    """A user of this test's own."""
    return f"user-{uuid.uuid4().hex[:12]}"


# ---------------------------------------------------------------------- LangChain


def texts(found: list[Document]) -> str:
    return "\n".join(one.page_content for one in found)


def test_a_retriever_is_the_context_of_a_chain(client: RecallClient, user: str) -> None:
    client.add("the sky over Porto was grey", user=user)
    at = client.add(PEANUTS, user=user, tags=["food"])
    retriever = RecallRetriever(client=client, user_id=user, k=1, fields={"after": at})
    prompt = ChatPromptTemplate.from_template("{context}\n{question}")
    chain = {"context": retriever | texts, "question": RunnablePassthrough()} | prompt
    assert chain.invoke("What can't Ann eat?").to_string() == f"Human: {PEANUTS}\nWhat can't Ann eat?"


def test_a_document_has_the_memory_s_id_and_what_is_said_of_it(client: RecallClient, user: str) -> None:
    at = client.add(PEANUTS, user=user, tags=["food"], category="health")
    [found] = RecallRetriever(client=client, user_id=user).invoke("peanuts", after=at)
    assert (found.id, found.metadata["tags"], found.metadata["category"]) == (at.id, ["food"], "health")
    assert found.metadata["rank"] == 1


def test_a_chain_s_configuration_says_whose_memory_it_is(client: RecallClient, user: str) -> None:
    asked = RecallRetriever(client=client, user_id="nobody", fields={"after": client.add(PEANUTS, user=user)})
    retriever = asked.configurable_fields(user_id=ConfigurableField(id="user_id"))
    chain = retriever | texts
    assert asyncio.run(chain.ainvoke("peanuts", {"configurable": {"user_id": user}})) == PEANUTS


# ---------------------------------------------------------------------- LangGraph


class Talk(TypedDict):
    question: str
    answer: str


def test_a_graph_remembers_in_one_run_and_answers_in_another(client: RecallClient, user: str) -> None:
    def listen(state: Talk, runtime: Runtime[Asking]) -> dict[str, str]:
        assert runtime.store is not None
        runtime.store.put((runtime.context.user_id, "told"), "latest", {"text": state["question"]})
        return {"answer": "noted"}

    def answer(state: Talk, runtime: Runtime[Asking]) -> dict[str, str]:
        assert runtime.store is not None
        [best] = runtime.store.search((runtime.context.user_id,), query=state["question"], limit=1)
        return {"answer": best.value["text"]}

    def route(state: Talk) -> str:
        return "answer" if state["question"].endswith("?") else "listen"

    builder = StateGraph(Talk, context_schema=Asking).add_node(listen).add_node(answer)
    graph = builder.add_conditional_edges(START, route).compile(store=RecallStore(client))
    talked = [
        graph.invoke(Talk(question=said, answer=""), context=Asking(user)) for said in (PEANUTS, "What can't Ann eat?")
    ]
    assert [state["answer"] for state in talked] == ["noted", PEANUTS]


@pytest.fixture
def store(client: RecallClient) -> RecallStore:
    return RecallStore(client)


VALUE = {"text": "likes tea", "score": 5, "nested": {"list": [1, None, 2**70]}, "π": [True, 0.1]}


def test_an_item_comes_back_as_it_was_put_and_is_gone_once_deleted(store: RecallStore, user: str) -> None:
    namespace = (user, "food", "likes")
    store.put(namespace, "tea", VALUE)
    item = store.get(namespace, "tea")
    assert item is not None
    assert (item.namespace, item.key, item.value) == (namespace, "tea", VALUE)
    assert item.created_at == item.updated_at
    assert [store.get((user, "food"), "tea"), store.get(namespace, "coffee")] == [None, None]

    store.delete(namespace, "tea")
    assert store.get(namespace, "tea") is None
    store.put(namespace, "tea", {"text": "likes it again"})
    again = store.get(namespace, "tea")
    assert again is not None
    assert again.value == {"text": "likes it again"}


def test_a_put_to_a_key_that_is_there_replaces_what_it_says(store: RecallStore, user: str) -> None:
    for drink in ("tea", "coffee"):
        store.put((user,), "drink", {"text": f"likes {drink}", "drink": drink})
    [item] = store.search((user,))
    assert item.value == {"text": "likes coffee", "drink": "coffee"}
    assert item.created_at < item.updated_at
    assert store.search((user,), filter={"drink": "tea"}) == []
    assert [found.value["drink"] for found in store.search((user,), query="likes tea")] == ["coffee"]


def test_a_search_finds_what_is_below_a_prefix_and_fits_the_filter(store: RecallStore, user: str) -> None:
    for number, colour in enumerate(("red", "green", "red")):
        store.put((user, "a", str(number)), "k", {"text": f"a {colour} kite", "colour": colour, "number": number})
    store.put((user, "ab"), "k", {"text": "a red kite of another", "colour": "red", "long": "x" * 600})

    def found(*prefix: str, **asked: Any) -> list[Any]:
        return [item.value.get("number") for item in store.search((user, *prefix), **asked)]

    assert found("a") == [2, 1, 0]
    assert found("a", limit=1, offset=1) == [1]
    assert found("a", filter={"colour": "red"}) == [2, 0]
    assert found("a", filter={"colour": {"$ne": "red"}, "number": {"$eq": 1}}) == [1]
    assert found("a", filter={"missing": {"$ne": 1}}) == [2, 1, 0]
    assert set(found("a", filter={"colour": "red"}, query="kite")) == {0, 2}
    assert found(query="a green kite")[0] == 1
    assert len(found(query="kite", limit=3, offset=2)) == 2
    assert store.search((user,), query="green kite")[0].score is not None


def test_namespaces_of_a_user_are_listed(store: RecallStore, user: str) -> None:
    for labels in (("a", "v1"), ("a", "b", "v1"), ("a", "b", "v2"), ("c", "v1")):
        store.put((user, *labels), "k", {"text": "x"})

    def listed(*prefix: str, **asked: Any) -> list[tuple[str, ...]]:
        return [labels[1:] for labels in store.list_namespaces(prefix=(user, *prefix), **asked)]

    assert listed() == [("a", "b", "v1"), ("a", "b", "v2"), ("a", "v1"), ("c", "v1")]
    assert listed("a", suffix=("v1",)) == [("a", "b", "v1"), ("a", "v1")]
    assert listed("*", "b") == [("a", "b", "v1"), ("a", "b", "v2")]
    assert listed(max_depth=2, limit=1, offset=1) == [("c",)]


def test_of_an_item_that_two_processes_made_at_once_the_newer_one_is_read_and_both_are_forgotten(
    client: RecallClient, store: RecallStore, user: str
) -> None:
    for text in ("likes tea", "likes green tea"):
        said = fields_of((user,), "drink", {"text": text}, [])
        client.add(said["content"], user=user, id=new_id((user,), "drink"), metadata=said["metadata"])
    store.put((user,), "food", {"text": "likes cake"})
    item = store.get((user,), "drink")
    assert item is not None
    assert item.value == {"text": "likes green tea"}
    assert [found.value["text"] for found in store.search((user,))] == ["likes cake", "likes green tea"]
    assert [found.key for found in store.search((user,), query="tea", filter={"text": {"$ne": "likes cake"}})] == [
        "drink"
    ]
    store.delete((user,), "drink")
    assert [store.get((user,), "drink"), len(store.search((user,)))] == [None, 1]


class Unanswered:
    """A client of whom nothing is told in time once a write is on its way."""

    def __init__(self, client: RecallClient) -> None:
        self.forget, self.all = client.forget, client.all

    def search(self, *_: Any, **__: Any) -> Any:
        raise QueryTimeout("q", 1.0, None)


def test_a_delete_that_is_not_known_to_be_applied_in_time_forgets_all_the_same(
    client: RecallClient, store: RecallStore, user: str
) -> None:
    for text in ("likes tea", "likes green tea"):
        said = fields_of((user,), "drink", {"text": text}, [])
        client.add(said["content"], user=user, id=new_id((user,), "drink"), metadata=said["metadata"])
    store.put((user,), "food", {"text": "likes cake"})
    with pytest.raises(QueryTimeout):
        RecallStore(Unanswered(client)).delete((user,), "drink")  # type: ignore[arg-type]
    store.put((user,), "food", {"text": "likes pie"})  # whoever sees it sees what came before
    assert [item.value["text"] for item in store.search((user,))] == ["likes pie"]


@pytest.fixture
def unheard(connection: dict[str, Any], broker: Cluster) -> dict[str, Any]:
    """What clients are made with whose questions no engine reads; what they write is read."""
    topics = own_topics()
    create(broker, topics, partitions=1)
    return connection | {"query_topic": topics.queries, "timeout_s": 1.0}


def test_what_looks_before_it_writes_says_that_nothing_was_written_where_it_is_not_told(
    connection: dict[str, Any], unheard: dict[str, Any], client: RecallClient, store: RecallStore, user: str
) -> None:
    async def pop() -> Any:
        async with AsyncRecallClient(**unheard) as deaf:
            return await RecallSession("s1", deaf, user).pop_item()

    async def items() -> Any:
        async with AsyncRecallClient(**connection) as hears:
            session = RecallSession("s1", hears, user)
            if not await session.get_items():
                await session.add_items([{"role": "user", "content": "hello"}])
            return await session.get_items()

    store.put((user,), "drink", {"text": "likes tea"})
    there = asyncio.run(items())
    with RecallClient(**unheard) as deaf:
        for write in (
            lambda: RecallStore(deaf).put((user,), "food", {"text": "likes cake"}),
            lambda: RecallStore(deaf).delete((user,), "drink"),
            lambda: asyncio.run(pop()),
        ):
            with pytest.raises(NothingWritten, match=r"nothing was written, do it again: .* no response to query"):
                write()
    client.add(PEANUTS, user=user)
    assert len(client.search("tea", user=user, k=9)) == 3
    assert [item.value["text"] for item in store.search((user,))] == ["likes tea"]
    assert asyncio.run(items()) == there


def test_operations_in_one_batch_see_each_other_and_an_async_graph_s_too(store: RecallStore, user: str) -> None:
    async def both() -> list[Any]:
        return await store.abatch(
            [
                PutOp((user,), "k", {"text": "one"}),
                GetOp((user,), "k"),
                PutOp((user,), "k", None),
                SearchOp((user,)),
            ]
        )

    _, got, _, found = asyncio.run(both())
    assert (got.value, found) == ({"text": "one"}, [])


def test_another_label_may_be_the_user_and_fields_say_what_is_read(client: RecallClient, user: str) -> None:
    store = RecallStore(client, user_label=1, fields=["summary"])
    store.put(("memories", user), "k", {"summary": PEANUTS, "text": "It rains in Porto"})
    store.put(("memories", user), "l", {"summary": "", "text": "The cat sleeps"}, index=["text"])
    assert [memory.content for memory in client.search("peanuts", user=user, k=1)] == [PEANUTS]
    assert [item.key for item in store.search(("memories", user), query="cat sleeps", limit=1)] == ["l"]


MANY = {f"field {number}": number for number in range(80)}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda store, _: store.search(()), "names no user"),
        (lambda store, _: store.list_namespaces(prefix=("*",)), "names no user"),
        (lambda store, user: store.search((user,), query="tea", limit=51), "the 50 best items"),
        (lambda store, user: store.search((user,), filter={"score": {"$gt": 1}}), "with \\$eq or \\$ne"),
        (lambda store, user: store.search((user,), filter={"tags": ["a"]}), "with \\$eq or \\$ne"),
        (lambda store, user: store.put((user,), "k", {"a": "b"}, index=False), "no search finds"),
        (lambda store, user: store.put((user,), "k", {"a": "b"}, ttl=5), "TTL is not supported"),
        (lambda store, user: store.batch([PutOp((user,), "k", {"a": "b"}, ttl=5)]), "no TTL"),
        (lambda store, user: store.put((user,), "k", MANY), "texts, numbers and truth values at its top"),
        (lambda store, user: store.put((user, "x" * 512), "k", {"a": "b"}), "512 characters"),
    ],
    ids=["all", "wildcard", "many", "greater", "list", "unindexed", "ttl", "batched-ttl", "fields", "namespace"],
)
def test_what_a_store_does_not_have_is_refused(store: RecallStore, user: str, wrong: Any, said: str) -> None:
    with pytest.raises((UsageError, NotImplementedError), match=said):
        wrong(store, user)


# ---------------------------------------------------------------------- OpenAI Agents


def test_a_runner_goes_on_with_the_session_of_an_earlier_run(connection: dict[str, Any], user: str) -> None:
    model = ScriptedModel(
        [
            [function_call("locker", {"number": 7}, call_id="c1")],
            [assistant_message("It is open")],
            [assistant_message("You asked for locker 7")],
        ]
    )

    @function_tool
    def locker(number: int) -> str:
        """Opens a locker."""
        return f"locker {number} is open"

    agent = Agents(name="porter", model=model, tools=[locker])

    async def talk() -> tuple[str, str]:
        async with AsyncRecallClient(**connection) as client:
            for said in ("Open locker 7", "What did I ask for?"):
                ran = await Runner.run(agent, said, session=RecallSession("s1", client, user))
            found = await client.search("locker", user=user, k=1, filters={"roles": ["tool"]})
            return ran.final_output, found[0].content

    assert asyncio.run(talk()) == ("You asked for locker 7", "locker 7 is open")
    kinds = [item.get("type", item.get("role")) for item in model.calls[-1].input]
    assert kinds == ["user", "function_call", "function_call_output", "message", "user"]


ITEMS: list[Any] = [
    {"role": "user", "content": "hello"},
    {"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "x:"}]},
    {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "…"},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"big": 1180591620717411303424}'},
    {"type": "function_call_output", "call_id": "c1", "output": "42"},
    {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "it is 42", "annotations": []}],
    },
    {"role": "assistant", "content": ""},
]


def test_items_of_every_kind_come_back_in_order_as_they_went_in(connection: dict[str, Any], user: str) -> None:
    async def use() -> None:
        async with AsyncRecallClient(**connection) as client:
            session, other = RecallSession("s1", client, user), RecallSession("s2", client, user)
            assert isinstance(session, Session)
            assert (await session.get_items(), await session.pop_item()) == ([], None)
            await session.add_items(ITEMS)
            await other.add_items([ITEMS[0]])
            assert await session.get_items() == ITEMS
            assert await session.get_items(2) == ITEMS[-2:]
            limited = RecallSession("s1", client, user, SessionSettings(limit=3))
            assert await limited.get_items() == ITEMS[-3:]

            assert [await session.pop_item(), await session.pop_item()] == [ITEMS[-1], ITEMS[-2]]
            assert await session.get_items() == ITEMS[:-2]
            await session.add_items([ITEMS[0]])
            assert await session.get_items() == [*ITEMS[:-2], ITEMS[0]]
            await session.clear_session()
            assert (await session.get_items(), await other.get_items()) == ([], [ITEMS[0]])

    asyncio.run(use())


NUMBERS = [str(number) for number in range(10)]


def test_a_long_session_is_read_in_pages(
    connection: dict[str, Any], user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recallflow.integrations.openai_agents.PAGE", 3)

    async def use() -> list[Any]:
        async with AsyncRecallClient(**connection) as client:
            session = RecallSession("s1", client, user)
            await session.add_items([{"role": "user", "content": number} for number in NUMBERS])
            return [[item["content"] for item in await session.get_items(limit)] for limit in (None, 7, 0)]  # type: ignore[typeddict-item]

    assert asyncio.run(use()) == [NUMBERS, NUMBERS[3:], []]


def test_an_item_that_its_answer_has_no_room_for_is_not_given_in_part(connection: dict[str, Any], user: str) -> None:
    async def use() -> None:
        async with AsyncRecallClient(**connection) as client:
            session = RecallSession("s1", client, user)
            await session.add_items([{"role": "user", "content": "x" * 1_048_300}])
            with pytest.raises(UsageError, match="larger than its response topic takes"):
                await session.get_items()

    asyncio.run(use())


# ---------------------------------------------------------------------- LlamaIndex


# LlamaIndex looks at every attribute of an agent, those too that pydantic keeps for old callers.
@pytest.mark.filterwarnings("ignore:The `__fields__` attribute is deprecated")
@pytest.mark.filterwarnings("ignore:The `__fields_set__` attribute is deprecated")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute on the instance is deprecated")
def test_an_agent_is_given_what_the_history_has_no_room_for(connection: dict[str, Any], user: str) -> None:
    given: list[list[ChatMessage]] = []

    def answer(messages: list[ChatMessage], **_: Any) -> ChatMessage:
        given.append(messages)
        return ChatMessage(role="assistant", content="I see.")

    async def talk() -> None:
        async with AsyncRecallClient(**connection) as client:
            block = RecallMemoryBlock(client=client, user_id=user, k=1)
            engine = create_async_engine("sqlite+aiosqlite:///:memory:", poolclass=StaticPool)
            memory = Memory.from_defaults(
                "s1", token_limit=120, token_flush_size=20, memory_blocks=[block], async_engine=engine
            )
            agent = FunctionAgent(llm=MockFunctionCallingLLM(response_generator=answer), tools=[])
            for said in (PEANUTS, "It rains in Porto. " * 8, "The cat sleeps. " * 8, "What can't Ann eat?"):
                await agent.run(said, memory=memory)
            history = [message.content for message in await memory.sql_store.get_messages("s1")]
            await engine.dispose()
            assert PEANUTS not in history

    asyncio.run(talk())
    assert PEANUTS in str(given[-1][0].content)


# ---------------------------------------------------------------------- pydantic-ai


def user_of(asking: Asking) -> str:
    return asking.user_id


def test_a_model_adds_to_searches_and_forgets_from_its_user_s_memory(connection: dict[str, Any], user: str) -> None:
    searched: list[Any] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Adds a fact, searches it, forgets it and searches once more."""
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
        async with AsyncRecallClient(**connection) as client:
            toolset = memory_toolset(client, user_of)
            agent = Agent(FunctionModel(model), deps_type=Asking, toolsets=[toolset])
            return (await agent.run("Remember me", deps=Asking(user))).output

    assert asyncio.run(run()) == "done"
    assert [[one.content for one in found] for found in searched] == [[PEANUTS], []]


def test_a_tool_says_what_is_wrong_with_a_call_to_the_model(connection: dict[str, Any], user: str) -> None:
    told: list[str] = []

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        told[:] = [str(part.content) for part in returned]
        return ModelResponse([TextPart("done") if told else ToolCallPart("search_memory", {"query": " "})])

    async def run() -> None:
        async with AsyncRecallClient(**connection) as client:
            toolset = memory_toolset(client, user_of)
            await Agent(FunctionModel(model), deps_type=Asking, toolsets=[toolset]).run("", deps=Asking(user))

    asyncio.run(run())
    assert told == ["query: is blank"]


# ---------------------------------------------------------------------- the documentation


Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a snippet of the documentation as it stands, but for the address, and gives what it defines."""

    def ran(extra: str) -> dict[str, Any]:
        [snippet] = re.findall(rf"^```python {extra}\n(.*?)^```", SERVICES.read_text(), re.MULTILINE | re.DOTALL)
        own = connection | {"environment": extra}
        for package in ("recallflow", "recallflow.client"):  # wherever a page has it from
            monkeypatch.setattr(f"{package}.RecallClient", lambda *_: RecallClient(**own))
            monkeypatch.setattr(f"{package}.AsyncRecallClient", lambda *_: AsyncRecallClient(**own))
        defined: dict[str, Any] = {"__name__": extra}
        exec(compile(snippet, extra, "exec", dont_inherit=True), defined)
        return defined

    return ran


def test_the_graph_of_the_documentation_prints_what_it_says(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("langgraph")
    assert capsys.readouterr().out == "['I am allergic to peanuts']\n"


def test_the_chain_of_the_documentation_works(run: Run) -> None:
    model = FakeListChatModel(responses=["Peanuts"])
    assert run("langchain")["answer"](model, "What can't Ann eat?") == "Peanuts"


def test_the_session_of_the_documentation_works(run: Run) -> None:
    model = ScriptedModel([[assistant_message("Noted")], [assistant_message("Peanuts")]])
    assert asyncio.run(run("openai-agents")["talk"](model)) == "Peanuts"
    assert len(model.calls[-1].input) == 3


# As above.
@pytest.mark.filterwarnings("ignore:The `__fields__` attribute is deprecated")
@pytest.mark.filterwarnings("ignore:The `__fields_set__` attribute is deprecated")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute on the instance is deprecated")
def test_the_block_of_the_documentation_works(run: Run) -> None:
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


def test_the_tools_of_the_documentation_work(run: Run) -> None:
    assert "stored" in asyncio.run(run("pydantic-ai")["talk"](TestModel(call_tools=["add_memory"])))
