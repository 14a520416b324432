"""Memories go out as events, and come in again as the same memories."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from recallflow.cli.privacy import ANSWERS, MEMORIES, write
from recallflow.errors import StorageError
from recallflow.flows.embedded import process
from recallflow.flows.export import export, memory_events
from recallflow.flows.settings import Settings
from recallflow.state.directory import StateDirectory

Cli = Callable[..., CompletedProcess[str]]

CACHE_BYTES = 1024 * 1024
OWNERS = {("acme", "ann", "prod"), ("acme", "ann", "staging"), ("acme", "bob", "prod"), ("other", "ann", "prod")}
# What of a memory another ingestion gives anew, or is numbered by the events that there were.
ANEW = {"ingested_at", "ingested_logged", "change", "episode", "vectors", "stems", "filled", "derived_from"}


def life(tenant_id: str, user_id: str, environment: str) -> Iterator[dict[str, Any]]:
    owner = {"tenant_id": tenant_id, "user_id": user_id, "environment": environment}

    def say(type_: str, second: int, **fields: Any) -> dict[str, Any]:
        return {"type": type_, "timestamp": f"2024-03-01T10:00:{second:02}.125Z", **owner, **fields}

    yield say("message", 1, id="m1", content="we met in Paris \u2028 \U0001f375", session_id="s1", name="Ann",
              role="user", metadata={"n": [1, None]}, project_id="p")  # fmt: skip
    yield say("message", 2, id="m2", content="noted", session_id="s1", role="assistant")
    yield say("memory", 3, id="f1", content=f"{user_id} likes oolong", category="taste", tags=["tea"], topics=["food"],
              summary="oolong", entities=[{"name": "Oolong", "type": "drink"}], importance=0.9, layer="rule",
              relations=[{"source": "Ann", "type": "likes", "target": "Oolong"}], valid_from="2024-01-01T00:00:00Z",
              derived_from={"memory_id": "m1"}, kind="preference", name="Ann", metadata={"a": 1})  # fmt: skip
    yield say("memory.update", 4, memory_id="f1", content=f"{user_id} likes sencha", category=None)
    yield say("memory.update", 5, memory_id="f1", summary="sencha", expires_at="2030-01-01T00:00:00Z")
    yield say("memory", 6, id="gone", content="not for long")
    yield say("memory.forget", 7, memory_id="gone")
    yield say("memory.update", 8, memory_id="m2", category="small talk")
    yield say("memory.update", 9, memory_id="m2", category=None)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lived") / "s"
    lines = [orjson.dumps(event) for owner in sorted(OWNERS) for event in life(*owner)]
    assert not process(lines, Settings(partitions=2), path).rejected
    return path


def memories(path: Path) -> list[dict[str, Any]]:
    found = []
    with StateDirectory.existing(path, CACHE_BYTES) as directory:
        for tenant_id, user_id in sorted({owner[:2] for owner in OWNERS}):
            records = [one for one in export(directory, tenant_id, user_id) if one["type"] == "memory"]
            found += [{name: one[name] for name in one.keys() - ANEW} | {"of": (tenant_id, user_id)} for one in records]
    return found


@pytest.mark.parametrize("name", ["memories.jsonl", "memories.parquet"])
def test_exported_memories_can_be_imported_again(lived: Path, cli: Cli, tmp_path: Path, name: str) -> None:
    done = cli("export", "--memories", "--state-dir", lived, "--out", tmp_path / name)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    done = cli("replay", tmp_path / name, "--embedded", "--state-dir", tmp_path / "s", "--create", "--partitions", "2")
    assert (done.returncode, "refused" in done.stdout) == (0, False), done.stdout + done.stderr
    there, here = memories(lived), memories(tmp_path / "s")
    assert len(there) == len(OWNERS) * 7  # m1, and m2 and f1 three times
    assert here == there
    assert not any("not for long" in str(one) for one in here)
    with (
        StateDirectory.existing(tmp_path / "s", CACHE_BYTES) as again,
        StateDirectory.existing(lived, CACHE_BYTES) as d,
    ):
        assert sorted(map(orjson.dumps, memory_events(again))) == sorted(map(orjson.dumps, memory_events(d)))


def test_memories_of_a_tenant_or_a_user_alone_are_exported(lived: Path, cli: Cli) -> None:
    def owners(*chosen: str) -> set[tuple[str, str, str]]:
        done = cli("export", "--memories", *chosen, "--state-dir", lived)
        events = map(orjson.loads, done.stdout.rstrip("\n").split("\n"))
        return {(one["tenant_id"], one["user_id"], one["environment"]) for one in events}

    assert owners() == OWNERS
    assert owners("acme") == {one for one in OWNERS if one[0] == "acme"}
    assert owners("acme", "ann", "--environment", "staging") == {("acme", "ann", "staging")}


def test_columns_of_parquet_have_types(lived: Path, cli: Cli, tmp_path: Path) -> None:
    cli("export", "--memories", "acme", "bob", "--state-dir", lived, "--out", tmp_path / "m", "--format", "parquet")
    table = pq.read_table(tmp_path / "m")
    assert str(table.schema.field("timestamp").type) == "timestamp[ms, tz=UTC]"
    assert str(table.schema.field("tags").type) == "list<element: string>"
    assert table.column("timestamp").to_pylist()[0].isoformat() == "2024-03-01T10:00:01.125000+00:00"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ((), "give TENANT and USER, or --memories"),
        (("acme", "ann", "--format", "parquet"), "needs --memories or --answers"),
        (("--answers",), "needs --bootstrap-servers"),
        (("--memories", "--out", "/nowhere/file"), "cannot write /nowhere/file"),
    ],
)
def test_wrong_call_ends_with_an_error(
    lived: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], says: str
) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    done = cli("export", *command, "--state-dir", lived)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_an_export_that_fails_leaves_nothing_of_anybody(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"content": "The key is under the mat"}
        raise StorageError("the disk is gone")

    before = tmp_path / "memories.jsonl"
    before.write_text("of yesterday")
    with pytest.raises(StorageError):
        write(rows(), MEMORIES, "jsonl", before)
    assert [*tmp_path.iterdir()] == [before]
    assert before.read_text() == "of yesterday"


def test_answers_that_no_engine_wrote_fit_into_a_table(tmp_path: Path) -> None:
    path = tmp_path / "answers.parquet"
    rows: list[dict[str, Any]] = [
        {"query_id": 5, "status": ["ok"], "processing_time_ms": "long"},
        {"processing_time_ms": 2**63 - 1},
    ]
    write(rows, ANSWERS, "parquet", path)
    first, last = pq.read_table(path).to_pylist()
    assert (first["query_id"], first["status"], first["processing_time_ms"]) == ("5", '["ok"]', None)
    assert last["processing_time_ms"] == float(2**63 - 1)
