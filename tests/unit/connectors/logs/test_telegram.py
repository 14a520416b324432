"""Telegram's export: of one chat or an account, with edits, forwards, and accounts that are gone."""

from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest

from tests.unit.connectors.logs.reading import folder, ms, read, times


def said(number: int, text: Any, **fields: Any) -> dict[str, Any]:
    start = {"id": number, "type": "message", "date": "2026-01-30T12:00:00", "date_unixtime": f"{1769767200 + number}"}
    return start | {"from": "Ann", "from_id": "user1", "text": text} | fields


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"name": "Trip", "type": "private_group", "id": 4242, "messages": [*messages]} | fields


def written(tmp_path: Path, value: Any) -> Path:
    (tmp_path / "result.json").write_bytes(orjson.dumps(value))
    return tmp_path / "result.json"


def account(*chats: Any, left: tuple[Any, ...] = ()) -> dict[str, Any]:
    about = {"about": "Here is the data", "personal_information": {"user_id": 1}, "contacts": {"list": []}}
    return about | {"chats": {"about": "", "list": [*chats]}, "left_chats": {"about": "", "list": [*left]}}


def test_a_chat(tmp_path: Path) -> None:
    pieces = ["See ", {"type": "text_link", "text": "the plan", "href": "https://a.b"}, {"type": "bold", "text": "!"}]
    found = read(
        written(
            tmp_path,
            chat(
                {"id": 1, "type": "service", "actor": "Ann", "action": "create_group", "text": ""},
                said(2, "Who brings the kite?"),
                said(3, pieces, reply_to_message_id=2, **{"from": None, "from_id": "user77"}),
                said(4, "Not mine", forwarded_from="Cy"),
                said(5, ""),
                said(6, "", photo="(File not included. Change data exporting settings to download.)"),
                said(7, "look", file="files/plan.pdf", file_name="plan.pdf", mime_type="application/pdf"),
                said(8, "", media_type="sticker", sticker_emoji="\U0001f98b", file="(File not included.)"),
                said(9, "", poll={"question": "When?", "answers": [{"text": "nine"}, {"text": "ten"}]}),
                {"id": 10, "type": "service", "actor": "Bo", "action": "phone_call", "text": ""},
            ),
        )
    )
    assert found.format == "telegram"
    assert found.column("id") == [f"4242-{number}" for number in (2, 3, 4, 6, 7, 8, 9)]
    assert found.column("content") == [
        "Who brings the kite?", "See the plan (https://a.b)!", "[forwarded from Cy]\nNot mine", "[photo]",
        "[file: plan.pdf]\nlook", "[sticker \U0001f98b]", "[poll: When?: nine, ten]",
    ]  # fmt: skip
    assert found.column("name")[:3] == ["Ann", "deleted account user77", "Ann"]
    assert times(found.messages)[:2] == [ms("2026-01-30T10:00:02Z"), ms("2026-01-30T10:00:03Z")]
    assert found.column("metadata")[1] == {"source": "telegram", "reply_to": "4242-2"}
    assert ({*found.column("user_id")}, {*found.column("session_id")}) == ({"Trip"}, {"4242"})
    assert found.skipped == {
        "service messages (create_group)": 1, "service messages (phone_call)": 1, "empty messages": 1,
    }  # fmt: skip


def test_an_account_has_an_owner_a_chat(tmp_path: Path) -> None:
    bot = chat(said(1, "/start"), said(2, "Hello", from_id="user9"), type="bot_chat", id=9, name="Helper")
    chats = (chat(said(1, "one")), bot, chat(said(1, "note"), type="saved_messages", id=1, name=None))
    value = account(
        *chats, chat(said(1, "gone"), name=None, id=55, type="personal_chat"), left=(chat(said(1, "x"), id=7),)
    )
    found = read(written(tmp_path, value))
    assert found.column("user_id") == ["Trip", "ann", "ann", "ann", "chat 55", "Trip"]
    assert found.column("role") == ["user", "user", "assistant", "user", "user", "user"]
    assert found.column("session_id") == ["4242", "9", "9", "1", "55", "7"]
    assert {*read(tmp_path / "result.json", user_given=True).column("user_id")} == {"ann"}


def test_the_folder_is_read_without_its_files(tmp_path: Path) -> None:
    files = {"result.json": orjson.dumps(chat(said(1, "one"))), "photos/a.jpg": b"\xff\xd8"}
    found = read(folder(tmp_path / "ChatExport", files))
    assert (found.column("content"), found.skipped) == (["one"], {"files of another kind": 1})


def test_older_exports_have_the_time_of_the_machine_alone(tmp_path: Path) -> None:
    message = said(1, "one")
    del message["date_unixtime"]
    path = written(tmp_path, chat(message))
    assert times(read(path).messages) == [ms("2026-01-30T12:00:00Z")]
    assert times(read(path, zone=ZoneInfo("Asia/Tokyo")).messages) == [ms("2026-01-30T03:00:00Z")]


@pytest.mark.parametrize("wrap", [chat, lambda *messages: account(chat(*messages))])
def test_malformed_entries_are_refused_alone(tmp_path: Path, wrap: Any) -> None:
    messages = [
        said(1, "caf@"), 7, said(2, "when?", date_unixtime="soon"), said(3, [["odd"], {"text": 1}]), said(4, "end"),
    ]  # fmt: skip
    deep = b"[" * 50_000 + b"]" * 50_000
    text = orjson.dumps(wrap(*messages, said(5, "@deep"))).replace(b"caf@", b"caf\xe9").replace(b'"@deep"', deep)
    (tmp_path / "result.json").write_bytes(text)
    found = read(tmp_path / "result.json")
    assert (found.column("content"), len(found.refused)) == (["caf\ufffd", "end"], 3)
    assert found.skipped == {"empty messages": 1}


def test_reasons_are_no_more_than_people_read(tmp_path: Path) -> None:
    messages = [{"id": number, "type": "service", "action": f"{number}\n{'x' * 500}"} for number in range(500)]
    found = read(written(tmp_path, chat(*messages)))
    assert (found.skipped.total(), len(found.skipped)) == (500, 101)
    assert max(map(len, found.skipped)) <= 64
