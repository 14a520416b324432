"""`Memory` and `AsyncMemory`: the engine in the program that uses it."""

import asyncio
import gc
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_type
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import recallflow
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state import lock
from recallflow.state.directory import StateDirectory
from tests import programme
from tests.event_log import hash_of
from tests.groups import share

SETTINGS = Settings(partitions=2)
ANN = {"tenant_id": "default", "user_id": "ann", "environment": "prod"}


@pytest.fixture(autouse=True)
def _few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_ENGINE_PARTITIONS", str(SETTINGS.partitions))


@pytest.fixture
def memory() -> Iterator[recallflow.Memory]:
    with recallflow.Memory() as memory:
        yield memory


Start = Callable[..., subprocess.Popen[bytes]]


def printed(process: subprocess.Popen[bytes]) -> str:
    """Return the output of a program that ends with status 0 and an empty standard error."""
    out, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")
    return bytes(out).decode()


NEVER_CLOSED = """
from recallflow import Memory
m = Memory(sys.argv[1])
m.add({"role": "user", "content": f"My number is {sys.argv[2]}"}, user="ann")
print(sorted(one.content for one in m.each(user="ann")))
"""


@pytest.mark.processes
def test_unclosed_memory_is_kept_at_exit(start: Start, tmp_path: Path) -> None:
    said = [printed(start(tmp_path / "m", number, script=NEVER_CLOSED)) for number in (1, 2)]
    assert said == ["['My number is 1']\n", "['My number is 1', 'My number is 2']\n"]


def test_without_a_path_the_memory_is_gone_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with recallflow.Memory() as memory:
        memory.add("x", user="ann")
        assert len([*tmp_path.iterdir()]) == 1
    assert [*tmp_path.iterdir()] == []
    with recallflow.Memory() as memory:
        assert len(memory.all(user="ann")) == 0


def test_collected_memory_releases_its_directory(tmp_path: Path) -> None:
    memory = recallflow.Memory(tmp_path / "m")
    engine = memory._engine
    del memory
    gc.collect()
    engine.close()  # it was told to end: this waits for it
    with recallflow.Memory(tmp_path / "m"):
        pass


def test_opening_says_nothing(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.WARNING), recallflow.Memory() as memory:
        memory.add("x", user="ann")
    assert (caplog.records, capfd.readouterr()) == ([], ("", ""))


def test_each_verb_has_a_type_and_an_outcome(memory: recallflow.Memory) -> None:
    with recallflow.Memory(tenant="acme") as of_acme:
        seen = programme.run(of_acme, "ann")
    assert (seen["added"], seen["talk"]) == (("home",), ("t1", "t2", "t3"))
    assert [one["content"] for one in seen["found"]] == ["I live in Porto"]
    assert (seen["home"]["content"], seen["home"]["version"]) == ("I live in Lisbon", 1)
    assert seen["tea"]["usage"]["useful"] == 1
    assert [one["content"] for one in seen["history"]] == ["I live in Porto", "I live in Lisbon"]
    assert [one["target_name"] for one in seen["facts"]] == ["Porto"]
    assert [(one["session_id"], one["messages"]) for one in seen["episodes"]] == [("s1", 3)]
    assert seen["context"]["token_count"] > 0
    total, first, second = seen["pages"]
    assert (total, [one["id"] for one in [*first, *second]]) == (5, ["tea", "t3", "t2", "t1"])
    assert (seen["each"], seen["stats"]["memories"]) == (["t3", "t2", "t1"], 1)
    assert (seen["nothing"], seen["error"], seen["erased"]) == ([None, 0], "not_found", 0)
    assert_type(memory.add("x", user="ann"), recallflow.Added)
    assert_type(memory.search("x", user="ann"), recallflow.SearchResults)
    assert_type(memory.search("x", user="ann")[0], recallflow.RecalledMemory)
    assert_type(memory.search("x", user="ann").context, recallflow.Context | None)
    assert_type(memory.get("x", user="ann"), recallflow.MemoryVersion | None)
    assert_type(memory.all(user="ann"), recallflow.Page)
    assert_type(next(memory.each(user="ann")), recallflow.ListedMemory)
    assert_type(memory.update(memory.add("y", user="ann").id, "z", user="ann"), recallflow.Position)
    assert_type(memory.history("x", user="ann"), recallflow.History)
    assert_type(memory.episodes(user="ann"), recallflow.Episodes)
    assert_type(memory.facts(user="ann"), recallflow.FoundFacts)
    assert_type(memory.stats(user="ann"), recallflow.Stats)


def test_a_printed_answer_has_a_line_for_each_memory(memory: recallflow.Memory) -> None:
    memory.add("I live\nin Porto\x1b[2J", user="ann", timestamp="2026-02-03T00:00:00Z")
    memory.add("Miso " * 500, user="ann", timestamp="2026-02-04T00:00:00Z")
    for answer in (memory.search("Porto?", user="ann"), memory.all(user="ann")):
        assert len(str(answer).splitlines()) == 2
        assert str(answer).replace("\n", "").isprintable()
        assert max(map(len, str(answer).splitlines())) < 160
    first = str(memory.search("Where do I live?", user="ann", k=1)).splitlines()[0]
    assert re.fullmatch(r"1\. I live in Porto \[2J \(score \d\.\d\d, 2026-02-03\)", first)
    assert "no_memories" in str(memory.search("Porto?", user="bob"))


@pytest.mark.parametrize("alias", ["top_k", "limit", "k"])
def test_other_libraries_names_of_arguments_are_taken(memory: recallflow.Memory, alias: str) -> None:
    for text in ("I live in Porto", "I live in Leeds"):
        memory.add(text, user_id="ann")  # type: ignore[call-arg]
    named: dict[str, Any] = {alias: 1}
    assert len(memory.search("Where do I live?", user="ann", **named)) == 1
    assert (len(memory.all(user="ann", **named)), len([*memory.each(user="ann", limit=1)])) == (1, 2)


def test_forgetting_an_unknown_memory_raises_not_found(memory: recallflow.Memory) -> None:
    kept = memory.add("I live in Porto", user="ann").id
    for gone in ("nope", kept):
        if gone == kept:
            memory.forget(kept, user="ann")
        with pytest.raises(recallflow.InvalidRecord) as raised:
            memory.forget(gone, user="ann")
        assert (raised.value.code, [one.field for one in raised.value.fields]) == ("not_found", ["memory_id"])
    memory.forget(user="ann", where={"tag": "none has it"})  # a filter may match nothing


UNUSED = (
    "bytewax", "confluent_kafka", "httpx", "ijson", "jwt", "networkx", "openai", "opentelemetry", "pyarrow", "rich",
)  # fmt: skip
PLAIN_USE = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {UNUSED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from recallflow import Memory
with Memory() as memory:
    assert "cryptography" not in sys.modules
    told = memory.add("I live in Porto", user="ann", kind="fact", tags=["home"])
    memory.update(told.id, "I live in Leeds", user="ann")
    memory.add([{{"role": "user", "content": "My sister Ana works in Lisbon"}}], user="ann", session="s")
    print(memory.search("Where do I live?", user="ann", k=1, max_tokens=200)[0].content)
    memory.search("Ana?", user="ann", mode="episode"), memory.facts("Ana", user="ann"), memory.stats(user="ann")
    memory.history(told.id, user="ann"), memory.episodes(user="ann"), [*memory.each(user="ann")]
    memory.forget(told.id, user="ann"), memory.erase(user="ann")
"""


@pytest.mark.processes
def test_memory_works_without_the_libraries_that_it_does_not_use() -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN_USE], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("I live in Leeds\n", "", 0)


def test_search_result_is_a_printable_sequence(memory: recallflow.Memory) -> None:
    memory.add("I live in Porto", user="ann", id="home")
    found = memory.search("Porto?", user="ann", k=5)
    assert [*found] == [found[0]] == [*found[0:1]] == [*reversed(found)]
    assert repr(found).startswith("SearchResults([\n  1. I live in Porto (score ")
    assert [warning.code for warning in found.warnings] == ["k_exceeds_memories"]
    assert found.answerable is not None
    assert found.response.status == "ok"
    assert repr(memory.all(user="ann")) == f"Page([\n  I live in Porto (home v0, {found[0].created_at[:10]}),\n])"
    assert repr(memory.episodes(user="ann")) == "Episodes([])"
    by_episode = memory.search("Porto?", user="ann", mode="episode")
    assert by_episode.episodes == []


class OfTheClient(BaseModel):
    role: str
    content: str | None
    refusal: str | None = None


def test_messages_are_taken_as_the_official_client_has_them(memory: recallflow.Memory) -> None:
    said = OfTheClient(role="assistant", content="You live in Porto")
    added = memory.add([{"role": "user", "content": "Where do I live?"}, said], user="ann", session="s")
    first, second = (memory.get(name, user="ann") for name in added.ids)
    assert first is not None
    assert second is not None
    assert [first.role, second.role, second.content, second.session_id] == ["user", "assistant", said.content, "s"]
    assert added.position == added.positions[1]
    assert added.id == str(added.position)


def test_a_hundred_messages_of_one_call_stay_in_their_order(memory: recallflow.Memory) -> None:
    talk = [{"role": "user", "content": f"number {number}"} for number in range(100)]
    added = memory.add(talk, user="ann", timestamp="2026-01-01T00:00:00Z")
    assert [position.offset for position in added.positions] == [*range(100)]
    assert [one.content for one in memory.each(user="ann", limit=30)] == [m["content"] for m in reversed(talk)]


IDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["I live in Porto", "Ann met Bob at Acme in Oslo", "我住在波尔图", "tea", "no more tea"])
ACTIONS = st.one_of(
    st.tuples(st.just("memory"), IDS, TEXTS), st.tuples(st.just("message"), IDS, TEXTS),
    st.tuples(st.just("memory.update"), IDS, TEXTS), st.tuples(st.just("memory.forget"), IDS, TEXTS),
)  # fmt: skip
Action = tuple[str, str, str]
BEGIN_MS, MINUTE_MS = 1_770_000_000_000, 60_000


def by_memory(path: Path, actions: Sequence[Action]) -> list[str]:
    refused: list[str] = []
    with recallflow.Memory(path) as memory:
        for number, (kind, name, text) in enumerate(actions):
            at_ms = BEGIN_MS + number * MINUTE_MS
            fields: dict[str, Any] = {"timestamp": at_ms, "user": "ann"}
            calls: dict[str, Callable[[], object]] = {
                "memory": lambda: memory.add(text, id=name, **fields),  # noqa: B023 - called at once
                "message": lambda: memory.add({"role": "user", "content": text}, id=name, session="s", **fields),  # noqa: B023
                "memory.update": lambda: memory.update(name, text, **fields),  # noqa: B023
                "memory.forget": lambda: memory.forget(name, **fields),  # noqa: B023
            }
            try:
                with patch(
                    "time.time_ns", return_value=at_ms * 1_000_000
                ):  # the log's time, which a line brings itself
                    calls[kind]()
            except recallflow.InvalidRecord as error:
                if kind != "memory.forget":  # one of no memory is no error on a log
                    refused.append(error.code)
    return refused


def by_flow(path: Path, actions: Sequence[Action], first: int = 0) -> list[str]:
    lines = []
    for number, (kind, name, text) in enumerate(actions, first):
        event = ANN | {"type": kind, "timestamp": BEGIN_MS + number * MINUTE_MS}
        match kind:
            case "memory":
                event |= {"id": name, "content": text, "kind": "fact"}
            case "message":
                event |= {"id": name, "content": text, "role": "user", "session_id": "s"}
            case "memory.update":
                event |= {"memory_id": name, "content": text}
            case _:
                event |= {"memory_id": name}
        lines.append(orjson.dumps(event))
    return [one["error"]["code"] for one in process(lines, SETTINGS, path).rejected]


@settings(max_examples=share(0.15))
@given(actions=st.lists(ACTIONS, min_size=1, max_size=10), half=st.integers(0, 10))
def test_memory_and_flow_give_equal_state(
    actions: list[Action], half: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ways")
    ways = folder / "memory", folder / "flow", folder / "both"
    refused = by_memory(ways[0], actions)
    assert by_flow(ways[1], actions) == refused
    by_memory(ways[2], actions[:half])
    by_flow(ways[2], actions[half:], half)
    assert hash_of(ways[0]) == hash_of(ways[1]) == hash_of(ways[2])


def test_threads_share_a_memory_and_read_their_own_writes(memory: recallflow.Memory) -> None:
    def work(name: str) -> list[bool]:
        seen = []
        for number in range(10):
            memory.add(f"locker {number}", user=name)
            seen.append(len(memory.all(user=name)) == number + 1)
        return seen

    users = [f"user {number}" for number in range(8)]
    with ThreadPoolExecutor(len(users)) as pool:
        assert [*pool.map(work, users)] == [[True] * 10] * len(users)


def test_the_async_twin_has_the_same_verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.0)

    async def use() -> None:
        async with recallflow.AsyncMemory(tmp_path / "m") as memory:
            added = await asyncio.gather(*(memory.add(f"locker {n}", user=f"user {n}") for n in range(50)))
            assert_type(added, list[recallflow.Added])
            found = await memory.search("locker", user="user 7")
            assert_type(found, recallflow.SearchResults)
            assert [one.content for one in found] == ["locker 7"]
            await memory.add([{"role": "user", "content": str(n)} for n in range(5)], user="ann")
            assert [one.content async for one in memory.each(user="ann", limit=2)] == ["4", "3", "2", "1", "0"]
            with pytest.raises(recallflow.StateInUse):
                async with recallflow.AsyncMemory(tmp_path / "m"):
                    pass
        with pytest.raises(recallflow.UsageError):
            await memory.stats(user="ann")

    asyncio.run(use())


def test_the_async_twin_needs_no_async_with(tmp_path: Path) -> None:
    async def use() -> str:
        memory = recallflow.AsyncMemory(tmp_path / "m")
        await memory.add("x", user="ann")
        given_up = asyncio.create_task(memory.search("x", user="ann"))
        await asyncio.sleep(0)
        given_up.cancel()
        found = await memory.search("x", user="ann")
        await memory.close()
        await memory.close()
        return found[0].content

    assert asyncio.run(use()) == "x"


def test_directory_in_use_error_names_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.0)
    with recallflow.Memory(tmp_path / "m"):
        with pytest.raises(recallflow.StateInUse, match=str(os.getpid())) as raised:
            recallflow.Memory(tmp_path / "m")
        assert "close()" in str(raised.value)
        assert "--state-dir" not in str(raised.value)
        with pytest.raises(recallflow.StateInUse):
            process([], SETTINGS, tmp_path / "m")


@pytest.mark.processes
def test_forked_process_must_open_its_own_memory(start: Start) -> None:
    code = """
import os, sys
from recallflow import Memory, UsageError
memory = Memory()
memory.add("x", user="ann")
sys.stdout.flush()
if os.fork() == 0:
    try:
        memory.add("y", user="ann")
    except UsageError as error:
        print(str(os.getppid()) in str(error), flush=True)
    memory.close()
    sys.exit()
os.wait()
print(len(memory.all(user="ann")))
"""
    assert printed(start(script=code)) == "True\n1\n"


def test_a_closed_memory_refuses_and_can_be_closed_again() -> None:
    memory = recallflow.Memory()
    memory.close()
    memory.close()
    for call in (lambda: memory.add("x", user="ann"), lambda: memory.search("x", user="ann")):
        with pytest.raises(recallflow.UsageError):
            call()


def test_settings_come_from_all_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECALLFLOW_ENGINE_PARTITIONS")
    (tmp_path / "c.toml").write_text('state_dir = "elsewhere"\n[engine]\npartitions = 3\n')
    with recallflow.Memory(tmp_path / "m", config=tmp_path / "c.toml"):
        pass
    with StateDirectory.existing(tmp_path / "m") as directory:
        assert directory.fingerprint.partitions == 3
    monkeypatch.setenv("RECALLFLOW_ENGINE_EPISODE_GAP_MINUTES", "4")
    with pytest.raises(recallflow.SettingsMismatch):
        recallflow.Memory(tmp_path / "m", config=tmp_path / "c.toml")
    with pytest.raises(recallflow.UsageError, match="--config: cannot read"):
        recallflow.Memory(config=tmp_path / "none.toml")
    with pytest.raises(recallflow.UsageError, match="--control: cannot read"):
        recallflow.Memory(control=tmp_path / "none.jsonl")
    with pytest.raises(recallflow.InvalidRecord, match="tenant_id"):
        recallflow.Memory(tenant="")
    assert not Path("elsewhere").exists()


def test_decisions_of_operators_are_applied(tmp_path: Path) -> None:
    decided = {
        "type": "quota", "tenant_id": "default", "name": "memories_per_user", "limit": 1,
        "timestamp": 1_770_000_000_000,
    }  # fmt: skip
    (tmp_path / "control.jsonl").write_bytes(orjson.dumps(decided))
    with recallflow.Memory(control=tmp_path / "control.jsonl") as memory:
        memory.add("x", user="ann")
        with pytest.raises(recallflow.InvalidRecord, match="memories"):
            memory.add("y", user="ann")
