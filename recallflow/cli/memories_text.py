"""Memories and episodes in tables, and one memory with all that is known of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from recallflow.cli.memory_text import ASIDE, WHEN, WHO, one_line, print_block, said_at, who

LEAST_ROOM = 24  # columns for a text beside others
MOST_CHARACTERS = 1_000  # of a text in a table: no line of a terminal is longer
_FIELDS = (
    *("summary", "kind", "layer", "category", "tags", "topics"),
    *("session_id", "project_id", "importance", "confidence"),
)
_TIMES = ("valid_from", "valid_to", "expires_at")
_USUAL = {"layer": "long_term", "importance": 0.5, "confidence": 1.0}  # of which nobody needs to be told


def print_memories(target: Console, memories: Iterable[Mapping[str, Any]]) -> None:
    """A line for each: on a terminal as much of the text as fits, elsewhere columns between tabs, with whole texts."""
    rows = [(memory["created_at"], one_line(memory["id"]), memory) for memory in memories]
    if not target.is_terminal:
        for at, memory_id, memory in rows:
            print(at, memory_id, who(memory), one_line(memory["content"]), sep="\t", file=target.file)
        return
    cells = []
    for at, memory_id, memory in rows:
        marks = f" ({', '.join(memory['marks'])})" if memory["marks"] else ""
        text = Text.assemble((f"{who(memory)}:", WHO), (marks, ASIDE), f" {_beginning(memory['content'])}")
        cells.append([Text(said_at(at), WHEN), Text(memory_id, ASIDE), text])
    _print_table(target, ["when", "id", "memory"], cells)


def print_episodes(target: Console, episodes: Iterable[Mapping[str, Any]]) -> None:
    """The same for conversations."""
    if not target.is_terminal:
        for one in episodes:
            columns = one["started_at"], one["ended_at"], one["id"], one["session_id"] or "", str(one["messages"])
            print(*map(one_line, columns), one_line(one["summary"]), sep="\t", file=target.file)
        return
    cells = []
    for one in episodes:
        session = one_line(one["session_id"] or "") + " (open)" * one["open"]
        begun, count = Text(said_at(one["started_at"]), WHEN), Text(f"{one['messages']:,}")
        cells.append([begun, Text(session, ASIDE), count, Text(_beginning(one["summary"]))])
    _print_table(target, ["when", "session", "messages", "summary"], cells)


def print_memory(
    target: Console,
    versions: Sequence[Mapping[str, Any]],
    edges: Sequence[Mapping[str, Any]],
    usage: Mapping[str, Any],
) -> None:
    """`versions`: the oldest first."""
    latest = versions[-1]
    print_block(target, Text.assemble((f"{who(latest)}:", WHO), f" {one_line(latest['content'])}"))
    target.print()
    _print_field(target, "id", latest["id"])
    shown = set[str]()
    for name, label in (("created_at", "said"), ("updated_at", "changed"), ("ingested_at", "known since")):
        if latest[name] not in shown:
            _print_field(target, label, f"{said_at(latest[name])} ({latest[name]})")
        shown.add(latest[name])
    for name in _FIELDS:
        if (value := latest.get(name)) not in (None, [], _USUAL.get(name)):
            _print_field(target, name.removesuffix("_id"), ", ".join(value) if isinstance(value, list) else value)
    for name in _TIMES:
        if name in latest:
            _print_field(target, name.replace("_", " "), latest[name])
    if entities := latest.get("entities"):
        _print_field(target, "entities", ", ".join(entity["name"] for entity in entities))
    for relation in latest.get("relations", ()):
        _print_field(target, "relation", f"{relation['source']} {relation['type']} {relation['target']}")
    for name, value in (latest.get("metadata") or {}).items():
        _print_field(target, f"metadata.{name}", value)
    _print_field(target, "used", _used(usage))
    for one in versions[:-1]:
        _print_field(target, f"version {one['version']}", f"{said_at(one['updated_at'])}: {one['content']}")
    for edge in edges:
        marks = f" ({', '.join(edge['marks'])})" if edge["marks"] else ""
        _print_field(target, edge["type"], f"{edge['source']} → {edge['target']}, {edge['weight']:.2f}{marks}")


def _used(usage: Mapping[str, Any]) -> str:
    """What answers and feedback made of it."""
    if not usage["count"] and not usage["useful"] and not usage["not_useful"]:
        return "never"
    last = f", last {said_at(usage['last_accessed_at'])}" if usage["last_accessed_at"] else ""
    said = f"; found useful {usage['useful']}, not useful {usage['not_useful']}"
    times = "once" if usage["count"] == 1 else f"{usage['count']:,} times"
    return f"{times}{last}" + said * bool(usage["useful"] or usage["not_useful"])


def _print_field(target: Console, name: str, value: object) -> None:
    print_block(target, Text(one_line(str(value))), f"  {one_line(name):<12} ")


def _print_table(target: Console, names: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """A line for each row, the last column cut where the terminal ends: what is read from right to left stands there,
    and moves nothing beside it. Where the others leave no room it stands below them."""
    widths = [max(row[place].cell_len for row in [_heads(names), *rows]) + 2 for place in range(len(names) - 1)]
    room = target.width - sum(widths)
    apart = room < LEAST_ROOM
    for row in rows if apart else [_heads(names), *rows]:
        columns = [cell.copy() for cell in row]
        for cell, width in zip(columns, widths, strict=False):
            cell.truncate(width, pad=True)
        columns[-1].truncate(target.width - 4 if apart else room, overflow="ellipsis")
        target.print(Text("\n    " if apart else "").join([Text("").join(columns[:-1]), columns[-1]]), soft_wrap=True)


def _heads(names: Sequence[str]) -> list[Text]:
    return [Text(name, "bold") for name in names]


def _beginning(text: str) -> str:
    return one_line(text[:MOST_CHARACTERS])
