"""mem0's memories: pages, exports and histories, under the owners of mem0's interface."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.connectors.logs.reading import Kept, ms, read, times

CREATED, UPDATED = "2025-07-01T10:00:00.123456-07:00", "2025-07-02T10:00:00-07:00"


def memory(key: str, text: object, **fields: Any) -> dict[str, Any]:
    start = {
        "id": key, "memory": text, "user_id": "alex", "metadata": None, "created_at": CREATED, "updated_at": CREATED,
    }  # fmt: skip
    return start | fields


def written(tmp_path: Path, value: Any) -> Path:
    (tmp_path / "memories.json").write_bytes(value if isinstance(value, bytes) else orjson.dumps(value))
    return tmp_path / "memories.json"


ONE = memory("m1", "Likes tea", categories=["food", "habits"], metadata={"seen": 2}, expiration_date="2025-12-31")


@pytest.mark.parametrize(
    "value",
    [
        [ONE], {"results": [ONE]}, {"count": 1, "next": None, "previous": None, "results": [ONE]},
        {"memories": [ONE]}, ONE, orjson.dumps(ONE) + b"\n", b'{"results": []}\n' + orjson.dumps({"results": [ONE]}),
    ],
)  # fmt: skip
def test_every_shape(tmp_path: Path, value: Any) -> None:
    found = read(written(tmp_path, value))
    assert found.format == "mem0"
    (event,) = found.events
    assert times([event]) == [ms("2025-07-01T17:00:00.123Z")]
    del event["timestamp"]
    assert event == {
        "type": "memory", "tenant_id": "acme", "environment": "prod", "user_id": "alex", "id": "m1",
        "content": "Likes tea", "category": "food", "tags": ["food", "habits"], "metadata": {"seen": 2},
        "expires_at": "2026-01-01",
    }  # fmt: skip


def test_owners_are_those_of_the_interface(tmp_path: Path) -> None:
    memories = [
        memory("m1", "a", run_id="r1", agent_id="cook", app_id="kitchen"),
        memory("m2", "b", user_id=None, agent_id="cook"), memory("m3", "c", user_id=None, run_id="r1"),
        memory("m4", "d", user_id=None),
    ]  # fmt: skip
    found = read(written(tmp_path, memories))
    assert found.column("user_id") == ["alex", "agent:cook", "run:r1", "ann"]
    assert [found.events[0][field] for field in ("session_id", "project_id", "metadata")] == [
        "r1", "kitchen", {"agent_id": "cook"},
    ]  # fmt: skip
    assert {*read(tmp_path / "memories.json", user_given=True).column("user_id")} == {"ann"}


def test_relations_are_counted(tmp_path: Path) -> None:
    found = read(written(tmp_path, {"results": [ONE], "relations": [{"source": "alex", "target": "tea"}]}))
    assert found.skipped == {"relations of mem0's graph": 1}


def test_a_change_becomes_a_version(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "state")
    assert kept.take(read(written(tmp_path, [memory("m1", "Likes tea")])).lines) == {"created": 1}
    newer = read(written(tmp_path, [memory("m1", "Likes coffee", updated_at=UPDATED), memory("m2", "Has a cat")]))
    assert kept.take(newer.lines) == {"id_conflict": 1, "updated": 1, "created": 1}
    assert kept.versions("m1", "alex") == ["Likes tea", "Likes coffee"]
    fresh = Kept(tmp_path / "fresh")
    assert (fresh.take(newer.lines), fresh.take(newer.lines)) == ({"created": 2, "unchanged": 1}, {"duplicate": 3})


def test_history_becomes_events_in_order(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"id": "h1", "memory_id": "m1", "event": "ADD", "old_memory": None, "new_memory": "Likes tea"},
        {"id": "h2", "memory_id": "m1", "event": "UPDATE", "old_memory": "Likes tea", "new_memory": "Likes coffee"},
        {"id": "h3", "memory_id": "m2", "event": "ADD", "old_memory": None, "new_memory": "Has a cat"},
        {"id": "h4", "memory_id": "m2", "event": "DELETE", "old_memory": "Has a cat", "new_memory": None},
    ]
    timed = [{**one, "user_id": "alex", "created_at": CREATED, "updated_at": UPDATED} for one in steps]
    found = read(written(tmp_path, timed))
    kept = Kept(tmp_path / "state")
    assert kept.take(found.lines) == {"created": 2, "updated": 1, "forgotten": 1}
    assert (kept.contents("alex"), kept.versions("m1", "alex")) == (["Likes coffee"], ["Likes tea", "Likes coffee"])


def test_malformed_entries_are_refused_alone(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(240):
        deep = [deep]
    values = [memory("m1", "caf@"), 7, memory("m2", 8), memory("m3", "when?", created_at="soon", updated_at=None)]
    values += [
        memory("m4", "whose?", user_id="agent:x"), memory("m5", "deep", metadata={"a": deep}), memory("m6", "end"),
    ]  # fmt: skip
    found = read(written(tmp_path, orjson.dumps(values).replace(b"caf@", b"caf\xe9")))
    assert (found.column("content"), len(found.refused)) == (["caf\ufffd", "end"], 5)
