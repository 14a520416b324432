"""The engine in this process: concurrent calls, credentials, failures and closing."""

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from prometheus_client import CollectorRegistry

from recallflow.connectors.local_inputs import LocalCalls
from recallflow.control import ControlHistory
from recallflow.credentials import ApiKeyText
from recallflow.errors import (
    DeliveryFailed,
    InvalidRecord,
    PartitionMissing,
    QueryTimeout,
    SettingsMismatch,
    SourceError,
    StorageError,
)
from recallflow.flows import local
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.local import EVENTS, LocalService, open_local
from recallflow.flows.model_settings import EmbeddingSettings
from recallflow.flows.models import BatchEmbedder
from recallflow.flows.settings import AuthSettings, Settings
from recallflow.parsing import parse
from recallflow.state import directory
from recallflow.state.database import Cleaning
from recallflow.state.directory import StateDirectory
from recallflow.state.partition import Partition
from tests.llm_server import Fault, LlmServer
from tests.unit.senders import api_key, with_key

T = TypeVar("T")

ANN = {"tenant_id": "acme", "user_id": "ann"}
SETTINGS = Settings(partitions=2)
ENDLESS = f"{EVENTS}:0:999999"
LONG_S = 60.0


def config(tmp_path: Path, **chosen: Any) -> Config:
    return Config(state_dir=tmp_path / "state", engine=SETTINGS, **chosen)


def embedding_config(tmp_path: Path, server: LlmServer, **chosen: Any) -> Config:
    embedding = EmbeddingSettings(model="e-1", dimension=64, base_url=server.url, attempts=1)
    settings = Settings(partitions=1, embedder="openai")
    return Config(state_dir=tmp_path / "state", engine=settings, embedding=embedding, **chosen)


def with_service(
    config: Config, use: Callable[[LocalService], Awaitable[T]], decisions: ControlHistory | None = None
) -> T:

    async def used(service: LocalService) -> T:
        return await use(service)

    with open_local(config, decisions or ControlHistory()) as service:
        return asyncio.run(used(service))


def memory(**fields: Any) -> Any:
    return parse(orjson.dumps({"type": "memory", "content": "The ferry leaves at nine"} | ANN | fields))


def recall(**fields: Any) -> Any:
    return parse(orjson.dumps({"type": "recall", "query": "When does the ferry leave?"} | ANN | fields))


def update(memory_id: str) -> Any:
    return parse(orjson.dumps({"type": "memory.update", "memory_id": memory_id, "content": "Other words"} | ANN))


def get(memory_id: str) -> Any:
    return parse(orjson.dumps({"type": "memory.get", "memory_id": memory_id} | ANN))


def test_stored_memory_is_found_also_after_a_restart(tmp_path: Path) -> None:
    async def tell(service: LocalService) -> list[str]:
        assert service.obstacle() == ""
        stored = await service.store(memory(id="m"), ())
        applied = await service.apply(memory(content="Porto is rainy"), (), LONG_S)
        assert applied.receipt is not None
        assert (applied.receipt.outcome, applied.receipt.memory_id) == ("created", str(applied.position))
        asked = await service.ask(recall(id="q", wait_for=str(applied.position)), (), LONG_S)
        assert ((asked.query_id, asked.status), str(stored.position)) == (("q", "ok"), "local:0:0")
        return [one.id for one in asked.memories or ()]

    async def look(service: LocalService) -> tuple[str, str]:
        again = await service.store(memory(content="The kettle is broken"), ())
        found = await service.ask(get("m"), (), LONG_S)
        assert found.versions is not None
        return str(again.position), found.versions[0]["content"]

    assert with_service(config(tmp_path), tell) == ["m", "local:0:1"]
    assert with_service(config(tmp_path), look) == ("local:0:2", "The ferry leaves at nine")


def test_refused_calls_name_their_code_and_others_continue(tmp_path: Path) -> None:
    async def tell(service: LocalService) -> None:
        await service.store(memory(id="m"), ())
        with pytest.raises(InvalidRecord) as conflict:
            await service.store(memory(id="m", content="Other words"), ())
        assert conflict.value.code == "id_conflict"
        with pytest.raises(InvalidRecord) as missing:
            await service.apply(update("none"), (), LONG_S)
        assert missing.value.code == "not_found"
        with pytest.raises(InvalidRecord) as large:
            await service.store(memory(content="x" * 1_100_000), ())
        assert large.value.code == "too_large"
        failed = await service.ask(get("none"), (), LONG_S)
        assert (failed.status, failed.error and failed.error.code) == ("error", "not_found")

    with_service(config(tmp_path), tell)


def test_more_than_may_be_under_way_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "IN_PROGRESS_MAX", 4)
    most = 0
    put = LocalCalls.put

    def counted(self: LocalCalls, *arguments: Any) -> Any:
        nonlocal most
        most = max(most, len(self._waiting))
        return put(self, *arguments)

    monkeypatch.setattr(LocalCalls, "put", counted)

    async def tell(service: LocalService) -> int:
        stored = await asyncio.gather(*(service.store(memory(id=f"m{number}"), ()) for number in range(50)))
        return len({one.position for one in stored})

    assert (with_service(config(tmp_path), tell), most) == (50, 3)


def test_waiting_question_delays_no_other_and_ends(tmp_path: Path) -> None:
    async def talk(service: LocalService) -> None:
        waiting = asyncio.create_task(service.ask(recall(wait_for=ENDLESS, wait_timeout_ms=60_000), (), LONG_S))
        await asyncio.sleep(0)
        await service.store(memory(id="m"), ())
        found = await service.ask(recall(), (), LONG_S)
        assert [one.id for one in found.memories or ()] == ["m"]
        assert not waiting.done()
        with pytest.raises(QueryTimeout, match="ask again") as late:
            await service.ask(recall(wait_for=ENDLESS, wait_timeout_ms=60_000), (), 0.01)
        assert "running" not in str(late.value)  # it is this process
        assert "Kafka" not in str(late.value)
        stale = await service.ask(recall(wait_for=ENDLESS, wait_timeout_ms=1), (), LONG_S)
        assert [warning.code for warning in stale.warnings] == ["stale_read"]
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    with_service(config(tmp_path), talk)


def test_question_over_a_restart_answers_no_other_caller(tmp_path: Path) -> None:

    async def leave(service: LocalService) -> None:
        await service.store(memory(id="m"), ())
        with pytest.raises(QueryTimeout):
            await service.ask(recall(id="left", wait_for="lines:0:0", wait_timeout_ms=60_000), (), 0.05)
        await service.store(memory(id="n"), ())

    async def ask(service: LocalService) -> str:
        return (
            await service.ask(recall(id="mine", wait_for=f"{EVENTS}:0:2", wait_timeout_ms=60_000), (), 0.2)
        ).query_id

    with_service(config(tmp_path), leave)
    with pytest.raises(QueryTimeout):  # only its own answer will do
        with_service(config(tmp_path), ask)
    told = {"type": "memory", "id": "of a line", "content": "The ferry is late"}  # what was left waits for it
    lines = [orjson.dumps(ANN | one) for one in (told, {"type": "recall", "id": "line", "query": "The ferry?"})]
    processed = process(lines, SETTINGS, tmp_path / "state")
    assert [one["query_id"] for one in processed.responses] == ["line"]


def test_credentials_are_judged_and_limit_projects(tmp_path: Path) -> None:
    decisions, mine, all_of_it = ControlHistory(), ApiKeyText.new(), ApiKeyText.new()
    decisions.add(0, api_key(mine, projects=["p"]))
    decisions.add(0, api_key(all_of_it))
    decisions.add(0, api_key(ApiKeyText.new(), tenant_id="other"))

    async def talk(service: LocalService) -> None:
        await service.store(memory(id="p", project_id="p"), with_key(mine))
        await service.store(memory(id="q", project_id="q"), with_key(all_of_it))
        with pytest.raises(InvalidRecord) as stranger:
            await service.store(memory(id="s"), ())
        assert stranger.value.code == "unauthenticated"
        with pytest.raises(InvalidRecord) as other_project:
            await service.store(memory(id="r", project_id="q"), with_key(mine))
        assert other_project.value.code == "forbidden"
        for headers, found in ((with_key(mine), {"p"}), (with_key(all_of_it), {"p", "q"})):
            answer = await service.ask(recall(), headers, LONG_S)
            assert {one.id for one in answer.memories or ()} == found
        refused = await service.ask(recall(), with_key(ApiKeyText.new()), LONG_S)
        assert (refused.status, refused.error and refused.error.code) == ("error", "unauthenticated")

    with_service(config(tmp_path), talk, decisions)


def test_an_engine_that_dies_fails_every_call_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the disk is gone: put it back"

    async def talk(service: LocalService) -> None:
        await service.store(memory(id="m"), ())

        def fail(_: StateDirectory) -> None:
            raise StorageError(reason)

        monkeypatch.setattr(StateDirectory, "begin_syncs", fail)
        waiting = service.ask(recall(wait_for=ENDLESS, wait_timeout_ms=60_000), (), LONG_S)
        with pytest.raises(SourceError, match=reason):
            await waiting
        assert service.obstacle() == service.stop_reason() == f"the engine has stopped: {reason}"
        with pytest.raises(DeliveryFailed, match=reason):
            await service.store(memory(id="n"), ())
        with pytest.raises(SourceError, match=reason):
            await service.ask(recall(), (), LONG_S)

    with pytest.raises(StorageError, match=reason):
        with_service(config(tmp_path), talk)


def test_defect_reveals_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(service: LocalService) -> None:
        def fail(_: StateDirectory) -> None:
            raise KeyError(memory().content)

        monkeypatch.setattr(StateDirectory, "begin_syncs", fail)
        waiting = service.ask(recall(wait_for=ENDLESS, wait_timeout_ms=60_000), (), LONG_S)
        with pytest.raises(SourceError, match="internal error") as told:
            await waiting
        assert "ferry" not in f"{told.value}{service.obstacle()}"

    with pytest.raises(KeyError):
        with_service(config(tmp_path), talk)
    assert "KeyError" in caplog.text
    assert "ferry" not in caplog.text


def test_a_start_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(service: LocalService) -> None:
        await service.store(memory(id="m"), ())

    with_service(config(tmp_path), tell)
    with (
        pytest.raises(SettingsMismatch),
        open_local(Config(state_dir=tmp_path / "state", engine=Settings(episode_gap_minutes=3)), ControlHistory()),
    ):
        pass
    behind = PartitionMissing("events would be missing")

    def refuse(*_: Any) -> None:
        raise behind

    monkeypatch.setattr(LocalCalls, "begin", refuse)  # on the dataflow's thread
    with pytest.raises(PartitionMissing), open_local(config(tmp_path), ControlHistory()):
        pass


def test_close_waits_for_pending_calls(tmp_path: Path) -> None:
    async def tell(service: LocalService, number: int) -> None:
        await service.store(memory(id=f"m{number}"), ())

    async def close_meanwhile() -> None:
        opened = open_local(config(tmp_path), ControlHistory())
        service = opened.__enter__()
        told = [asyncio.create_task(tell(service, number)) for number in range(100)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(opened.__exit__, None, None, None))
        await asyncio.gather(*told)
        await closing
        assert service.obstacle() == "the engine is stopping"
        with pytest.raises(DeliveryFailed, match="the engine is stopping"):
            await service.store(memory(id="late"), ())

    asyncio.run(close_meanwhile())


def test_hanging_embedding_delays_no_other_tenant(tmp_path: Path, llm_server: LlmServer) -> None:
    chosen = embedding_config(tmp_path, llm_server)

    async def talk(service: LocalService) -> None:
        await service.store(memory(id="first"), ())
        llm_server.fail(Fault("hang", text="slow words"), times=None)
        hung = asyncio.create_task(service.store(memory(id="slow", content="Some slow words"), ()))
        await asyncio.to_thread(llm_server.wait_for, lambda now: now.held == 1)
        other = {"tenant_id": "globex"}
        stored = [service.store(memory(id=f"m{number}", **other), ()) for number in range(40)]
        receipts = [one.receipt for one in await asyncio.gather(*stored)]
        assert {None if one is None else (one.outcome, one.code) for one in receipts} == {("created", None)}
        found = await service.ask(recall(k=50, **other), (), LONG_S)
        assert len(found.memories or ()) == 40
        assert not hung.done()
        llm_server.heal()
        llm_server.release()
        late = (await hung).receipt
        assert late is not None
        assert late.outcome == "created"
        llm_server.fail(Fault("status", text="refused words", status=400))
        without = (await service.store(memory(id="r", content="Some refused words"), ())).receipt
        assert without is not None
        assert without.code is not None

    with_service(chosen, talk)
    assert len([one for one in llm_server.requests if one.texts]) in range(3, 20)


def test_abandoned_texts_are_not_embedded(tmp_path: Path, llm_server: LlmServer) -> None:
    chosen = embedding_config(tmp_path, llm_server)

    async def talk(service: LocalService) -> None:
        llm_server.fail(Fault("hang", text="slow words"), times=None)
        hung = asyncio.create_task(service.store(memory(id="slow", content="Some slow words"), ()))
        await asyncio.to_thread(llm_server.wait_for, lambda now: now.held == 1)
        with pytest.raises(DeliveryFailed):
            await service.apply(memory(id="left", content="Some words left alone"), (), 0.01)
        llm_server.heal()
        llm_server.release()
        await hung
        await service.store(memory(id="last"), ())

    with_service(chosen, talk)
    asked = [text for one in llm_server.requests for text in one.texts]
    assert [text for text in asked if "left alone" in text] == []
    assert len(asked) >= 2


def test_defect_of_embedding_reaches_its_caller(
    tmp_path: Path, llm_server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = embedding_config(tmp_path, llm_server)

    async def fail(*_: Any) -> None:
        raise LookupError

    async def talk(service: LocalService) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(BatchEmbedder, "_embed", fail)
            with pytest.raises(LookupError):
                await service.apply(memory(id="m"), (), 5.0)
        stored = await service.store(memory(id="n"), ())
        assert stored.receipt is not None

    with_service(chosen, talk)


def test_unauthenticated_texts_are_not_embedded(tmp_path: Path, llm_server: LlmServer) -> None:
    chosen = embedding_config(tmp_path, llm_server, auth=AuthSettings(mode="required"))

    async def talk(service: LocalService) -> None:
        with pytest.raises(InvalidRecord) as refused:
            await service.store(memory(id="m"), ())
        assert refused.value.code == "unauthenticated"

    with_service(chosen, talk)
    assert llm_server.requests == []


async def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < give_up_s
        await asyncio.sleep(0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again without a pause."""
    monkeypatch.setattr(local, "REOPEN_PAUSE_S", 0.0)
    monkeypatch.setattr(directory, "CLEANING_RETRY_S", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("fails", ["_write", "__init__"])
def test_passing_io_error_needs_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: str
) -> None:
    broken = False
    write, opens = Partition._write, Partition.__init__

    def refuse_if(is_broken: bool, called: Callable[..., None], *given: Any) -> None:
        if is_broken:
            raise StorageError(f"IO error: While open a file: {os.strerror(number)}")
        called(*given)

    monkeypatch.setattr(Partition, "_write", lambda *given: refuse_if(broken, write, *given))
    if fails == "__init__":  # the state cannot be opened again either, at first
        monkeypatch.setattr(Partition, "__init__", lambda *given: refuse_if(broken, opens, *given))

    async def talk(service: LocalService) -> list[str]:
        nonlocal broken
        first = await service.store(memory(id="m"), ())
        broken = True
        with pytest.raises(DeliveryFailed):
            await service.store(memory(id="n"), ())
        assert (bool(service.obstacle()), service.stop_reason()) == (True, "")
        broken = False
        await until(lambda: not service.obstacle())
        again = await service.store(memory(id="n"), ())
        assert again.position.offset > first.position.offset + 1  # no position is given twice
        found = await service.ask(recall(), (), LONG_S)
        return sorted(one.id for one in found.memories or ())

    assert with_service(config(tmp_path), talk) == ["m", "n"]


@pytest.mark.usefixtures("at_once")
def test_failed_purge_is_reported_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, clean = True, Cleaning._clean

    def clean_if_whole(self: Cleaning, marks: Any) -> bool:
        if broken:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return clean(self, marks)

    monkeypatch.setattr(Cleaning, "_clean", clean_if_whole)
    erase: Any = parse(orjson.dumps({"type": "user.erase"} | ANN))

    async def state(service: LocalService) -> tuple[str | None, float | None]:
        registry = CollectorRegistry()
        registry.register(service.metrics)
        stats = parse(orjson.dumps({"type": "user.stats"} | ANN))
        answer = await service.ask(stats, (), LONG_S)  # type: ignore[arg-type]
        return (answer.stats or {}).get("erasure"), registry.get_sample_value("recallflow_erasures_pending")

    async def fail(service: LocalService) -> None:
        assert (await state(service))[0] is None
        await service.store(memory(id="m"), ())
        erased = await service.apply(erase, (), LONG_S)
        assert erased.receipt is not None
        assert (erased.receipt.outcome, erased.receipt.purged) == ("erased", False)
        assert await state(service) == ("erased", 1)
        with pytest.raises(StorageError):
            await service.erase(erase, ())

    async def recover(service: LocalService) -> None:
        nonlocal broken
        assert await state(service) == ("erased", 1)  # also after a restart
        broken = False
        while await state(service) != ("purged", 0):
            await asyncio.sleep(0)

    with_service(config(tmp_path), fail)
    with_service(config(tmp_path), recover)


@pytest.mark.usefixtures("at_once")
def test_partition_broken_by_a_failed_purge_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, clean = True, Cleaning._clean
    opened: list[int] = []
    opens = Partition.__init__

    def clean_if_whole(self: Cleaning, marks: Any) -> bool:
        if broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return clean(self, marks)

    def count(self: Partition, path: Path, number: int, *given: Any) -> None:
        opens(self, path, number, *given)
        opened.append(number)

    monkeypatch.setattr(Cleaning, "_clean", clean_if_whole)
    monkeypatch.setattr(Partition, "is_broken", property(lambda _: broken))
    monkeypatch.setattr(Partition, "__init__", count)

    async def talk(service: LocalService) -> None:
        nonlocal broken
        await service.store(memory(id="m"), ())
        before = len(opened)
        erase: Any = parse(orjson.dumps({"type": "user.erase"} | ANN))
        await service.apply(erase, (), LONG_S)
        await until(lambda: len(opened) > before)
        broken = False
        await until(lambda: not service.obstacle())
        await asyncio.to_thread(service.finish_cleaning)
        registry = CollectorRegistry()
        registry.register(service.metrics)
        assert registry.get_sample_value("recallflow_erasures_pending") == 0

    with_service(config(tmp_path), talk)
