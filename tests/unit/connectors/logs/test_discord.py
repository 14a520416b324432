"""DiscordChatExporter's JSON: channels, threads and direct messages, with edits and attachments."""

from pathlib import Path
from typing import Any

import orjson

from tests.unit.connectors.logs.reading import read

AT, EDITED = "2026-01-30T12:00:00.123+00:00", "2026-01-30T13:00:00+00:00"


def said(number: int, content: str, **fields: Any) -> dict[str, Any]:
    author = {"id": "3", "name": "ann", "discriminator": "0000", "nickname": "Ann", "isBot": False}
    message = {"id": str(number), "type": "Default", "timestamp": AT, "timestampEdited": None, "content": content}
    return message | {"author": author, "attachments": [], "embeds": [], "stickers": []} | fields


def channel(*messages: Any, guild: str = "Kite Club", **fields: Any) -> dict[str, Any]:
    about = {"id": "5", "type": "GuildTextChat", "categoryId": "4", "category": "Text", "name": "general"} | fields
    of = {"id": "0" if guild == "Direct Messages" else "1", "name": guild}
    return {"guild": of, "channel": about, "messages": messages, "messageCount": len(messages)}


def written(path: Path, value: Any) -> Path:
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    return path


FULL = channel(
    said(1, "Who brings the kite?", timestampEdited=EDITED),
    said(2, "", attachments=[{"fileName": "plan.pdf"}], stickers=[{"name": "kite"}]),
    said(3, "Me.", type="Reply", reference={"messageId": "1"}, author={"id": "4", "name": "bo", "isBot": False}),
    said(4, "", type="20", embeds=[{"title": "Wind", "description": "4 bft"}], author={"name": "Wind", "isBot": True}),
    said(5, "", forwardedMessage={"content": "Saturday!"}),
    said(6, "pinned a message", type="ChannelPinnedMessage"),
    said(7, ""),
)


def test_messages_of_a_channel(tmp_path: Path) -> None:
    found = read(written(tmp_path / "general.json", FULL))
    assert found.format == "discord"
    contents = [
        "Who brings the kite?", "[file: plan.pdf]\n[sticker kite]", "Me.", "Wind\n4 bft", "[forwarded]\nSaturday!",
    ]  # fmt: skip
    assert (found.column("content"), found.column("name")) == (contents, ["Ann", "Ann", "bo", "Wind", "Ann"])
    assert found.column("role") == ["user", "user", "user", "assistant", "user"]
    assert found.column("id") == ["5-1", "5-2", "5-3", "5-4", "5-5"]
    assert {*found.column("user_id")} == {"Kite Club #general"}
    assert found.messages[2]["metadata"]["reply_to"] == "5-1"
    assert [one["memory_id"] for one in found.updates] == ["5-1"]
    assert found.skipped == {"service messages (ChannelPinnedMessage)": 1, "empty messages": 1}


def test_threads_belong_to_channels_and_people_stay_separate(tmp_path: Path) -> None:
    thread = channel(said(1, "one"), id="9", type="GuildPublicThread", category="general", name="Kites")
    found = read(written(tmp_path / "t.json", thread))
    assert (found.column("user_id"), found.column("session_id")) == (["Kite Club #general"], ["9"])
    owners = []
    for number in ("7", "8"):
        direct = channel(said(1, "one"), guild="Direct Messages", id=number, type="DirectTextChat", name="Bo")
        owners += read(written(tmp_path / f"{number}.json", direct)).column("user_id")
    assert owners == ["dm Bo 7", "dm Bo 8"]
    assert read(tmp_path / "7.json", user_given=True).column("user_id") == ["ann"]
