"""Slack's export: channels as owners, threads as sessions, names for ids; other entries are counted."""

from pathlib import Path
from typing import Any

import orjson

from tests.unit.connectors.logs.reading import Kept, folder, ms, read, times, zipped

USERS = [
    {"id": "U1", "name": "ann", "deleted": False, "profile": {"display_name": "Ann", "real_name": "Ann A."}},
    {"id": "U2", "name": "bo", "deleted": True, "profile": {"display_name": "", "real_name": "Bo B."}},
]
LISTS = {
    "users.json": orjson.dumps(USERS),
    "channels.json": orjson.dumps([{"id": "C1", "name": "trip", "members": ["U1", "U2"]}]),
    "dms.json": orjson.dumps([{"id": "D1", "members": ["U2", "U1"]}]),
    "mpims.json": orjson.dumps([{"id": "G1", "name": "mpdm-ann--bo--cy-1", "members": ["U1"]}]),
    "integration_logs.json": b"[]",
}


def said(ts: str, text: str = "", user: str | None = "U1", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "ts": ts, "text": text} | ({} if user is None else {"user": user}) | fields


def export(*messages: Any, **others: list[Any]) -> dict[str, bytes]:
    days = {name.replace("__", "/") + "/2026-01-31.json": orjson.dumps(day) for name, day in others.items()}
    return LISTS | {"trip/2026-01-30.json": orjson.dumps(messages)} | days


def test_message_without_a_time_is_refused_and_empty_files_counted(tmp_path: Path) -> None:
    timeless = {"type": "message", "text": "when?", "user": "U1"}
    files = LISTS | {"trip/2026-01-30.json": orjson.dumps([timeless, said("1.1", "now")]), "trip/2026-01-31.json": b""}
    for path in (zipped(tmp_path / "export.zip", files), folder(tmp_path / "export", files)):
        found = read(path)
        assert (found.column("content"), found.skipped["empty files"]) == (["now"], 1)
        (refused,) = found.refused
        assert refused.startswith(b"trip/2026-01-30.json, 1: has no time (ts)")


def test_channels_threads_and_people(tmp_path: Path) -> None:
    files = export(
        said("1769767200.000100", "Who brings the kite?", thread_ts="1769767200.000100", reply_count=1),
        said("1769767201.000200", "Me", "U2", thread_ts="1769767200.000100"),
        said("1769767202.345678", "Also here", "U9", subtype="thread_broadcast", thread_ts="1769767200.000100"),
        said("1769767203.000000", "was renamed", "U8", user_profile={"display_name": "", "real_name": "Cy"}),
        D1=[said("1769767300.000000", "Just us")],
        **{"mpdm-ann--bo--cy-1": [said("1769767400.000000", "Three of us")]},
    )
    found = read(folder(tmp_path / "export", files))
    assert found.format == "slack"
    assert found.column("user_id") == ["dm Ann, Bo B.", "mpdm-ann--bo--cy-1", *["trip"] * 4]
    assert found.column("id")[2:4] == ["C1-1769767200.000100", "C1-1769767201.000200"]
    assert found.column("session_id") == ["D1", "G1", "C1", *["C1-1769767200.000100"] * 2, "C1"]
    assert found.column("name") == ["Ann", "Ann", "Ann", "Bo B.", "U9", "Cy"]
    assert times(found.messages)[2:5] == [
        ms("2026-01-30T10:00:00Z"), ms("2026-01-30T10:00:01Z"), ms("2026-01-30T10:00:02.345Z"),
    ]  # fmt: skip
    thread = {"source": "slack", "channel": "trip", "thread": "C1-1769767200.000100"}
    assert found.column("metadata")[2:4] == [{"source": "slack", "channel": "trip"}, thread]
    assert found.skipped == {"files of another kind": 1}


def test_marks_are_read_as_people_read_them(tmp_path: Path) -> None:
    files = export(
        said("1.1", "<@U2> &amp; <@U7|cy> in <#C1|trip>, <!here> <!subteam^S1|@crew> <!channel>"),
        said("1.2", "<https://a.b/c|the plan> <https://a.b> <mailto:a@b.c|a@b.c> 1 &lt; 2"),
        said("1.3", "", files=[{"name": "kite.png"}, {"mode": "tombstone"}]),
    )
    assert read(zipped(tmp_path / "export.zip", files)).column("content") == [
        "@Bo B. & @cy in #trip, @here @crew @channel",
        "the plan (https://a.b/c) https://a.b a@b.c 1 < 2",
        "[file: kite.png]\n[file]",
    ]


def test_bots_speak_in_attachments_and_blocks(tmp_path: Path) -> None:
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": "Build"}, "fields": [{"text": "passed"}]}]
    rich = [{"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": [{"text": "Hi"}]}]}]
    files = export(
        said("1.1", "", None, subtype="bot_message", username="CI", attachments=[{"title": "Build", "text": "failed"}]),
        said("1.2", "", None, subtype="bot_message", bot_id="B1", attachments=[{"fallback": "Build passed"}, "odd"]),
        said("1.3", "", None, bot_id="B1", bot_profile={"name": "Deploys"}, blocks=blocks),
        said("1.4", "", blocks=rich),
        said("1.5", "see <https://a.b>", attachments=[{"title": "A preview"}]),
    )
    found = read(zipped(tmp_path / "export.zip", files))
    assert found.column("content")[:4] == ["Build\nfailed", "Build passed", "Build\npassed", "Hi"]
    assert found.column("role") == ["assistant", "assistant", "assistant", "user", "user"]
    assert found.column("name") == ["CI", "B1", "Deploys", "Ann", "Ann"]
    assert found.skipped["attachments beside a message's own text"] == 1


def test_other_entries_are_counted_by_kind(tmp_path: Path) -> None:
    files = export(
        said("1.1", "<@U1> has joined", subtype="channel_join"),
        said("1.2", "<@U1> has left", subtype="channel_leave"),
        said("1.3", "<@U2> has joined", subtype="channel_join"),
        said("1.4", "This message was deleted.", subtype="tombstone", hidden=True),
        said("1.5", "unseen", hidden=True), said("1.6", ""), said("1.7", "waves", subtype="me_message"),
    )  # fmt: skip
    found = read(zipped(tmp_path / "export.zip", files))
    assert found.column("content") == ["waves"]
    assert found.skipped == {
        "channel_join": 2, "channel_leave": 1, "deleted messages": 1, "hidden messages": 1, "empty messages": 1,
        "files of another kind": 1,
    }  # fmt: skip


def test_malformed_entries_are_refused_alone(tmp_path: Path) -> None:
    day = b'[{"type":"message","ts":"1.1","text":"caf\xe9","user":"U1"},7,{"type":"message","ts":"x","text":"when?"},'
    deep = b'{"ts":"1.2","text":"","blocks":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    files = LISTS | {"trip/2026-01-30.json": day + deep + b',{"ts":"1.3","text":{}},{"ts":"1.4","text":"end"}'}
    found = read(zipped(tmp_path / "export.zip", files | {"gone/2026-01-30.json": b'[{"ts":"1.1","text":"old"}]'}))
    assert (found.column("content"), found.column("user_id")[0]) == (["old", "caf\ufffd", "end"], "gone")
    assert len(found.refused) == 4  # with the end that is missing


def test_an_edit_becomes_a_version(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "state")
    first = export(said("1.1", "at nine"), said("1.2", "sharp", edited={"user": "U1", "ts": "1.9"}))
    found = read(zipped(tmp_path / "one.zip", first))
    assert [one["id"] for one in found.updates] == ["C1-1.2~1.9"]
    assert kept.take(found.lines) == {"created": 2, "unchanged": 1}
    second = export(said("1.1", "at ten", edited={"user": "U1", "ts": "2.5"}), said("1.2", "sharp"), said("1.3", "ok"))
    third = zipped(tmp_path / "two.zip", second)
    assert kept.take(read(third).lines) == {"id_conflict": 1, "updated": 1, "duplicate": 1, "created": 1}
    assert kept.versions("C1-1.1", "trip") == ["at nine", "at ten"]
    assert kept.take(read(third).lines) == {"id_conflict": 1, "duplicate": 3}
    assert kept.contents("trip") == ["at ten", "sharp", "ok"]
