"""No importer puts two people into one owner unless it is told to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallflow.connectors.logs.owners import unclear_identities
from recallflow.errors import UsageError
from tests.unit.connectors.logs import test_claude, test_slack, test_telegram, test_zep
from tests.unit.connectors.logs.reading import Read, folder, read

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
    assert read(path).column("user_id") == [*TWO]
    assert {*read(path, user_given=True).column("user_id")} == {"ann"}


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
    with pytest.raises(UsageError, match="user, customer may say it"):
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
