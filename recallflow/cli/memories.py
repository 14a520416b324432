"""`recallflow list`, `show`, `forget` and `episodes`: a user's memories."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from recallflow.cli.engine import CommandEngine, add_engine, opened
from recallflow.cli.memory import ASIDE, WHEN, WHO, nothing_of, one_line, print_block, print_warnings, said_at, who
from recallflow.cli.output import console, json_line, note
from recallflow.errors import RecallflowError, UsageError

LEAST_ROOM = 24  # minimum width of a text column
MOST_CHARACTERS = 1_000  # of a text in a table: no line of a terminal is longer
_FIELDS = (
    *("summary", "kind", "layer", "category", "tags", "topics"),
    *("session_id", "project_id", "importance", "confidence"),
)
_TIMES = ("valid_from", "valid_to", "expires_at")
_USUAL = {"layer": "long_term", "importance": 0.5, "confidence": 1.0}  # default values, which are not printed


def print_memories(target: Console, memories: Iterable[Mapping[str, Any]]) -> None:
    """Print one line per memory: on a terminal shortened to its width, elsewhere tab-separated columns with whole
    texts."""
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
    """Print one line per episode in the same way."""
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
    """Print a memory with its `versions`, oldest first."""
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
    """Describe the usage by answers and feedback."""
    if not usage["count"] and not usage["useful"] and not usage["not_useful"]:
        return "never"
    last = f", last {said_at(usage['last_accessed_at'])}" if usage["last_accessed_at"] else ""
    said = f"; found useful {usage['useful']}, not useful {usage['not_useful']}"
    times = "once" if usage["count"] == 1 else f"{usage['count']:,} times"
    return f"{times}{last}" + said * bool(usage["useful"] or usage["not_useful"])


def _print_field(target: Console, name: str, value: object) -> None:
    print_block(target, Text(one_line(str(value))), f"  {one_line(name):<12} ")


def _print_table(target: Console, names: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """Print one line per row, with the last column cut at the terminal's width: it holds text of any direction,
    which must not move other columns. In a narrow terminal it goes on the next line."""
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


PAGE_MOST = 1_000  # memories or episodes of one answer
# Flag of `list` → filter of the query.
_FILTERS = {"--kind": "kinds", "--category": "categories", "--tag": "tags", "--session": "session_ids"}
# Field of a forget filter → field of a query filter.
_SAME = {"session_id": "session_ids", "category": "categories", "tag": "tags", "older_than": "created_before"}


def add_memories(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    listing = commands.add_parser(
        "list",
        help="list a user's memories, newest first",
        description="Lists a user's memories, newest first.",
        examples=("recallflow list --state-dir memory", "recallflow list --json --bootstrap-servers localhost:9092"),
    )
    _add_limit(listing)
    listing.add_argument("--all", action="store_true", help="list all memories, without a limit")
    for flag, name in _FILTERS.items():
        text = "only these; may be repeated"
        listing.add_argument(flag, dest=name, action="append", metavar="NAME", help=text)
    listing.add_argument("--as-of", metavar="TIME", help="list the memories of that time")
    listing.set_defaults(run=run_list)
    show = commands.add_parser(
        "show",
        help="show one memory: text, fields, versions, edges, usage",
        description="Shows all data of a memory.",
        examples=("recallflow show home --state-dir memory",),
    )
    show.add_argument("id", metavar="ID")
    show.set_defaults(run=run_show)
    forget = commands.add_parser(
        "forget",
        help="forget memories permanently",
        description="Forgets one memory, or all memories that match every given session, category and tag. On a "
        "terminal it asks for confirmation.",
        examples=("recallflow forget home --yes --state-dir memory",),
    )
    forget.add_argument("id", nargs="?", metavar="ID")
    forget.add_argument("--session", dest="session_id", metavar="ID", help="memories of this session")
    forget.add_argument("--category", metavar="NAME", help="memories of this category")
    forget.add_argument("--tag", metavar="TAG", help="memories with this tag")
    forget.add_argument("--older-than", metavar="TIME", help="memories from before this time")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    forget.set_defaults(run=run_forget)
    episodes = commands.add_parser(
        "episodes",
        help="list a user's conversations, newest first",
        description="Lists a user's conversations, newest first.",
        examples=("recallflow episodes --limit 5 --state-dir memory",),
    )
    episodes.add_argument("--session", dest="session_id", metavar="ID", help="conversations of this session only")
    _add_limit(episodes)
    episodes.set_defaults(run=run_episodes)
    for parser in (listing, show, forget, episodes):
        add_engine(parser)


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="maximum number (default: 20)")


# ---------------------------------------------------------------------- queries


def run_list(options: argparse.Namespace) -> int:
    shown, total = 0, 0
    with opened(options) as engine:
        for response in _pages(engine, options):
            page = response["memory_page"]
            total, shown = max(total, page["total"]), shown + len(page["memories"])
            if options.json:
                json_line(response)
                continue
            print_warnings(console(), response["warnings"])
            print_memories(console(), page["memories"])
    if options.json:
        return 0
    if shown == 0:
        print(_nothing(options))
    elif shown < total and console().is_terminal:
        note(f"{shown:,} of {total:,} memories; --all lists all")
    return 0


def _pages(engine: CommandEngine, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield responses up to the requested number of memories, or the end."""
    filters = {name: given for name in _FILTERS.values() if (given := getattr(options, name))}
    asked = {"filters": filters} | ({} if options.as_of is None else {"as_of": {"event_time": options.as_of}})
    left, after = (None if options.all else options.limit), None
    while True:
        most = PAGE_MOST if left is None else min(left, PAGE_MOST)
        place: dict[str, str] = {} if after is None else {"after": after}
        response = _asked(engine, "memories.list", asked | {"limit": most} | place)
        yield response
        page = response["memory_page"]
        left, after = (None if left is None else left - len(page["memories"])), page["after"]
        if after is None or (left is not None and left <= 0):
            return


def _nothing(options: argparse.Namespace) -> str:
    is_narrowed = any(getattr(options, name) for name in (*_FILTERS.values(), "as_of"))
    return "no matching memories" if is_narrowed else nothing_of(options)


def run_show(options: argparse.Namespace) -> int:
    named = {"memory_id": options.id}
    with opened(options) as engine:
        found, history = _asked(engine, "memory.get", named), _asked(engine, "memory.history", named)
    if options.json:
        json_line(found)
        json_line(history)
    else:
        print_warnings(console(), history["warnings"])
        print_memory(console(), history["versions"], history["edges"], found["usage"])
    return 0


def run_episodes(options: argparse.Namespace) -> int:
    narrowed = {} if options.session_id is None else {"session_id": options.session_id}
    with opened(options) as engine:
        response = _asked(engine, "episodes.list", {"limit": options.limit} | narrowed)
    if options.json:
        json_line(response)
    elif response["episodes"]:
        print_episodes(console(), response["episodes"])
    else:
        print(nothing_of(options) if options.session_id is None else "no episode of this session")
    return 0


def _asked(engine: CommandEngine, query_type: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a query. Raise RecallflowError for an error response."""
    response = engine.ask(query_type, fields).model_dump(mode="json", exclude_unset=True)
    if response["status"] == "error":
        raise RecallflowError(response["error"]["message"])
    return response


# ---------------------------------------------------------------------- forgetting


def run_forget(options: argparse.Namespace) -> int:
    chosen = {name: given for name in _SAME if (given := getattr(options, name)) is not None}
    if (options.id is None) == (not chosen):
        raise UsageError("give either an ID, or a filter: --session, --category, --tag, …")
    with opened(options) as engine:
        if not options.yes and sys.stdin.isatty() and not _confirmed(engine, options, chosen):
            print("nothing was forgotten")
            return 1
        target = {"memory_id": options.id} if options.id is not None else {"filter": chosen}
        receipt = engine.send("memory.forget", target)
    if options.json:
        json_line(receipt.model_dump(mode="json", exclude_unset=True))
    else:
        print(receipt.outcome if receipt.outcome == "forgotten" else "no memories to forget")
    return 0


def _confirmed(engine: CommandEngine, options: argparse.Namespace, chosen: Mapping[str, Any]) -> bool:
    """Show the memories to be forgotten, and return whether the user confirms."""
    target = console(stderr=True)
    if options.id is not None:
        memory = _asked(engine, "memory.get", {"memory_id": options.id})["versions"][-1]
        shown = Text.assemble((f"{who(memory)}:", WHO), f" {one_line(memory['content'])}")
        print_block(target, shown)
        question = "Forget it permanently?"
    else:
        filters = {_SAME[name]: given if name == "older_than" else [given] for name, given in chosen.items()}
        page = _asked(engine, "memories.list", {"filters": filters, "limit": 3})["memory_page"]
        print_memories(target, page["memories"])
        question = f"Forget all {page['total']:,} memories permanently?"
    target.print(f"{question} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
