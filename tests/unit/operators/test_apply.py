"""The effect of each memory event, by its receipts and later queries."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from recallflow.flows.embedded import Processed
from recallflow.state import keys
from recallflow.state.labels import metadata_labels
from recallflow.state.rows import Entry, MemoryRow
from tests.unit.operators.harness import DAY_MS, MEMORIES, Harness, make_event, run_flow

NEW_YEAR_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z


Event = tuple[str, dict[str, Any]]


def do(*events: Event) -> Processed:
    """Run events, given as (type, fields), one on each day of 2025; each asks for a receipt."""
    return run_flow(
        make_event(kind, NEW_YEAR_MS + number * DAY_MS, **{"receipt": True} | fields)
        for number, (kind, fields) in enumerate(events)
    )


def outcomes(done: Processed) -> list[str]:
    return [receipt["outcome"] for receipt in done.receipts]


def codes(done: Processed) -> list[tuple[str, list[str]]]:
    errors = [refused["error"] for refused in done.rejected]
    return [(error["code"], [field["field"] for field in error["fields"]]) for error in errors]


def message(memory_id: str | None, content: str = "tea", **fields: Any) -> tuple[str, dict[str, Any]]:
    return "message", {"content": content} | fields | ({} if memory_id is None else {"id": memory_id})


def memory(memory_id: str, content: str = "tea", **fields: Any) -> tuple[str, dict[str, Any]]:
    return "memory", {"id": memory_id, "content": content} | fields


def update(memory_id: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "memory.update", {"memory_id": memory_id} | fields


def forget(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "memory.forget", fields


def recall(query: str = "tea", **fields: Any) -> tuple[str, dict[str, Any]]:
    return "recall", {"query": query, "mode": "recency", "explain": False} | fields


def get(memory_id: str) -> tuple[str, dict[str, Any]]:
    return "memory.get", {"memory_id": memory_id}


def history(memory_id: str) -> tuple[str, dict[str, Any]]:
    return "memory.history", {"memory_id": memory_id}


def found(response: dict[str, Any]) -> set[str]:
    return {memory["id"] for memory in response["memories"]}


def test_a_message_is_remembered_as_it_stands() -> None:
    done = do(
        message("a", "Tea at four?", role="assistant", name="Robo", session_id="s", metadata={"x": [1]}), get("a")
    )
    assert outcomes(done) == ["created"]
    (version,) = done.responses[0]["versions"]
    told: dict[str, Any] = {
        "id": "a", "content": "Tea at four?", "kind": "message", "role": "assistant", "name": "Robo",
    }  # fmt: skip
    told |= {"session_id": "s", "metadata": {"x": [1]}, "created_at": "2025-01-01T00:00:00Z", "version": 0}
    assert version.items() >= told.items()


def test_a_memory_keeps_every_field_it_came_with() -> None:
    fields = {
        "summary": "a habit", "kind": "preference", "layer": "rule", "category": "food", "tags": ["hot", "drink"],
        "topics": ["tea"], "entities": [{"name": "Assam", "type": "tea", "urn": "tea:assam"}],
        "relations": [{"source": "Ann", "type": "drinks", "target": "Assam", "archived": False}], "importance": 0.9,
        "confidence": 0.25, "valid_from": "2025-01-01T00:00:00Z", "valid_to": "2026-01-01T00:00:00Z",
        "expires_at": "2027-01-01T00:00:00Z", "metadata": {"source": "form"}, "project_id": "kitchen",
    }  # fmt: skip
    (version,) = do(memory("a", "Ann drinks Assam", **fields), get("a")).responses[0]["versions"]
    assert version.items() >= fields.items()


def test_omitted_fields_have_defaults() -> None:
    (version,) = do(memory("a", tags=None, importance=None), get("a")).responses[0]["versions"]
    defaults = {
        "kind": "fact", "layer": "long_term", "importance": 0.5, "confidence": 1.0, "tags": [], "category": None,
    }  # fmt: skip
    assert version.items() >= defaults.items()


def test_a_receipt_names_the_event_its_position_and_the_memory() -> None:
    done = do(memory("a"), message(None), update("a", id="u1", summary="hot"), forget(memory_id="a"))
    nothing_missing = {"code": None, "detail": None, "purged": None}
    assert done.receipts == [
        {"id": "a", "position": "lines:0:0", "outcome": "created", "memory_id": "a"} | nothing_missing,
        {"id": "lines:0:1", "position": "lines:0:1", "outcome": "created", "memory_id": "lines:0:1"} | nothing_missing,
        {"id": "u1", "position": "lines:0:2", "outcome": "updated", "memory_id": "a"} | nothing_missing,
        {"id": "lines:0:3", "position": "lines:0:3", "outcome": "forgotten", "memory_id": "a"} | nothing_missing,
    ]


def test_same_content_again_is_a_duplicate_with_the_first_time() -> None:
    event = make_event("memory", NEW_YEAR_MS, id="a", content="tea", tags=["hot"], receipt=True)
    again = {field: event[field] for field in reversed(event)} | {"timestamp": "2025-01-01T01:00:00+01:00"}
    stamped_anew = event | {"timestamp": NEW_YEAR_MS + 5}
    done = run_flow([event, again, stamped_anew, make_event("recall", NEW_YEAR_MS, query="tea")])
    assert (outcomes(done), codes(done)) == (["created", "duplicate", "duplicate"], [])
    (memory,) = done.responses[0]["memories"]
    assert memory["created_at"] == "2025-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "other",
    [{"content": "coffee"}, {"kind": "rule"}, {"expires_at": 7}, {"session_id": "s"}, {"type": "message"}],
    ids=lambda fields: next(iter(fields)),
)
def test_other_content_under_the_same_id_is_a_conflict(other: dict[str, Any]) -> None:
    event = make_event("memory", NEW_YEAR_MS, id="a", content="tea", receipt=True)
    done = run_flow([event, event | other, event, make_event("memory.history", memory_id="a")])
    assert (outcomes(done), codes(done)) == (["created", "duplicate"], [("id_conflict", ["id"])])
    assert [version["content"] for version in done.responses[0]["versions"]] == ["tea"]


AT: dict[str, Any] = {"timestamp": NEW_YEAR_MS}
COFFEE, COCOA = (update("a", id="u", content=content, **AT) for content in ("coffee", "cocoa"))
END = ("episode.end", {"id": "e1", "session_id": "s"} | AT)
NOT_FOUND, CONFLICT = ("not_found", ["memory_id"]), ("id_conflict", ["id"])
STEPS: dict[str, tuple[list[Event], list[str], list[tuple[str, list[str]]], str | None]] = {
    # events; outcomes; refusals; the content of memory `a` in the end
    "created again": (
        [memory("a"), update("a", content="coffee"), memory("a")], ["created", "updated", "duplicate"], [], "coffee"
    ),
    "no change": ([memory("a", tags=["x"]), update("a", content="tea", tags=["x"], layer=None)],
                  ["created", "unchanged"], [], "tea"),
    "update of nothing": ([update("a", content="tea")], [], [NOT_FOUND], None),
    "update after forget": ([memory("a"), forget(memory_id="a"), update("a", content="tea")],
                            ["created", "forgotten"], [NOT_FOUND], None),
    "content cleared": ([memory("a"), update("a", content=None)], ["created"], [("invalid_event", ["content"])], "tea"),
    "end before beginning": ([memory("a", valid_from="2025-06-01"), update("a", valid_to="2025-05-01"),
                              update("a", valid_to="2025-07-01")],
                             ["created", "updated"], [("invalid_event", ["valid_to"])], "tea"),
    "update again, with an id": ([memory("a"), COFFEE, update("a", content="tea"), COFFEE],
                                 ["created", "updated", "updated", "duplicate"], [], "tea"),
    "update again, without": ([memory("a"), update("a", content="x"), update("a", content="y"),
                               update("a", content="x")],
                              ["created", "updated", "updated", "updated"], [], "x"),
    "id of another change": ([memory("a"), COFFEE, COCOA], ["created", "updated"], [CONFLICT], "coffee"),
    "id of a refused change": ([COFFEE, memory("a"), COFFEE], ["created", "updated"], [NOT_FOUND], "coffee"),
    "id of a memory": ([memory("a"), update("a", id="a", content="x"), memory("b"), update("b", id="c", summary="s"),
                        memory("c")], ["created", "updated", "created", "updated", "created"], [], "x"),
    "end of an episode again": ([message("a", session_id="s", **AT), END, END],
                                ["created", "ended", "duplicate"], [], "tea"),
    "created again after forget": (
        [memory("a"), forget(memory_id="a"), memory("a"), forget(memory_id="a"), memory("a", "coffee")],
        ["created", "forgotten", "duplicate", "unchanged"], [CONFLICT], None,
    ),
    "forget of nothing": ([forget(memory_id="a"), memory("a")], ["unchanged", "created"], [], "tea"),
    # A client that sends null for an option that nobody chose must not empty the memory.
    "forget without a condition": ([memory("a"), forget(filter={"session_id": None})],
                                   ["created"], [("invalid_event", ["filter"])], "tea"),
}  # fmt: skip


@pytest.mark.parametrize("steps", STEPS)
def test_events_have_their_outcomes_and_refusals(steps: str) -> None:
    events, expected, refused, content = STEPS[steps]
    done = do(*events, history("a"))
    assert (outcomes(done), codes(done)) == (expected, refused)
    (response,) = done.responses
    assert (response["versions"][-1]["content"] if content else response["error"]["code"]) == (content or "not_found")
    updates = outcomes(done).count("updated") if steps != "id of a memory" else 1
    assert not content or len(response["versions"]) == 1 + updates


def test_update_changes_named_fields_and_keeps_the_old_version() -> None:
    done = do(memory("a", "tea", tags=["hot"], category="food"), update("a", category="drink"), history("a"), get("a"))
    first, second = done.responses[0]["versions"]
    assert (first["version"], first["category"], second["version"], second["category"]) == (0, "food", 1, "drink")
    changed = {"version", "category", "updated_at", "ingested_at"}
    assert {field for field in first.keys() | second.keys() if first.get(field) != second.get(field)} == changed
    assert (first["ingested_at"], second["ingested_at"]) == ("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z")
    assert done.responses[1]["versions"] == [second]


def test_null_clears_a_field_to_its_default() -> None:
    given: dict[str, Any] = {
        "summary": "s", "kind": "rule", "layer": "working", "category": "food", "tags": ["x"], "topics": ["y"],
        "entities": [{"name": "z"}], "relations": [{"source": "a", "type": "b", "target": "c"}], "importance": 0.9,
        "confidence": 0.1, "valid_from": 1, "valid_to": 2, "expires_at": 3, "metadata": {"a": 1},
    }  # fmt: skip
    done = do(memory("a", **given), update("a", **dict.fromkeys(given)), memory("b"), get("a"), get("b"))
    cleared, never_given = (response["versions"][0] for response in done.responses)
    own = {"id", "seq", "version", "created_at", "updated_at", "ingested_at"}
    assert {k: v for k, v in cleared.items() if k not in own} == {k: v for k, v in never_given.items() if k not in own}


def test_a_cleared_kind_of_a_message_is_message_again() -> None:
    done = do(message("a"), update("a", kind="fact"), update("a", kind=None), get("a"))
    assert done.responses[0]["versions"][0]["kind"] == "message"


def test_forget_with_its_own_id_spares_later_memories() -> None:
    clear = make_event("memory.forget", id="f1", filter={"tag": "old"}, receipt=True)
    first, second = (make_event("memory", id=name, content="tea", tags=["old"]) for name in ("a", "b"))
    done = run_flow([first, clear, second, clear, make_event("recall", query="tea")])
    assert outcomes(done) == ["forgotten", "duplicate"]
    assert found(done.responses[0]) == {"b"}


@pytest.mark.parametrize(
    ("wanted", "gone"),
    [
        ({"session_id": "s1"}, {"a", "b"}), ({"category": "food"}, {"c"}), ({"tag": "hot"}, {"c", "d"}),
        ({"older_than": "2025-01-03T00:00:00Z"}, {"a", "b"}), ({"tag": "hot", "category": "food"}, {"c"}),
        ({"session_id": "s1", "older_than": "2025-01-02T00:00:00Z"}, {"a"}),
        ({"session_id": "s1", "tag": "hot"}, set()),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_forget_filter_requires_all_conditions(wanted: dict[str, Any], gone: set[str]) -> None:
    done = do(
        message("a", session_id="s1"), message("b", session_id="s1"),
        memory("c", category="food", tags=["hot", "drink"]), memory("d", tags=["hot"]), forget(filter=wanted),
        recall(),
    )  # fmt: skip
    assert outcomes(done)[-1] == ("forgotten" if gone else "unchanged")
    assert found(done.responses[0]) == {"a", "b", "c", "d"} - gone


def test_no_mode_recalls_expired_or_future_memories() -> None:
    modes = ("hybrid", "relevance", "recency", "episode")
    done = do(
        message("now"), message("over"), update("over", expires_at="2025-01-10"),
        memory("to come", valid_from="2025-06-01"), memory("past", valid_to="2025-01-10"),
        *(recall(mode=mode, timestamp="2025-02-01") for mode in modes),
    )  # fmt: skip
    assert [found(response) for response in done.responses] == [{"now"}] * len(modes)


def test_index_entry_equals_the_row_of_its_memory(tmp_path: Path) -> None:
    said = {
        "id": "m", "content": "tea", "name": "Ann", "kind": "fact", "layer": "working", "session_id": "s",
        "project_id": "p", "category": "c", "tags": ["t"], "importance": 0.25, "confidence": 0.75,
        "valid_from": NEW_YEAR_MS, "valid_to": NEW_YEAR_MS + 2 * DAY_MS, "expires_at": NEW_YEAR_MS + 3 * DAY_MS,
        "metadata": {"trip": "Rome"},
    }  # fmt: skip
    engine = Harness(tmp_path / "state")
    engine.run(MEMORIES, make_event("memory", NEW_YEAR_MS + DAY_MS, **said), append_logged=False)
    found = {
        keys.split(key)[1]: value for key, value in engine.records() if keys.split(key)[1] in (keys.ROW, keys.ENTRY)
    }
    row, entry = MemoryRow.decode(found[keys.ROW]), Entry.decode(found[keys.ENTRY])
    same = {column.name for column in fields(MemoryRow)} & {*Entry._fields} - {"metadata"}
    assert {name: getattr(entry, name) for name in same} == {name: getattr(row, name) for name in same}
    assert len(same) == len(Entry._fields) - len(("episode", "flags", "author", "author_stems", "stems", "metadata"))
    assert (entry.episode, entry.author, entry.author_stems, entry.stems) == (row.seq, "Ann", "ann", "tea")
    assert (entry.importance, entry.confidence, entry.category) == (0.25, 0.75, "c")
    assert entry.metadata == metadata_labels(row.metadata) == ['["trip", "Rome"]']
