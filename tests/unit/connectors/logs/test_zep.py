"""Zep's threads and facts, and Graphiti's episodes, with speakers and times of validity."""

from pathlib import Path
from typing import Any

import orjson

from tests.unit.connectors.logs.reading import Kept, ms, read, times

AT = "2025-07-01T10:00:00.123456Z"


def message(key: str, content: object, **fields: Any) -> dict[str, Any]:
    return {"uuid": key, "role": "user", "content": content, "created_at": AT, "processed": True} | fields


def edge(key: str, fact: object, **fields: Any) -> dict[str, Any]:
    ends = {"source_node_uuid": "n1", "target_node_uuid": "n2", "name": "LIVES_IN", "group_id": "g1"}
    times = {"created_at": AT, "valid_at": "2024-01-01T00:00:00Z", "invalid_at": None, "expired_at": None}
    return {"uuid": key, "fact": fact} | ends | times | fields


NODES = [{"uuid": "n1", "name": "Ann", "summary": "…"}, {"uuid": "n2", "name": "Porto"}]


def written(tmp_path: Path, value: Any) -> Path:
    (tmp_path / "zep.json").write_bytes(value if isinstance(value, bytes) else orjson.dumps(value))
    return tmp_path / "zep.json"


def test_threads(tmp_path: Path) -> None:
    v2 = [message("m1", "Hi", role="Bo", role_type="user"), message("m2", "Hello", role="ai", role_type="assistant")]
    v3 = [message("m3", "Again", name="Bo"), message("m4", " "), message("m5", "x", role="norole")]
    threads = [
        {"session_id": "s1", "user_id": "bo", "messages": v2}, {"thread_id": "t2", "user_id": "bo", "messages": v3},
    ]  # fmt: skip
    for value in (threads, {"threads": threads}, b"\n".join(map(orjson.dumps, threads))):
        found = read(written(tmp_path, value))
        assert (found.format, found.column("id")) == ("zep", ["m1", "m2", "m3", "m5"])
        assert found.column("role") == ["user", "assistant", "user", "user"]
        assert found.column("name") == ["Bo", "ai", "Bo", None]
        assert (found.column("session_id"), {*found.column("user_id")}) == (["s1", "s1", "t2", "t2"], {"bo"})
        assert {*times(found.messages)} == {ms("2025-07-01T10:00:00.123Z")}
        assert found.skipped == {"empty messages": 1}


def test_the_messages_of_one_thread_alone(tmp_path: Path) -> None:
    page = {"messages": [message("m1", "Hi")], "row_count": 1, "user_id": "bo"}
    found = read(written(tmp_path, page))
    assert found.column("session_id") == ["zep.json"]
    assert read(written(tmp_path, page | {"thread_id": "t1"})).column("session_id") == ["t1"]


def test_facts_hold_from_and_to(tmp_path: Path) -> None:
    over = edge("e1", "Ann lives in Porto", invalid_at="2025-01-01T00:00:00Z", expired_at="2025-02-01T00:00:00Z")
    found = read(written(tmp_path, {"edges": [over, edge("e2", "Ann likes Porto")], "nodes": NODES}))
    first, second = found.messages
    assert first["valid_from"] == "2024-01-01T00:00:00Z"
    assert first["relations"] == [
        {"source": "Ann", "type": "LIVES_IN", "target": "Porto", "valid_from": "2024-01-01T00:00:00Z"}
    ]
    assert (first["user_id"], first["kind"], second["id"]) == ("g1", "fact", "e2")
    (end,) = found.updates
    assert (end["memory_id"], end["valid_to"]) == ("e1", "2025-01-01T00:00:00Z")
    assert times([end]) == [ms("2025-02-01T00:00:00Z")]
    kept = Kept(tmp_path / "state")
    assert (kept.take(found.lines), kept.take(found.lines)) == ({"created": 2, "updated": 1}, {"duplicate": 3})


def test_a_fact_that_ended_since_is_ended(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "state")
    assert kept.take(read(written(tmp_path, [edge("e1", "Ann lives in Porto")])).lines) == {"created": 1}
    over = edge("e1", "Ann lives in Porto", invalid_at="2025-01-01T00:00:00Z")
    assert kept.take(read(written(tmp_path, {"facts": [over]})).lines) == {"duplicate": 1, "updated": 1}


def test_episodes_are_messages_or_texts(tmp_path: Path) -> None:
    episodes = [
        {"uuid": "p1", "content": "Ann: Good morning", "source": "message", "valid_at": AT, "group_id": "g1"},
        {"uuid": "p2", "content": "assistant: Hello", "source": "message", "created_at": AT, "group_id": "g1"},
        {"uuid": "p3", "content": "Hi", "source": "message", "role": "Bo", "role_type": "user", "session_id": "s1"},
        {"uuid": "p4", "content": "A page of a book", "source": "text", "created_at": AT},
        {"uuid": "p5", "content": "", "source": "text"},
    ]
    found = read(written(tmp_path, {"episodes": episodes, "nodes": []}))
    assert found.column("type") == ["message", "message", "message", "memory"]
    assert found.column("content") == ["Good morning", "Hello", "Hi", "A page of a book"]
    assert found.column("name") == ["Ann", None, "Bo", None]
    assert found.column("role")[:3] == ["user", "assistant", "user"]
    assert found.column("session_id")[:3] == ["g1", "g1", "s1"]
    assert (found.column("user_id"), found.skipped) == (["g1", "g1", "ann", "ann"], {"empty messages": 1})


def test_malformed_entries_are_refused_alone(tmp_path: Path) -> None:
    messages = [
        message("m1", "caf@"), 7, message("m2", "x", role="narrator"), message("m3", "when?", created_at="soon"),
    ]  # fmt: skip
    threads = [{"thread_id": "t1", "messages": messages}, {"thread_id": "t2"}, "odd"]
    found = read(written(tmp_path, orjson.dumps(threads).replace(b"caf@", b"caf\xe9")))
    assert (found.column("content"), len(found.refused)) == (["caf\ufffd"], 5)
    facts = read(written(tmp_path, {"edges": [edge("e1", None), edge("e2", "good"), 7]}))
    assert (facts.column("content"), len(facts.refused)) == (["good"], 2)
