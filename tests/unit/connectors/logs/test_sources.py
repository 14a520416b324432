"""Logs from files, archives and standard input, and their owners; any value anywhere in an export."""

import gzip
import io
import shutil
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallflow.connectors.logs import documents, sources
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.owners import unclear_identities
from recallflow.connectors.logs.registry import FORMATS, Log, Registry, log_name
from recallflow.connectors.logs.sources import LogFile, LogHead, open_source
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
from tests.unit.connectors.logs.reading import Read, folder, read
from tests.unit.connectors.logs.test_whatsapp import ANDROID, IOS

SCOPE = ImportScope("acme", "ann", "test")
MEGABYTE = 1024 * 1024


def event(n: int, content: str = "hello") -> bytes:
    return orjson.dumps({"type": "message", "tenant_id": "acme", "user_id": "ann", "id": f"m{n}", "content": content})


EVENTS = [event(n) for n in range(50)]
LINES = b"\n".join(EVENTS) + b"\n"

Write = Callable[[str, bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return written


def logs_of(path: Path | str) -> list[Log]:
    return Registry().logs_of(open_source(path))[0]


def values(path: Path | str) -> list[bytes]:
    return [value for log in logs_of(path) for value in log.read(SCOPE)]


def zstd(*parts: bytes) -> bytes:
    return b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts)


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.jsonl.gz", gzip.compress(LINES, mtime=0)),
        (
            "log.jsonl.gz", gzip.compress(LINES[:1000], mtime=0) + gzip.compress(LINES[1000:], mtime=0),
        ),  # two in a row, as logrotate does
        ("log.jsonl.zst", zstd(LINES)),
        ("log.jsonl.zst", zstd(LINES[:1000], LINES[1000:])),
        ("log.jsonl.gz", LINES),  # a browser decompressed it and kept the name
        ("log.jsonl", gzip.compress(LINES, mtime=0)),
    ],
)  # fmt: skip
def test_compression_is_detected_by_content(write: Write, name: str, content: bytes) -> None:
    path = write(name, content)
    assert (values(path), logs_of(path)[0].source.name) == (EVENTS, "log.jsonl")


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.jsonl.zst"])
@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_broken_archive_is_read_up_to_the_break(write: Write, name: str, how: str) -> None:
    draw = Random(0)
    lines = b"\n".join(event(n, draw.randbytes(200).hex()) for n in range(5_000)) + b"\n"
    content = bytearray(gzip.compress(lines, 1) if name.endswith("gz") else zstd(lines))
    at = len(content) * 3 // 4
    content[at:] = b"" if how == "cut" else bytes(byte ^ 0xFF for byte in content[at:])
    path = write(name, bytes(content))
    read: list[bytes] = []
    with pytest.raises(UsageError, match=f"{name}: is damaged or incomplete") as caught:
        read.extend(logs_of(path)[0].read(SCOPE))
    assert "\n" not in str(caught.value)
    # Of gzip, a checksum at the end alone tells a flipped bit: lines behind the break may be wrong.
    sound = len(read) if how == "cut" else 3_500
    assert read[:sound] == lines.splitlines()[: len(read)][:sound]
    assert read


def test_zip_archive_gives_each_log_in_it(tmp_path: Path) -> None:
    files = {
        "../../up/\u00fc.jsonl": LINES, "/root/abs.jsonl": EVENTS[0],
        "back\\slash.jsonl.gz": gzip.compress(EVENTS[1]), "empty.jsonl": b"", "folder/": b"",
        "__MACOSX/._abs.jsonl": b"\x00\x05\x16\x07", ".DS_Store": b"\x00\x00", "read.me": b"hello\n",
        "old.rejects.jsonl": EVENTS[2],
    }  # fmt: skip
    path = archive(tmp_path / "logs.zip", files)
    logs, others = Registry().logs_of(open_source(path))
    assert {log.source.name for log in logs} == {"../../up/\u00fc.jsonl", "/root/abs.jsonl", "back\\slash.jsonl"}
    assert [one.name for one in others] == ["read.me"]
    assert sorted(values(path)) == sorted([*EVENTS, EVENTS[0], EVENTS[1]])
    assert [one.name for one in tmp_path.iterdir()] == ["logs.zip"]  # nothing was extracted


def test_a_folder_is_read_like_an_archive(write: Write, tmp_path: Path) -> None:
    write("logs/b/2.jsonl.gz", gzip.compress(EVENTS[1]))
    write("logs/1.jsonl", EVENTS[0] + b"\r\n\r\n")
    write("logs/.hidden.jsonl", EVENTS[2])
    write("logs/empty.jsonl", b"")
    assert values(tmp_path / "logs") == [EVENTS[0] + b"\r", b"\r", EVENTS[1]]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.zip", b"PK\x03\x04" + b"\x00" * 100, "not a zip file"),
        ("x.zip", b"PK\x05\x06" + b"\x00" * 18, "an archive without files"),
        ("x.gz", gzip.compress(LINES, mtime=0)[:8], "is damaged or incomplete"),
        ("x.zst", zstd(LINES)[:6], "is damaged or incomplete|blank lines only"),
    ],
)
def test_invalid_archive_is_reported(write: Write, name: str, content: bytes, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        logs_of(write(name, content))
    assert name in str(caught.value)


def test_encrypted_archive_is_reported(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.zip", {"log.jsonl": LINES})
    content = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"x.zip: log.jsonl: cannot be read .*password required"):
        logs_of(path)


class Peak:
    bytes: int


@pytest.fixture
def peak() -> Iterator[Peak]:
    found = Peak()
    tracemalloc.start()
    try:
        yield found
        assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
    finally:
        tracemalloc.stop()


def bomb(path: Path, before: bytes, megabytes: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(before)
        for _ in range(megabytes):
            file.write(b"x" * MEGABYTE)
        file.write(b"\n" + EVENTS[1] + b"\n")
    return path


LARGE = pytest.mark.parametrize("megabytes", [100, pytest.param(1024, marks=pytest.mark.exhaustive)])


@pytest.fixture
def any_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "RATIO_MAX", 1_000_000)


@LARGE
@pytest.mark.usefixtures("peak", "any_ratio")
def test_huge_line_is_never_held_whole(tmp_path: Path, megabytes: int) -> None:
    first, huge, last = values(bomb(tmp_path / "log.gz", EVENTS[0] + b"\n", megabytes))
    assert (first, last, len(huge)) == (EVENTS[0], EVENTS[1], MEGABYTE + 1)


@LARGE
@pytest.mark.usefixtures("peak", "any_ratio")
def test_huge_element_is_never_held_whole(tmp_path: Path, megabytes: int) -> None:
    opening = b"[" + EVENTS[0] + b', {"type":"message","content":"'
    first, huge = values(bomb(tmp_path / "log.gz", opening, megabytes))
    assert (first, len(huge)) == (EVENTS[0], MEGABYTE + 1)


class Piped:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize("content", [LINES, gzip.compress(LINES, mtime=0), zstd(LINES)])
def test_standard_input_is_read_as_often_as_it_takes(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(content))
    (log,) = logs_of("-")
    assert [*log.read(SCOPE)] == [*log.read(SCOPE)] == EVENTS


def test_standard_input_that_would_fill_the_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    monkeypatch.setattr(sys, "stdin", Piped(LINES))
    with pytest.raises(UsageError, match="longer than half of the free space"):
        open_source("-")


def named(path: Path | str, scope: ImportScope = SCOPE) -> str:
    (log,) = logs_of(path)
    return log_name(log, scope)


def test_grown_lines_keep_their_name_and_grown_documents_do_not(write: Write) -> None:
    before = named(write("log.jsonl", LINES)), named(write("chat.json", b"[\n" + EVENTS[0] + b"\n]"))
    after = (
        named(write("log.jsonl", LINES * 2)),
        named(write("chat.json", b"[\n" + EVENTS[0] + b",\n" + EVENTS[1] + b"\n]")),
    )
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_log_without_owner_is_named_after_the_given_one(write: Write) -> None:
    chat = write("chat.jsonl", b'{"role":"user","content":"hello"}\n')
    assert named(chat) == named(chat)
    assert named(chat, ImportScope("acme", "bob")) != named(chat, ImportScope("acme", "ann"))
    log = write("log.jsonl", LINES)
    assert named(log, ImportScope("acme", "bob")) == named(log, ImportScope("acme", "ann"))


def test_piped_log_is_named_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for content in (LINES, LINES, LINES + EVENTS[0]):
        monkeypatch.setattr(sys, "stdin", Piped(content))
        found.append(named("-"))
    assert found[0] == found[1] != found[2]


def test_archive_over_a_limit_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "logs.zip", {f"{n}.jsonl": EVENTS[n] if n % 2 else b"" for n in range(12)})
    assert len(logs_of(path)) == 6
    for name, most in (("ENTRIES_MAX", 11), ("ARCHIVE_BYTES_MAX", 100)):
        with monkeypatch.context() as patched:
            patched.setattr(sources, name, most)
            with pytest.raises(UsageError, match=rf"logs\.zip: .* {most}: unpack"):
                open_source(path)


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.jsonl.zst", "logs.zip", "nested.zip"])
def test_decompression_bomb_is_refused(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sources, "RATIO_FREE_BYTES", 2 * MEGABYTE)
    dense = event(0, "a" * 900_000) + b"\n"  # some 1,000 times its compressed size
    if name.endswith("zip"):
        path = archive(tmp_path / name, {"log.jsonl": gzip.compress(dense * 4) if name == "nested.zip" else dense * 4})
    else:
        path = write(name, gzip.compress(dense * 4) if name.endswith("gz") else zstd(dense * 4))
    with pytest.raises(UsageError, match=f"more than {sources.RATIO_MAX} times"):
        values(path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sources, "RATIO_MAX", 1_000_000)
        assert len(values(path)) == 4


def test_many_small_files_are_recognised_in_a_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def counted(start: bytes) -> object:
        nonlocal reads
        reads += 1
        return orjson.loads(start)

    monkeypatch.setattr(documents, "parsed", counted)
    files = {f"{n}.json": b'{"a": %d}' % n for n in range(200)} | {"chat.jsonl": LINES}
    path = archive(tmp_path / "logs.zip", files)
    assert [log.source.name for log in logs_of(path)] == ["chat.jsonl"]
    assert reads < 3 * len(files)


TWO = ("u1", "u2")
OWNERS = ["user", "user_id", "userId", "User ID", "author_id", "customer", "customer_id", "member_id"]
UNCLEAR = ["email", "phone", "account_id", "created_by", "actor_id", "Absender email", "kunde"]


def jsonl(path: Path, *values: object) -> Path:
    path.write_bytes(b"\n".join(map(orjson.dumps, values)))
    return path


def parquet(path: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table({"text": ["hello", "hi"]} | columns), path)
    return path


def csv(path: Path, **columns: list[str]) -> Path:
    given = {"text": ["hello", "hi"]} | columns
    path.write_text("\n".join(map(",".join, [[*given], *zip(*given.values(), strict=True)])))
    return path


def conversations(path: Path, field: str, *, shared: bool = False) -> Path:
    said: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
    if shared:
        said = {"conversations": [{"from": "human", "value": "hello"}]}
    return jsonl(path, *({field: one} | said for one in TWO))


WRITERS: dict[str, Callable[[Path, str], Path]] = {
    "parquet": lambda path, field: parquet(path / "t.parquet", **{field: [*TWO]}),
    "csv": lambda path, field: csv(path / "t.csv", **{field: [*TWO]}),
    "openai": lambda path, field: conversations(path / "t.jsonl", field),
    "openai metadata": lambda path, field: jsonl(
        path / "t.jsonl",
        *({"metadata": {field: one}, "messages": [{"role": "user", "content": "hello"}]} for one in TWO),
    ),
    "openai messages": lambda path, field: jsonl(
        path / "t.jsonl", *({"role": "user", "content": "hello", field: one} for one in TWO)
    ),
    "sharegpt": lambda path, field: conversations(path / "t.jsonl", field, shared=True),
    "zep": lambda path, field: jsonl(
        path / "t.jsonl", *({field: one, "messages": [test_zep.message(f"m-{one}", "hello")]} for one in TWO)
    ),
}


@pytest.mark.parametrize("field", OWNERS)
@pytest.mark.parametrize("written", WRITERS)
def test_field_of_owner_names_the_owner(tmp_path: Path, written: str, field: str) -> None:
    path = WRITERS[written](tmp_path, field)
    assert (read(path).column("user_id"), {*read(path, user_given=True).column("user_id")}) == ([*TWO], {"ann"})


@pytest.mark.parametrize("field", UNCLEAR)
@pytest.mark.parametrize("written", [one for one in WRITERS if one != "openai metadata"])
def test_unused_identity_refuses_the_file(tmp_path: Path, written: str, field: str) -> None:
    path = WRITERS[written](tmp_path, field)
    with pytest.raises(UsageError, match=field):
        read(path)
    assert {*read(path, user_given=True).column("user_id")} == {"ann"}


@pytest.mark.parametrize("written", ["parquet", "csv", "openai", "sharegpt", "openai messages"])
def test_two_kinds_of_people_refuse_the_file(tmp_path: Path, written: str) -> None:
    path = WRITERS[written](tmp_path, "user")
    content = path.read_bytes()
    if written == "parquet":
        parquet(path, user=[*TWO], customer=["c", "d"])
    elif written == "csv":
        csv(path, user=[*TWO], customer=["c", "d"])
    else:
        path.write_bytes(content.replace(b'"user":"u', b'"customer":"c","user":"u'))
    with pytest.raises(UsageError, match="user, customer may be its owner"):
        read(path)


@pytest.mark.parametrize("field", UNCLEAR)
def test_mem0_memory_with_an_unclear_owner_is_refused(tmp_path: Path, field: str) -> None:
    path = jsonl(tmp_path / "m.jsonl", *({"id": f"m-{one}", "memory": "likes tea", field: one} for one in TWO))
    assert (read(path).events, len(read(path).refused)) == ([], 2)
    assert {*read(path, user_given=True).column("user_id")} == {"ann"}


def test_mem0_users_that_are_numbers_are_owners(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "m.jsonl", *({"id": f"m{i}", "memory": "likes tea", "user_id": i} for i in (7, 8)))
    assert read(path).column("user_id") == ["7", "8"]


def test_speakers_of_one_conversation_share_an_owner(tmp_path: Path) -> None:
    said = [{"role": "user", "name": one, "content": "hello"} for one in TWO]
    assert {*read(jsonl(tmp_path / "one.jsonl", {"messages": said})).column("user_id")} == {"ann"}


def test_speakers_of_two_conversations_refuse_the_log(tmp_path: Path) -> None:
    talks = ({"messages": [{"role": "user", "name": one, "content": "hello"}]} for one in TWO)
    path = jsonl(tmp_path / "two.jsonl", *talks)
    with pytest.raises(UsageError, match="'u1' and 'u2'"):
        read(path)
    assert {*read(path, user_given=True).column("user_id")} == {"ann"}


def test_message_without_owner_among_owned_ones_is_refused(tmp_path: Path) -> None:
    owned = {"user": "u1", "role": "user", "content": "hello"}
    found = read(jsonl(tmp_path / "t.jsonl", {"role": "user", "content": "whose?"}, owned))
    assert (found.column("user_id"), len(found.refused)) == (["u1"], 1)


def test_claude_accounts_of_an_organisation_are_owners(tmp_path: Path) -> None:
    talks = [
        test_claude.conversation(test_claude.message(f"m-{one}", "human", "hello"), uuid=one, account={"uuid": one})
        for one in TWO
    ]
    users = [{"uuid": "u1", "full_name": "Kim", "email_address": "kim@example.com"}]
    files = {"conversations.json": orjson.dumps(talks), "users.json": orjson.dumps(users)}
    assert read(folder(tmp_path / "all", files)).column("user_id") == ["kim@example.com", "u2"]
    files["conversations.json"] = orjson.dumps(talks[:1])
    assert read(folder(tmp_path / "one", files)).column("user_id") == ["ann"]


def test_people_of_one_name_have_owners_of_their_own(tmp_path: Path) -> None:
    chats = (test_telegram.chat(test_telegram.said(1, "hello"), type="personal_chat", name="Bo", id=i) for i in (1, 2))
    telegram = jsonl(tmp_path / "result.json", test_telegram.account(*chats))
    assert read(telegram).column("user_id") == ["Bo 1", "Bo 2"]
    nameless = (test_telegram.chat(test_telegram.said(i, "hello"), name=None, id=None) for i in (1, 2))
    assert len(read(jsonl(tmp_path / "result.json", test_telegram.account(*nameless))).refused) == 2
    direct = [{"id": f"D{i}", "members": ["U1", f"U{i}"]} for i in (2, 3)]
    files = {"dms.json": direct, "users.json": [{"id": f"U{i}", "profile": {"real_name": "Bo"}} for i in (1, 2, 3)]}
    days = {f"D{i}/2026-01-30.json": [test_slack.said("1769770800.1", "hello")] for i in (2, 3)}
    slack = folder(tmp_path / "slack", {name: orjson.dumps(value) for name, value in (files | days).items()})
    assert read(slack).column("user_id") == ["dm Bo, Bo D2", "dm Bo, Bo D3"]


def whatsapp(path: Path, *folders: str) -> Path:
    line = "[31.12.25, 23:59:59] Bo: hello\n"
    return folder(path, {f"{one}/_chat.txt": line.replace("Bo", f"Bo {one}").encode() for one in folders})


def test_whatsapp_chats_without_names_are_not_one(tmp_path: Path) -> None:
    named = whatsapp(tmp_path / "named", "WhatsApp Chat - Ann", "WhatsApp Chat - Cy")
    assert read(named).column("user_id") == ["Ann", "Cy"]
    unnamed = whatsapp(tmp_path / "WhatsApp Chat - Trip", "a", "b")
    with pytest.raises(UsageError, match=r"a/_chat\.txt"):
        read(unnamed)
    assert {*read(unnamed, user_given=True).column("user_id")} == {"ann"}


def test_locomo_samples_without_ids_are_refused(tmp_path: Path) -> None:
    talk = {"session_1": [{"speaker": "Bo", "dia_id": "D1:1", "text": "hello"}]}
    path = tmp_path / "l.json"
    path.write_bytes(orjson.dumps([{"sample_id": "s", "conversation": talk}, {"conversation": talk}]))
    found = read(path)
    assert (found.column("user_id"), len(found.refused)) == (["s"], 1)


def test_zep_owner_behind_the_messages_counts(tmp_path: Path) -> None:
    said = [test_zep.message(f"m{i}", "x" * 1000) for i in range(100)]
    path = jsonl(tmp_path / "z.json", {"messages": said, "thread_id": "t", "user_id": "u1"})
    assert {*read(path).column("user_id")} == {"u1"}


@pytest.mark.parametrize(
    ("fields", "owner", "unclear"),
    [
        (["user_name", "user_email", "account_id", "email"], "user_id", []),
        (["customer_id"], "user_id", ["customer_id"]),
        (["user_agent", "reply_to", "email_count", "client_version", "name", "title"], None, []),
        (["x" * 100 + "_user", "senderEmail", "From"], None, ["senderEmail", "From"]),
    ],
)
def test_fields_that_look_like_a_person(fields: list[str], owner: str | None, unclear: list[str]) -> None:
    assert unclear_identities(fields, owner) == unclear


def test_column_of_speakers_needs_an_owner(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", author=[*TWO], channel=["a", "a"])
    with pytest.raises(UsageError, match="--column user_id=author, or --user NAME"):
        read(path)
    found: Read = read(path, user_given=True)
    assert (found.column("name"), found.column("session_id")) == ([*TWO], ["a", "a"])


@pytest.mark.parametrize("column", ["speaker", "from", "user"])
def test_column_of_roles_is_the_role(tmp_path: Path, column: str) -> None:
    found = read(csv(tmp_path / "t.csv", **{column: ["Human", "assistant"]}))
    assert (found.column("role"), found.column("user_id")) == (["user", "assistant"], ["ann", "ann"])


def test_row_without_owner_is_refused_or_the_named_users(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", user=["u1", None])
    assert (read(path).column("user_id"), len(read(path).refused)) == (["u1"], 1)
    assert read(path, user_given=True).column("user_id") == ["ann", "ann"]


def test_owners_that_are_numbers_are_texts(tmp_path: Path) -> None:
    assert read(parquet(tmp_path / "t.parquet", user=[7, 8])).column("user_id") == ["7", "8"]
    assert read(parquet(tmp_path / "f.parquet", user=[7.0, 8.0])).column("user_id") == ["7", "8"]


DEEP: Any = ["stands for brackets within brackets"]
_MARK = "(deep)"
STRANGE = [
    None, True, 0, -1.5, 10**18, "", "x" * 600, "\n\x00\x1b", "\u200e", [], {}, [[]], {"id": {}}, DEEP,
    {"text": DEEP},
]  # fmt: skip


def held(name: str, content: bytes = b"", files: Iterable[tuple[str, bytes]] = ()) -> LogFile:
    return LogFile(name, name, len(content), lambda: BytesIO(content), tuple(held(*one) for one in files))


def document(name: str) -> Any:
    """An export that has everything in it that a format has."""
    g, c, t, m, z = test_chatgpt, test_claude, test_telegram, test_mem0, test_zep
    picture = {
        "content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, "a", {"text": "b"}],
    }  # fmt: skip
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
            check(format_of(name), held("export.json", _written(changed(value, path, strange))))


def test_any_value_in_any_place_of_a_workspace() -> None:
    for path in places(SLACK):
        if not path:
            continue
        for strange in STRANGE:
            files = changed(SLACK, path, strange)
            check(format_of("slack"), held("export", files=[(name, _written(files[name])) for name in SLACK]))


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
    damaged = text[:at] + data.draw(st.binary(max_size=20) | st.just(b"\\udc00")) + text[end:]
    for one in FORMATS:
        one.recognises(LogHead(damaged))
    check(format_of(name), held("export.json", damaged))


def test_formats_are_recognised(tmp_path: Path) -> None:
    for name, text in WHOLE.items():
        (tmp_path / "export").write_bytes(text if name != "whatsapp" else ANDROID.encode())
        assert read(tmp_path / "export").format == name
