"""Claude's export: messages with ids and times; blocks without words are counted."""

from pathlib import Path
from typing import Any

import orjson

from tests.unit.connectors.logs.reading import ms, read, times, zipped


def message(key: str, sender: str, *texts: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text} for text in texts]
    given = {"uuid": key, "sender": sender, "created_at": "2026-02-14T10:04:22.123456Z", "content": content}
    return given | {"text": "".join(texts), "attachments": [], "files": []} | fields


def conversation(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {
        "uuid": "talk-1", "name": "Moths", "created_at": "2026-02-14T10:00:00Z", "chat_messages": [*messages],
    } | fields  # fmt: skip


def written(tmp_path: Path, *conversations: Any) -> Path:
    (tmp_path / "conversations.json").write_bytes(orjson.dumps(conversations))
    return tmp_path / "conversations.json"


def test_messages_come_with_ids_times_and_roles(tmp_path: Path) -> None:
    talk = conversation(
        message("m1", "human", "What flies at dusk?"),
        message("m2", "assistant", "Hawk-moths.", "And bats.", created_at="2026-02-14T11:04:30+01:00"),
        message("m3", "human", "", content=[], text="An older export had text alone.", created_at=None),
    )
    found = read(written(tmp_path, talk))
    assert (found.format, found.column("id")) == ("claude", ["m1", "m2", "m3"])
    assert found.column("role") == ["user", "assistant", "user"]
    assert found.column("content")[1:] == ["Hawk-moths.\nAnd bats.", "An older export had text alone."]
    assert times(found.messages) == [
        ms("2026-02-14T10:04:22.123Z"), ms("2026-02-14T10:04:30Z"), ms("2026-02-14T10:00:00Z"),
    ]  # fmt: skip
    assert found.column("session_id") == ["talk-1"] * 3
    assert found.column("metadata") == [{"source": "claude", "title": "Moths"}, *[{"source": "claude"}] * 2]


def test_blocks_that_are_no_words_are_counted(tmp_path: Path) -> None:
    blocks = [{"type": "thinking", "thinking": "…"}, {"type": "tool_use"}, {"type": "tool_result"}, {"type": "odd"}]
    file = {"file_name": "trip.txt", "extracted_content": "Three pages of it."}
    talk = conversation(
        message("m1", "assistant", content=[*blocks, {"type": "text", "text": "Done."}], text="not supported"),
        message("m2", "assistant", content=blocks[1:2], text="This block is not supported."),
        message("m3", "human", attachments=[file], files=[{"file_name": "kite.png"}]),
        message("m4", "human"),
    )
    found = read(written(tmp_path, talk))
    assert found.column("content") == ["Done.", "[file: trip.txt]\n[file: kite.png]"]
    assert found.skipped == {
        "reasoning": 1, "calls of tools": 2, "results of tools": 1, "blocks of type odd": 1,
        "texts of attached files": 1, "empty messages": 1,
    }  # fmt: skip


def test_only_the_shown_branch_is_read(tmp_path: Path) -> None:
    root = "00000000-0000-4000-8000-000000000000"
    messages = [
        message("m1", "human", "?", parent_message_uuid=root),
        message("m2", "assistant", "old", parent_message_uuid="m1"),
        message("m3", "assistant", "new", parent_message_uuid="m1"),
    ]
    found = read(written(tmp_path, conversation(*messages, current_leaf_message_uuid="m3")))
    assert (found.column("id"), found.skipped) == (["m1", "m3"], {"messages of other branches": 1})
    assert read(written(tmp_path, conversation(*messages))).column("id") == ["m1", "m2", "m3"]
    unknown = conversation(*messages, current_leaf_message_uuid=["m3"])
    assert read(written(tmp_path, unknown)).column("id") == ["m1", "m2", "m3"]


def test_zip_is_recognised_by_its_other_files(tmp_path: Path) -> None:
    files = {"conversations.json": orjson.dumps([conversation(message("m1", "human", "one"))])}
    found = read(zipped(tmp_path / "data.zip", files | {"users.json": b"[{}]", "projects.json": b"[]"}))
    assert ((found.format, found.column("id")), found.skipped) == (("claude", ["m1"]), {"files of another kind": 2})
    assert read(zipped(tmp_path / "alone.zip", files)).format == "claude"


def test_malformed_entries_are_refused_alone(tmp_path: Path) -> None:
    talk = conversation(
        message("m1", "human", "bad time", created_at="yesterday"), "no message",
        message("m2", "narrator", "no such role"), message("m3", "human", "good"),
        message("m4", "human", "deep", created_at={"a": {"b": 1}}),
    )  # fmt: skip
    found = read(written(tmp_path, talk, {"uuid": "x"}, 7))
    assert (found.column("id"), len(found.refused)) == (["m3"], 6)
    assert b"conversation 1, message 2: is no message" in found.refused[1]
