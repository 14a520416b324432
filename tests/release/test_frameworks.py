"""Tests that frameworks have of their own interfaces, against our adapters."""

import asyncio
import importlib.util
import inspect
import itertools
import subprocess
import sys
import tarfile
import types
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from recallflow import Memory
from recallflow.integrations.langgraph import RecallStore
from tests.kafka.engine import Engine
from tests.release.conftest import ROOT, Make

pytestmark = pytest.mark.index

# Tests of LangGraph's InMemoryStore that RecallStore does not pass, with the reason (docs/how-to/frameworks.md).
DEVIATIONS = {
    "test_vector_store_initialization": "the engine has the embedder, so the store has no index_config",
    "test_embed_with_path": "a score is the engine's, and not the similarity of one field's vector",
}


def load(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Return LangGraph's tests of stores, from the source archive of the installed version, over RecallStore."""
    package = f"langgraph-checkpoint=={version('langgraph-checkpoint')}"
    options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(tmp_path))
    subprocess.run([sys.executable, "-m", "pip", "download", *options, package], check=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    [folder] = tmp_path.glob("*/tests")
    monkeypatch.setitem(sys.modules, "pytest_mock", types.SimpleNamespace(MockerFixture=object))
    embeddings = load("embed_test_utils", folder / "embed_test_utils.py")
    monkeypatch.setitem(sys.modules, "tests.embed_test_utils", embeddings)
    monkeypatch.setenv("RECALLFLOW_ENGINE_PARTITIONS", "1")
    module = load("langgraph_test_store", folder / "test_store.py")
    with Memory() as engine:
        users = itertools.count()

        class Store(RecallStore):
            def __init__(self, index: object = None) -> None:  # noqa: ARG002
                super().__init__(engine, user=f"user {next(users)}")

        monkeypatch.setattr(module, "InMemoryStore", Store)
        yield module


class Mocker:
    """The calls of pytest-mock that the suite uses."""

    stub = Mock

    @staticmethod
    def spy(owner: Any, name: str) -> Any:
        original = getattr(owner, name)
        return patch.object(owner, name, autospec=True, side_effect=original).start()


def calls(function: Any) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each case of a test."""
    axes = []
    for mark in (mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"):
        names = mark.args[0].split(",")
        axes.append([dict(zip(names, [one] if len(names) == 1 else one, strict=True)) for one in mark.args[1]])
    for chosen in itertools.product(*axes):
        yield dict(itertools.chain.from_iterable(one.items() for one in chosen))


def failure(suite: Any, function: Any, arguments: dict[str, Any]) -> str:
    fixtures = {"mocker": Mocker, "fake_embeddings": suite.CharacterEmbeddings(dims=500)}
    named = {name: one for name, one in fixtures.items() if name in inspect.signature(function).parameters}
    try:
        done = function(**named, **arguments)
        if inspect.iscoroutine(done):
            asyncio.run(done)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    finally:
        patch.stopall()
    return ""


def test_store_passes_the_tests_of_langgraph(suite: types.ModuleType) -> None:
    tests = {name: one for name, one in vars(suite).items() if name.startswith("test_")}
    failed = {
        name: error for name, one in tests.items() for given in calls(one) if (error := failure(suite, one, given))
    }
    assert len(tests) > 30
    assert failed.keys() == DEVIATIONS.keys(), failed


FLINK_AGENTS = """
import sys
import recallflow

servers, memory_topic, query_topic, response_topic = sys.argv[1:]
topics = {"memory_topic": memory_topic, "query_topic": query_topic, "response_topic": response_topic}
connect = recallflow.RecallClient
recallflow.RecallClient = lambda *_: connect(servers, "flink", timeout_s=30, **topics)

from flink_agents.runtime.memory.mem0.tests import test_mem0_long_term_memory as suite
from recallflow.integrations.flink_agents import RecallLongTermMemory

with recallflow.RecallClient() as client:
    tests = [name for name in vars(suite) if name.startswith("test_") and "token" not in name]
    for name in tests:  # the others are about Mem0's use of a language model
        try:
            getattr(suite, name)(RecallLongTermMemory(client=client, user_id=name))
        except Exception as error:
            print(name, error)
    print(len(tests))
    memory = RecallLongTermMemory(client=client, user_id="kim")
    drinks, foods = memory.get_memory_set("drinks"), memory.get_memory_set("foods")
    ids = drinks.add(["likes tea", "likes coffee"], {"at": "home"})
    foods.delete(ids)
    print(foods.get(ids), [(item.value, item.additional_metadata) for item in drinks.get([ids[1], "unknown"])])
    print(len(drinks.search("tea", limit=100, filters={"at": ["home", "work"]})), drinks.get(filters={"at": "work"}))
    try:
        drinks.add(["likes milk"], [{}, {}])
    except recallflow.UsageError as error:
        print(error)
    print(memory.delete_memory_set("drinks"), memory.delete_memory_set("drinks"))

import job
"""


def test_flink_agents_memory_passes_its_tests_and_documented_job_runs(
    environment: Make, wheels: dict[str, Path], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLINK_AGENTS_SKIP_JAR_DOWNLOAD", "1")  # of its runtime on a cluster
    client = f"recallflow-client[flink-agents] @ {wheels['recallflow-client'].as_uri()}"
    own = environment(client, "apache-flink>=2.2,<2.3", "pytest")
    page = (ROOT / "docs" / "how-to" / "frameworks.md").read_text()
    (tmp_path / "job.py").write_text(page.partition("```python flink-agents\n")[2].partition("```")[0])
    (tmp_path / "memory.py").write_text(FLINK_AGENTS)
    topics = engine.topics
    names = (engine.broker.bootstrap_servers, topics.memory, topics.queries, topics.responses)
    done = own.run("python", "memory.py", *names)
    assert done.stdout.splitlines() == [
        "test_switch_context 'RecallLongTermMemory' object has no attribute 'switch_context'", "10",
        "[] [('likes coffee', {'at': 'home'})]", "2 []", "1 items have 2 metadatas; give one for each, or one for all",
        "True False", "['I am allergic to peanuts']",
    ], done.stderr  # fmt: skip
