"""Exports: a person's data, complete and without data of others, and memories as events."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.cli.privacy import ANSWERS, MEMORIES, write
from recallflow.connectors.embedders import load_embedder
from recallflow.errors import StorageError
from recallflow.flows.embedded import process
from recallflow.flows.export import export, memory_events
from recallflow.flows.settings import Settings
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.person import GRAPH_READERS, HASHES, READERS, REPEATING
from recallflow.state.verify import TABLES

Cli = Callable[..., CompletedProcess[str]]

FORGOTTEN = "soon-forgotten"
STRANGE = 'Jos\u00e9 "the\\quote"\n\u2028 \U0001f375'


def life(tag: str, **owner: str) -> Iterator[dict[str, Any]]:
    """Something of every kind that is kept of a user. `tag` is in every text."""

    def say(kind: str, second: int, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "timestamp": f"2024-03-01T10:00:{second:02}Z", **owner, **fields}

    text = f"{tag} {STRANGE}"
    yield say("message", 1, id=f"{tag}-m1", content=f"{text} met Marie {tag.title()} in Paris", session_id=f"{tag}-s1",
              name=f"{tag} speaker",
              metadata={"elapsed_ms": 5, "note": f"{tag} noted"}, project_id=f"{tag}-project")  # fmt: skip
    yield say("memory", 2, id=f"{tag}-f1", content=f"{tag} likes oolong", category=f"{tag}-category",
              tags=[f"{tag}-tag"], topics=[f"{tag}-topic"], summary=f"{tag} summed up",
              entities=[{"name": f"{tag} Oolong", "type": f"{tag}-drink", "aliases": [f"{tag} alias"]}],
              relations=[{"source": f"{tag} Ann", "type": "likes", "target": f"{tag} Oolong"}],
              derived_from={"memory_id": f"{tag}-m1"}, valid_from="2024-01-01T00:00:00Z")  # fmt: skip
    yield say("memory.update", 3, memory_id=f"{tag}-f1", content=f"{tag} likes sencha now")
    yield say("message", 4, id=f"{tag}-m2", content=f"{FORGOTTEN} {tag}-gone", session_id=f"{tag}-s2")
    yield say("memory.forget", 5, memory_id=f"{tag}-m2")
    yield say("memory.feedback", 6, memory_id=f"{tag}-f1", useful=True)
    yield say("category.summary", 7, category=f"{tag}-category", summary=f"{tag} all about tea")
    yield say("graph.edges", 8, edges=[{"source": f"{tag}-f1", "target": f"{tag}-m1", "type": "supports",
                                        "evidence": f"{tag} because"}])  # fmt: skip
    yield say("graph.edges", 9, edges=[{"source": f"entity:{tag} oolong", "target": f"entity:{tag} wulong",
                                        "type": "same_as"}])  # fmt: skip
    yield say("graph.archive", 10, entities=[f"{tag} Oolong"])
    yield say("episode.end", 11, session_id=f"{tag}-s1")
    yield say("recall", 12, id=f"{tag}-q1", query=f"{tag} which tea", session_id=f"{tag}-s1")


USERS = {
    "anna": {"tenant_id": "acme", "user_id": "ann"},
    "staging": {"tenant_id": "acme", "user_id": "ann", "environment": "staging"},
    "bert": {"tenant_id": "acme", "user_id": "bob"}, "else": {"tenant_id": "other", "user_id": "ann"},
}  # fmt: skip


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lived") / "s"
    lines = [orjson.dumps(event) for tag, owner in USERS.items() for event in life(tag, **owner)]
    assert not process(lines, Settings(partitions=2), path).rejected
    return path


def exported(
    path: Path, tenant_id: str, user_id: str, *, environments: tuple[str, ...] = (), vectors: bool = False
) -> list[dict[str, Any]]:
    with StateDirectory.existing(path) as directory:
        return [*export(directory, tenant_id, user_id, environments, vectors=vectors)]


def strings(value: Any) -> Iterator[str]:
    """Every text in something that came out of JSON, names included."""
    match value:
        case str():
            yield value
        case dict():
            for name, one in value.items():
                yield name
                yield from strings(one)
        case list():
            for one in value:
                yield from strings(one)


def test_export_has_all_of_one_user_alone(lived: Path) -> None:
    sent = [event for event in life("anna") if event["type"] != "recall" and FORGOTTEN not in str(event)]
    found = exported(lived, "acme", "ann", environments=("prod",))
    shown = set(strings(orjson.loads(orjson.dumps(found))))
    texts = {one for event in sent for one in strings(event) if "anna" in one}
    gone = {"anna-m2"}  # what forgot it names it, and is no memory itself
    # What was given as an entity may be shown under its key alone.
    assert {one for one in texts - gone if not {one, one.removeprefix("entity:"), one.casefold()} & shown} == set()
    assert {one for one in shown for tag in ("staging", "bert", "else") if tag in one} == set()
    assert not any(FORGOTTEN in one for one in shown)
    assert {"statements", "relation", "archived", "weight", "properties"} <= shown  # stored names are exported names


def test_export_contains_every_version_and_the_current_one(lived: Path) -> None:
    versions = [one for one in exported(lived, "acme", "ann", environments=("prod",)) if one.get("id") == "anna-f1"]
    memories = [one for one in versions if one["type"] == "memory"]
    assert [(one["version"], one["current"], one["content"]) for one in memories] == [
        (0, False, "anna likes oolong"), (1, True, "anna likes sencha now"),
    ]  # fmt: skip
    assert (memories[1]["created_at"], memories[1]["edited_at"]) == ("2024-03-01T10:00:02Z", "2024-03-01T10:00:03Z")
    assert memories[1]["valid_from"] == "2024-01-01T00:00:00Z"
    assert [one["stems"] for one in memories] == ["anna like oolong", "anna like sencha now"]
    assert memories[0]["vectors"] == {
        "model": load_embedder("meaning").name, "dimension": 384, "passages": 1, "tokens": 0,
    }  # fmt: skip


def test_vectors_are_exported_on_request(lived: Path) -> None:
    found = exported(lived, "acme", "ann", vectors=True)
    sizes = [len(one["vectors"]["values"][0]) for one in found if one["type"] == "memory"]
    assert sizes == [384] * 6


def test_export_without_environment_contains_all(lived: Path) -> None:
    found = exported(lived, "acme", "ann")
    assert [one["environment"] for one in found if one["type"] == "person"] == ["prod", "staging"]
    assert found == exported(lived, "acme", "ann")  # in the same order


def test_export_of_an_erased_user_names_the_time(tmp_path: Path) -> None:
    events = [
        {"type": "memory", "content": "anna was here", **USERS["anna"]},
        {"type": "user.erase", "timestamp": "2030-01-01T00:00:00Z", "environment": "prod", **USERS["anna"]},
        {"type": "user.erase", "timestamp": "2031-01-01T00:00:00Z", **USERS["anna"]},
    ]
    assert not process([orjson.dumps(one) for one in events], Settings(partitions=1), tmp_path / "s").rejected
    assert exported(tmp_path / "s", "acme", "ann") == [
        {"type": "erased", "until": "2031-01-01T00:00:00Z"},
        {"type": "erased", "environment": "prod", "until": "2030-01-01T00:00:00Z"},
    ]


def test_senders_names_stay_as_they_are(lived: Path) -> None:
    (metadata,) = [one["metadata"] for one in exported(lived, "acme", "ann", environments=("prod",))
                   if one["type"] == "memory" and one["metadata"]]  # fmt: skip
    assert metadata == {"elapsed_ms": 5, "note": "anna noted"}


def test_export_contains_usage_with_times(lived: Path) -> None:
    found = exported(lived, "acme", "ann", environments=("prod",))
    usage = {one["memory_id"]: one for one in found if one["type"] == "usage"}
    assert (usage["anna-f1"]["useful"], usage["anna-f1"]["last_at"]) == (1, "2024-03-01T10:00:12Z")
    assert [(one["session_id"], {*one["returned"]}) for one in found if one["type"] == "session"] == [
        ("anna-s1", {"anna-f1", "anna-m1"})
    ]
    (hashes,) = [one for one in found if one["type"] == "hashes"]
    assert hashes["query_ids"] == 1
    assert hashes["memory_ids"] == 3  # one is forgotten


def test_every_table_is_exported_or_derived() -> None:
    read = {keys.HEAD, keys.ROW, keys.ENTRY, keys.PAST_ENTRY, keys.VECTORS, keys.PAST_VECTORS, keys.QUERY_IDS}
    assert read | READERS.keys() | GRAPH_READERS.keys() | HASHES.keys() | REPEATING == TABLES.keys()


def test_unknown_user_is_reported(lived: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli("export", "acme", "eve", "--out", tmp_path / "eve", "--state-dir", lived)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "recallflow: user eve of tenant acme has no data here\n"
    assert not any(tmp_path.iterdir())
    assert cli("export", "acme", "ann", "--environment", "dev", "--state-dir", lived).returncode == 1


def test_export_command_writes_private_json_lines(lived: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli("export", "acme", "bob", "--out", tmp_path / "bob", "--state-dir", lived)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = (tmp_path / "bob").read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == exported(lived, "acme", "bob")
    assert stat.S_IMODE((tmp_path / "bob").stat().st_mode) == 0o600


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30).filter(str.strip)


@given(st.lists(st.tuples(texts, texts, st.dictionaries(texts, texts, max_size=2)), min_size=1, max_size=4))
def test_any_events_are_exported(tmp_path_factory: pytest.TempPathFactory, sent: list[Any]) -> None:
    path = tmp_path_factory.mktemp("any") / "s"
    events = [
        {"type": "message", "id": f"m{number}", "content": content, "session_id": session, "metadata": metadata}
        for number, (content, session, metadata) in enumerate(sent)
    ]
    lines = [orjson.dumps(event | {"tenant_id": "t", "user_id": "u"}) for event in events]
    assert not process(lines, Settings(partitions=1), path).rejected
    memories = [one for one in exported(path, "t", "u") if one["type"] == "memory"]
    shown = [{name: one[name] for name in ("id", "content", "session_id", "metadata")} for one in memories]
    assert shown == [{name: event[name] for name in shown[0]} for event in events]


OWNERS = {("acme", "ann", "prod"), ("acme", "ann", "staging"), ("acme", "bob", "prod"), ("other", "ann", "prod")}
# What of a memory another ingestion gives anew, or is numbered by the events that there were.
ANEW = {"ingested_at", "ingested_logged", "change", "episode", "vectors", "stems", "filled", "derived_from"}


def memory_events_of(tenant_id: str, user_id: str, environment: str) -> Iterator[dict[str, Any]]:
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
def exporting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lived") / "s"
    lines = [orjson.dumps(event) for owner in sorted(OWNERS) for event in memory_events_of(*owner)]
    assert not process(lines, Settings(partitions=2), path).rejected
    return path


def memories(path: Path) -> list[dict[str, Any]]:
    found = []
    with StateDirectory.existing(path) as directory:
        for tenant_id, user_id in sorted({owner[:2] for owner in OWNERS}):
            records = [one for one in export(directory, tenant_id, user_id) if one["type"] == "memory"]
            found += [{name: one[name] for name in one.keys() - ANEW} | {"of": (tenant_id, user_id)} for one in records]
    return found


@pytest.mark.parametrize("name", ["memories.jsonl", "memories.parquet"])
def test_exported_memories_can_be_imported_again(exporting: Path, cli: Cli, tmp_path: Path, name: str) -> None:
    done = cli("export", "--memories", "--state-dir", exporting, "--out", tmp_path / name)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    done = cli("replay", tmp_path / name, "--embedded", "--state-dir", tmp_path / "s", "--create", "--partitions", "2")
    assert (done.returncode, "refused" in done.stdout) == (0, False), done.stdout + done.stderr
    there, here = memories(exporting), memories(tmp_path / "s")
    assert len(there) == len(OWNERS) * 7  # m1, and m2 and f1 three times
    assert here == there
    assert not any("not for long" in str(one) for one in here)
    with (
        StateDirectory.existing(tmp_path / "s") as again,
        StateDirectory.existing(exporting) as d,
    ):
        assert sorted(map(orjson.dumps, memory_events(again))) == sorted(map(orjson.dumps, memory_events(d)))


def test_memories_of_a_tenant_or_a_user_alone_are_exported(exporting: Path, cli: Cli) -> None:
    def owners(*chosen: str) -> set[tuple[str, str, str]]:
        done = cli("export", "--memories", *chosen, "--state-dir", exporting)
        events = map(orjson.loads, done.stdout.rstrip("\n").split("\n"))
        return {(one["tenant_id"], one["user_id"], one["environment"]) for one in events}

    assert owners() == OWNERS
    assert owners("acme") == {one for one in OWNERS if one[0] == "acme"}
    assert owners("acme", "ann", "--environment", "staging") == {("acme", "ann", "staging")}


def test_columns_of_parquet_have_types(exporting: Path, cli: Cli, tmp_path: Path) -> None:
    cli("export", "--memories", "acme", "bob", "--state-dir", exporting, "--out", tmp_path / "m", "--format", "parquet")
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
    exporting: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], says: str
) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    done = cli("export", *command, "--state-dir", exporting)
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
    assert ([*tmp_path.iterdir()], before.read_text()) == ([before], "of yesterday")


def test_answers_that_no_engine_wrote_fit_into_a_table(tmp_path: Path) -> None:
    path = tmp_path / "answers.parquet"
    rows: list[dict[str, Any]] = [
        {"query_id": 5, "status": ["ok"], "processing_time_ms": "long"}, {"processing_time_ms": 2**63 - 1},
    ]  # fmt: skip
    write(rows, ANSWERS, "parquet", path)
    first, last = pq.read_table(path).to_pylist()
    assert (first["query_id"], first["status"], first["processing_time_ms"]) == ("5", '["ok"]', None)
    assert last["processing_time_ms"] == float(2**63 - 1)
