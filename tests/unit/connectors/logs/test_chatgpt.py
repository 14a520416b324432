"""ChatGPT's export: the shown branch with ids and times; other entries are counted."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.logs.assistants import chatgpt_events
from recallflow.connectors.logs.log_format import ImportScope, branch
from tests.unit.connectors.logs.reading import read, times, zipped

START = 1_736_209_412.345


def node(
    key: str, parent: str | None, role: str, *parts: Any, after_s: float | None = 0.0, **fields: Any
) -> dict[str, Any]:
    """A node with its message; `after_s`: None for a message without a time."""
    content = fields.pop("content", {"content_type": "text", "parts": [*parts]})
    time = None if after_s is None else START + after_s
    message = {
        "id": key, "author": {"role": role}, "create_time": time, "content": content, "recipient": "all",
    } | fields  # fmt: skip
    return {"id": key, "message": message, "parent": parent, "children": []}


def conversation(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    root: dict[str, Any] = {"id": "root", "message": None, "parent": None, "children": []}
    last = {"current_node": nodes[-1]["id"]} if nodes else {}
    start = {"title": "Kiln", "create_time": START, "conversation_id": "talk-1"}
    return start | last | {"mapping": {one["id"]: one for one in (root, *nodes)}} | fields


def written(tmp_path: Path, *conversations: Any, name: str = "conversations.json") -> Path:
    (tmp_path / name).write_bytes(orjson.dumps(list(conversations)))
    return tmp_path / name


def test_shown_branch_has_ids_and_times(tmp_path: Path) -> None:
    talk = conversation(
        node("q1", "root", "user", "Which glaze runs?"),
        node("a1", "q1", "assistant", "Any.", after_s=1, metadata={"model_slug": "gpt-4o"}),
        node("a1b", "q1", "assistant", "An overfired one.", after_s=2),
        node("q2", "a1b", "user", "And celadon?", after_s=3.0004), current_node="q2",
    )  # fmt: skip
    found = read(written(tmp_path, talk))
    assert (found.format, found.column("id")) == ("chatgpt", ["q1", "a1b", "q2"])
    assert found.column("role") == ["user", "assistant", "user"]
    assert found.column("content") == ["Which glaze runs?", "An overfired one.", "And celadon?"]
    assert times(found.messages) == [1_736_209_412_345, 1_736_209_414_345, 1_736_209_415_345]
    assert ({*found.column("session_id")}, {*found.column("user_id")}) == ({"talk-1"}, {"ann"})
    assert found.column("metadata")[0] == {"source": "chatgpt", "title": "Kiln"}
    assert found.skipped == {"messages of other branches": 1}
    assert not found.refused


def test_skipped_messages_are_counted_by_reason(tmp_path: Path) -> None:
    picture = {"content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, "What moth?"]}
    talk = conversation(
        node("s", "root", "system", "You are helpful."),
        node("i", "s", "user", content={"content_type": "user_editable_context", "user_profile": "Ann"}),
        node("h", "i", "user", "unseen", metadata={"is_visually_hidden_from_conversation": True}),
        node("q", "h", "user", content=picture),
        node("t", "q", "assistant", content={"content_type": "thoughts", "thoughts": []}),
        node("c", "t", "assistant", content={"content_type": "code", "text": "search()"}, recipient="browser"),
        node("r", "c", "tool", content={"content_type": "execution_output", "text": "1"}),
        node("e", "r", "assistant", ""),
        node("n", "e", "assistant", content=None),
        node("a", "n", "assistant", "A hawk-moth \ue200cite\ue202turn0\ue201【4:1†moths.pdf】【1】.", None, 5),
        node("f", "a", "user", "", metadata={"attachments": [{"name": "moth.pdf"}, {}]}),
    )
    found = read(written(tmp_path, talk))
    assert found.column("content") == ["[image]\nWhat moth?", "A hawk-moth 【1】.", "[file: moth.pdf]"]
    assert found.skipped == {
        "system messages": 1, "custom instructions": 1, "hidden messages": 1, "reasoning": 1, "calls of tools": 1,
        "results of tools": 1, "empty messages": 2,
    }  # fmt: skip


def test_messages_without_a_time_follow_the_one_before(tmp_path: Path) -> None:
    talk = conversation(
        node("a", "root", "user", "one", after_s=None), node("b", "a", "user", "two", after_s=7),
        node("c", "b", "user", "three", after_s=None),
    )  # fmt: skip
    timeless = conversation(
        node("d", "root", "user", "four", after_s=None), create_time=None, title=None, conversation_id="talk-2"
    )
    found = read(written(tmp_path, talk, timeless))
    assert times(found.messages[:3]) == [1_736_209_412_345, 1_736_209_419_345, 1_736_209_419_345]
    assert "timestamp" not in found.messages[3]
    assert found.messages[3]["metadata"] == {"source": "chatgpt"}


def test_zip_is_read_without_other_files(tmp_path: Path) -> None:
    first = conversation(node("a", "root", "user", "one"))
    second = conversation(node("b", "root", "user", "two"), conversation_id="talk-2")
    files = {"conversations-000.json": orjson.dumps([first]), "conversations-001.json": orjson.dumps([second])}
    found = read(zipped(tmp_path / "export.zip", files | {"chat.html": b"<html>", "user.json": b"{}"}))
    assert (found.column("id"), found.skipped) == (["a", "b"], {"files of another kind": 2})


@pytest.mark.parametrize(
    ("current", "shown"),
    [("a2", ["a1", "a2"]), ("gone", ["a1", "b2"]), (None, ["a1", "b2"]), ({"deep": []}, ["a1", "b2"])],
)
def test_unknown_current_node_shows_the_last_branch(tmp_path: Path, current: object, shown: list[str]) -> None:
    nodes = [
        node("a1", "root", "user", "?"), node("b2", "a1", "assistant", "new", after_s=9),
        node("a2", "a1", "assistant", "old", after_s=1),
    ]  # fmt: skip
    assert read(written(tmp_path, conversation(*nodes, current_node=current))).column("id") == shown


def test_circles_and_missing_parents_end_a_branch(tmp_path: Path) -> None:
    circle = conversation(node("a", "b", "user", "one"), node("b", "a", "user", "two"))
    orphan = conversation(node("c", "nobody", "user", "three"), node("x", "root", "user", "lost"), current_node="c")
    found = read(written(tmp_path, circle, orphan))
    assert (found.column("id"), found.skipped) == (["a", "b", "c"], {"messages of other branches": 1})


def test_malformed_conversations_are_refused_alone(tmp_path: Path) -> None:
    good = orjson.dumps(conversation(node("a", "root", "user", "caf\u00e9"), node("b", "a", "user", "half")))
    bad_bytes = good.replace("\u00e9".encode(), b"\xe9").replace(b"half", b"\\ud83d!")
    strange = conversation(node("d", "root", "narrator", "Once"), conversation_id="talk-2")
    unreadable: dict[str, Any] = {"mapping": {"e": "text", "f": {"message": "no", "parent": "e"}}, "current_node": "f"}
    deep = b'{"mapping": {"g": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    others = [orjson.dumps(one) for one in [strange, unreadable, "text", {"mapping": []}]]
    (tmp_path / "conversations.json").write_bytes(b"[" + b",".join([bad_bytes, *others, deep]) + b"]")
    found = read(tmp_path / "conversations.json")
    assert (found.column("content"), len(found.refused)) == (["caf\ufffd", "\ufffd!"], 6)
    assert b"conversations.json, conversation 4: is no conversation of ChatGPT's export" in found.refused[3]


def test_a_message_beyond_the_limit_is_refused_alone(tmp_path: Path) -> None:
    talk = conversation(node("a", "root", "user", "x" * 3_000_000), node("b", "a", "user", "short"))
    found = read(written(tmp_path, talk))
    assert (found.column("id"), [len(line) for line in found.refused]) == (["b"], [1024 * 1024 + 1])


KEYS = st.sampled_from("abcdefgh")


@given(st.dictionaries(KEYS, st.one_of(st.none(), KEYS, st.just("nowhere")), min_size=1), KEYS)
def test_branch_follows_parents_in_any_tree(parents: dict[str, object], leaf: str) -> None:
    found = branch(parents, leaf)
    assert len(set(found)) == len(found)
    assert all(parents[child] == parent for parent, child in pairwise(found))
    assert (found[-1:] == [leaf]) == (leaf in parents)
    mapping = {key: node(key, parent, "user", key) for key, parent in parents.items()}  # type: ignore[arg-type]
    events = chatgpt_events({"mapping": mapping, "current_node": leaf}, ImportScope(), "ann", "here")
    said = [orjson.loads(event)["id"] for event in events]
    assert said == found or leaf not in parents
