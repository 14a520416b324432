"""Any value anywhere in an export: a reader yields events or lines that the decode step refuses."""

from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallflow.connectors.logs.events import ImportScope, LogFormat, LogSource
from recallflow.connectors.logs.registry import FORMATS
from recallflow.connectors.logs.tables import csv_format
from recallflow.errors import InvalidRecord, UsageError
from recallflow.parsing import parse
from tests.unit.connectors.logs import (
    test_chatgpt,
    test_claude,
    test_discord,
    test_mbox,
    test_mem0,
    test_slack,
    test_telegram,
    test_zep,
)
from tests.unit.connectors.logs.reading import read
from tests.unit.connectors.logs.test_whatsapp import ANDROID, IOS

DEEP: Any = ["stands for brackets within brackets"]
_MARK = "(deep)"
STRANGE = [
    None, True, 0, -1.5, 10**18, "", "x" * 600, "\n\x00\x1b", "\u200e", [], {}, [[]], {"id": {}}, DEEP,
    {"text": DEEP},
]  # fmt: skip


class Held:
    """A source in memory."""

    def __init__(self, name: str, content: bytes = b"", files: Iterable[tuple[str, bytes]] = ()) -> None:
        self.name = name
        self._content = content
        self._files = [Held(*one) for one in files]

    def open(self) -> BinaryIO:
        return BytesIO(self._content)

    def members(self) -> list["LogSource"]:
        return [*self._files]


def document(name: str) -> Any:
    """An export that has everything in it that a format has."""
    g, c, t, m, z = test_chatgpt, test_claude, test_telegram, test_mem0, test_zep
    picture = {
        "content_type": "multimodal_text",
        "parts": [{"content_type": "image_asset_pointer"}, "a", {"text": "b"}],
    }
    attached: dict[str, Any] = {"metadata": {"attachments": [{"name": "a.pdf"}], "model_slug": "x"}}
    edited = {"edited": "2026-01-30T13:00:00", "edited_unixtime": "1769770800"}
    sent = {"file": "a/b.pdf", "file_name": "b.pdf", "poll": {"question": "?", "answers": [{"text": "a"}]}}
    blocks = [{"type": "text", "text": "a"}, {"type": "thinking"}]
    return {
        "chatgpt": [
            g.conversation(g.node("q", "root", "user", content=picture), g.node("a", "q", "user", "b", **attached))
        ],
        "claude": [
            c.conversation(
                c.message("m1", "human", "a", parent_message_uuid="0"),
                c.message("m2", "human", content=blocks, files=[{"file_name": "f"}], parent_message_uuid="m1"),
                current_leaf_message_uuid="m2",
            )
        ],
        "telegram": t.account(
            t.chat(t.said(1, ["a", {"type": "link", "text": "b", "href": "c"}], **edited), t.said(2, "b", **sent)),
            t.chat(
                {"id": 1, "type": "service", "action": "join"}, t.said(2, "c", forwarded_from="Bo"), type="bot_chat",
                id=9,
            ),
        ),
        "mem0": {"results": [m.ONE, m.memory("m2", "b", updated_at=m.UPDATED)]},
        "discord": test_discord.FULL,
        "sharegpt": [{"id": "a", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}],
        "zep": {"edges": [z.edge("e1", "a", invalid_at=z.AT)], "nodes": z.NODES, "messages": [z.message("m1", "a")]},
    }[name]  # fmt: skip


SLACK: dict[str, Any] = {
    "users.json": test_slack.USERS,
    "channels.json": [{"id": "C1", "name": "trip"}, {"id": "D1", "members": ["U1"]}],
    "trip/2026-01-30.json": [
        test_slack.said("1.1", "<@U1>", edited={"ts": "2.1"}, files=[{"name": "a"}], attachments=[{"text": "b"}]),
        test_slack.said("1.2", "", blocks=[{"text": {"text": "b"}, "elements": [{"text": "c"}]}], thread_ts="1.1"),
        test_slack.said("1.3", "left", subtype="channel_leave", user_profile={"name": "a"}),
    ],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], strange: Any) -> Any:
    if not path:
        return strange
    copy = dict(value) if isinstance(value, dict) else [*value]
    copy[path[0]] = changed(copy[path[0]], path[1:], strange)
    return copy


def check(log_format: LogFormat, source: Any) -> None:
    scope = ImportScope(date_order="dmy")
    with suppress(UsageError):  # that it is told why nothing more is read is enough
        for line in log_format.read(source, scope):
            assert len(line) <= 1024 * 1024 + 1
            with suppress(InvalidRecord):
                parse(line)
    assert all(count > 0 for count in scope.skipped.values())


def format_of(name: str) -> LogFormat:
    return next(one for one in (*FORMATS, csv_format({})) if one.name == name)


DOCUMENTS = ("chatgpt", "claude", "telegram", "mem0", "zep", "discord", "sharegpt")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_in_any_place_of_a_document(name: str) -> None:
    value = document(name)
    for path in places(value):
        for strange in STRANGE:
            check(format_of(name), Held("export.json", _written(changed(value, path, strange))))


def test_any_value_in_any_place_of_a_workspace() -> None:
    for path in places(SLACK):
        if not path:
            continue
        for strange in STRANGE:
            files = changed(SLACK, path, strange)
            check(format_of("slack"), Held("export", files=[(name, _written(files[name])) for name in SLACK]))


def _written(value: Any) -> bytes:
    """As JSON, with as many levels as are asked for: orjson writes 254 of them, and reads 1,024."""
    text = orjson.dumps(_marked(value))
    return text.replace(orjson.dumps(_MARK), b"[" * 1_000 + b"]" * 1_000)


def _marked(value: Any) -> Any:
    if value is DEEP:
        return _MARK
    if isinstance(value, dict):
        return {key: _marked(one) for key, one in value.items()}
    return [_marked(one) for one in value] if isinstance(value, list) else value


WHOLE = {name: orjson.dumps(document(name)) for name in DOCUMENTS} | {
    "whatsapp": (ANDROID + IOS).encode(),
    "csv": b'user,text,role,created\nu1,"a\n""b""",user,2026-01-30\nu2,c,user,1769770800\n',
    "mbox": b"".join(
        test_mbox.FROM + one.as_bytes() + b"\n" for one in (test_mbox.mail(1, "> a\nb"), test_mbox.mail(2))
    ),
}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_any_bytes_in_any_place(name: str, data: st.DataObject) -> None:
    text = WHOLE[name]
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 40)) | st.just(len(text)))
    damaged = text[:at] + data.draw(st.binary(max_size=20)) + text[end:]
    check(format_of(name), Held("export.json", damaged))


def test_formats_are_recognised(tmp_path: Path) -> None:
    for name, text in WHOLE.items():
        (tmp_path / "export").write_bytes(text if name != "whatsapp" else ANDROID.encode())
        assert read(tmp_path / "export").format == name
