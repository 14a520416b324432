"""`recallflow remember`, `ask`, `list`, `show`, `forget` and `episodes`: memories of a user, and their text output."""

import argparse
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from recallflow.cli.engine import CommandEngine, add_engine, event_of, open_engine
from recallflow.cli.flags import QUERIES, add_control, add_create
from recallflow.cli.output import clean, confirmed, console, json_line, note
from recallflow.cli.parser import Commands, add_command
from recallflow.errors import UsageError

WHEN, WHO, MATCH, DIM = "cyan", "bold", "bold yellow", "dim"  # styles
_INDENT = " " * 5
# Direction marks, by which an author could reorder neighbouring text. Text keeps its direction without them.
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LINE_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
TEXT_COLUMNS_MIN = 24  # minimum width of a text column
TEXT_CHARACTERS_MAX = 1_000  # of a text in a table: no line of a terminal is longer
_FIELDS = (*("summary", "kind", "layer", "category", "tags", "topics"),
           *("session_id", "project_id", "importance", "confidence"))  # fmt: skip
_TIMES = ("valid_from", "valid_to", "expires_at")
_DEFAULTS = {"layer": "long_term", "importance": 0.5, "confidence": 1.0}  # default values, which are not printed
PAGE_SIZE_MAX = 1_000  # memories of one response
# Flag of `list` → filter of the query.
_FILTERS = {"--kind": "kinds", "--category": "categories", "--tag": "tags", "--session": "session_ids"}
# Field of the filter of `memory.forget` → field of a query's filter.
_QUERY_FILTERS = {"session_id": "session_ids", "category": "categories", "tag": "tags", "older_than": "created_before"}


def one_line(text: str) -> str:
    """Replace each line break and control character by one character, so that offsets stay valid."""
    return clean(_DIRECTIONS.sub("\N{REPLACEMENT CHARACTER}", _LINE_BREAKS.sub(" ", text)))


def relative_time(rfc3339: str, now: datetime | None = None) -> str:
    """Return a relative time in words, in the local time zone."""
    time = datetime.fromisoformat(rfc3339)
    if not 1 < time.year < 9_999:  # in another time zone, the time might exceed the range of dates
        return rfc3339[:10]
    local = time.astimezone()
    today = (now or datetime.now(UTC)).astimezone()
    days = (today.date() - local.date()).days
    if days in (0, 1):
        return f"{'yesterday' if days else 'today'} {local:%H:%M}"
    if 1 < days < 7:
        return f"{days} days ago"
    return f"{local.day} {local:%B}" + (f" {local.year}" if local.year != today.year else "")


def speaker(memory: Mapping[str, Any]) -> str:
    """Return the speaker's name or role; for a memory without a speaker, its kind."""
    return one_line(memory["name"] or memory["role"] or memory["kind"])


def print_block(target: Console, text: Text, first: str = "", rest: str | None = None) -> None:
    """Print text wrapped to the console's width, with `first` before its first line and `rest` before the others."""
    rest = " " * len(first) if rest is None else rest
    for number, line in enumerate(text.wrap(target, max(target.width - len(rest), 20))):
        line.rstrip()
        target.print(Text(rest if number else first).append_text(line), soft_wrap=True)


def print_ranked(target: Console, memory: Mapping[str, Any], *, explain: bool = False) -> None:
    beginning = Text.assemble((relative_time(memory["created_at"]), WHEN), " ", (f"{speaker(memory)}:", WHO), " ")
    print_block(target, beginning.append_text(passage(memory)), f"{memory['rank']:>3}. ")
    reasons = [one_line(reason["text"]) for reason in memory["why"]]
    explanation = "; ".join(reasons if explain else reasons[:1])
    if memory.get("question") is not None:
        explanation += f"; subquery: {one_line(memory['question'])}"
    print_block(target, Text(f"because: {explanation}", DIM), _INDENT)
    if explain and memory.get("explanation") is not None:
        print_block(target, Text(_score(memory), DIM), _INDENT)


def passage(memory: Mapping[str, Any]) -> Text:
    """Return the text, or its best passage if it is long, with the words of the query highlighted."""
    content, excerpt = memory["content"], memory["excerpt"] or {"start": 0, "end": len(memory["content"])}
    text = Text(one_line(content))
    for reason in memory["why"]:
        for word in reason.get("words", ()):
            for place in word["places"]:
                text.stylize(MATCH, place["start"], place["end"])
    start, end = excerpt["start"], excerpt["end"]
    part = text[start:end] if start < end else Text()
    if (rest := len(content) - len(part)) > 0:
        before, after = "… " * (start > 0), " …" * (end < len(content))
        return Text.assemble(before, part, after, (f" ({rest:,} characters more)", DIM))
    return part


def _score(memory: Mapping[str, Any]) -> str:
    parts = memory["explanation"]
    factors, weights = parts["factors"], parts["weights"]
    terms = [f"{name} {weights.get(name, 1):g} × {value:.2f}" for name, value in factors.items() if value]
    terms += [f"{name} {value:+.2f}" for name, value in parts["boosts"].items() if value]
    return f"score {memory['score']:.3f} ({', '.join(terms)}); relevance {memory['relevance']:.2f}"


def print_warnings(target: Console, warnings: Iterable[Mapping[str, str]]) -> None:
    for warning in warnings:
        print_block(target, Text(one_line(f"{warning['code']}: {warning['detail']}"), "yellow"), "", "  ")


def print_memories(target: Console, memories: Iterable[Mapping[str, Any]]) -> None:
    rows = []
    for one in memories:
        marks = f" ({', '.join(one['marks'])})" if one["marks"] else ""
        content = one_line(one["content"][:TEXT_CHARACTERS_MAX])
        text = Text.assemble((f"{speaker(one)}:", WHO), (marks, DIM), f" {content}")
        cells = [Text(relative_time(one["created_at"]), WHEN), Text(one_line(one["id"]), DIM), text]
        rows.append(((one["created_at"], one["id"], speaker(one), one["content"]), cells))
    _print_list(target, ["when", "id", "memory"], rows)


def print_episodes(target: Console, episodes: Iterable[Mapping[str, Any]]) -> None:
    rows = []
    for one in episodes:
        session, summary = one["session_id"] or "", one["summary"]
        when, count = Text(relative_time(one["started_at"]), WHEN), Text(f"{one['messages']:,}")
        session_cell = Text(one_line(session) + " (open)" * one["open"], DIM)
        columns = (one["started_at"], one["ended_at"], one["id"], session, str(one["messages"]), summary)
        rows.append((columns, [when, session_cell, count, Text(one_line(summary[:TEXT_CHARACTERS_MAX]))]))
    _print_list(target, ["when", "session", "messages", "summary"], rows)


def _print_list(target: Console, names: Sequence[str], rows: Sequence[tuple[tuple[str, ...], list[Text]]]) -> None:
    """Print one line per row: its whole columns between tabs; on a terminal its cells instead. There the text column is
    the last, because text of another direction would move the columns after it. It is cut at the terminal's width; in
    a narrow terminal it is on a line of its own."""
    if not target.is_terminal:
        for columns, _ in rows:
            print(*map(one_line, columns), sep="\t", file=target.file)
        return
    every_row = [[Text(name, "bold") for name in names], *(cells for _, cells in rows)]
    widths = [max(row[column].cell_len for row in every_row) + 2 for column in range(len(names) - 1)]
    text_width = target.width - sum(widths)
    is_narrow = text_width < TEXT_COLUMNS_MIN
    for row in every_row[is_narrow:]:  # a narrow terminal shows no header
        *cells, text = (cell.copy() for cell in row)
        for cell, width in zip(cells, widths, strict=True):
            cell.truncate(width, pad=True)
        text.truncate(target.width - 4 if is_narrow else text_width, overflow="ellipsis")
        target.print(Text("\n    " if is_narrow else "").join([Text("").join(cells), text]), soft_wrap=True)


def print_memory(target: Console, history: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
    versions, edges = history["versions"], history["edges"]
    latest = versions[-1]
    print_block(target, Text.assemble((f"{speaker(latest)}:", WHO), f" {one_line(latest['content'])}"))
    target.print()
    _print_field(target, "id", latest["id"])
    printed = set[str]()
    for name, label in (("created_at", "said"), ("updated_at", "changed"), ("ingested_at", "known since")):
        if latest[name] not in printed:
            _print_field(target, label, f"{relative_time(latest[name])} ({latest[name]})")
        printed.add(latest[name])
    for name in _FIELDS:
        if (value := latest.get(name)) not in (None, [], _DEFAULTS.get(name)):
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
        _print_field(target, f"version {one['version']}", f"{relative_time(one['updated_at'])}: {one['content']}")
    for edge in edges:
        marks = f" ({', '.join(edge['marks'])})" if edge["marks"] else ""
        _print_field(target, edge["type"], f"{edge['source']} → {edge['target']}, {edge['weight']:.2f}{marks}")


def _used(usage: Mapping[str, Any]) -> str:
    if not (usage["count"] or usage["useful"] or usage["not_useful"]):
        return "never"
    last = f", last {relative_time(usage['last_accessed_at'])}" if usage["last_accessed_at"] else ""
    feedback = f"; found useful {usage['useful']}, not useful {usage['not_useful']}"
    times = "once" if usage["count"] == 1 else f"{usage['count']:,} times"
    return f"{times}{last}" + feedback * bool(usage["useful"] or usage["not_useful"])


def _print_field(target: Console, name: str, value: object) -> None:
    print_block(target, Text(one_line(str(value))), f"  {one_line(name):<12} ")


MODES = ("recency", "relevance", "entity_focused", "balanced", "episode", "hybrid", "decayed", "auto")
NO_MATCH = "nothing_relevant"
_OMITTED_WARNINGS = {"no_memories", "k_exceeds_memories", NO_MATCH}  # the list of memories shows their cause
_MODEL_STEPS = {  # steps that a language model executes
    "select_categories": "show summaries of categories selected by the model",
    "check_sufficiency": "show summaries alone where they answer the question",
    "rewrite": "also ask up to three subqueries written by the model",
}


def add_memory(commands: Commands) -> None:
    remember = add_command(commands, "remember", run_remember)
    remember.add_argument("text", metavar="TEXT")
    remember.add_argument("--kind", default="fact", metavar="KIND", help="fact, preference, rule, … (default: fact)")
    remember.add_argument("--id", metavar="ID", help="idempotency key")
    remember.add_argument("--session", dest="session_id", metavar="ID", help="conversation of the memory")
    remember.add_argument("--category", metavar="NAME", help="topic of the memory")
    remember.add_argument("--tag", dest="tags", action="append", metavar="TAG", help="label; may be repeated")
    add_engine(remember)
    add_create(remember)
    ask = add_command(commands, "ask", run_ask)
    ask.add_argument("question", metavar="QUESTION")
    ask.add_argument("-k", "--k", type=int, default=5, help="number of memories (default: 5)")
    ask.add_argument("--mode", choices=MODES, default="hybrid", help="ranking mode (default: hybrid)")
    ask.add_argument("--min-relevance", type=float, metavar="X", help="minimum relevance, 0 to 1; 0 shows all")
    ask.add_argument("--as-of", metavar="TIME", help="answer as of that time, without later messages")
    ask.add_argument("--known-at", metavar="TIME", help="with the engine's knowledge of that time, by ingestion time")
    ask.add_argument("--after", metavar="POSITION", help="wait until the record at this position is applied")
    ask.add_argument("--explain", action="store_true", help="show every reason, and the parts of each score")
    for step, text in _MODEL_STEPS.items():
        ask.add_argument(f"--{step.replace('_', '-')}", action="store_true", help=f"with --llm: {text}")
    add_control(ask)
    add_engine(ask, *QUERIES)


def run_remember(options: argparse.Namespace) -> None:
    """Store one memory.
    Prints its id once it is applied. Later questions find it.
    $ recallflow remember "I moved from Leeds to Porto" --state-dir memory --create
    $ recallflow remember "Tea, please" --kind preference --bootstrap-servers localhost:9092"""
    names = ("id", "session_id", "category", "tags")
    fields = {name: value for name in names if (value := getattr(options, name)) is not None}
    fields |= {"content": options.text, "kind": options.kind}
    event_of(options, "memory", fields)  # a refused event must not create the directory
    with open_engine(options) as engine:
        receipt = engine.send("memory", fields)
    if options.json:
        json_line(receipt.model_dump(exclude_unset=True))
        return
    console().print(Text.assemble((receipt.outcome, "green"), f": {one_line(receipt.memory_id or '')}"), soft_wrap=True)
    if receipt.code is not None:
        print_warnings(console(), [{"code": receipt.code, "detail": receipt.detail or ""}])


def run_ask(options: argparse.Namespace) -> int:
    """Ask one question.
    Prints the best memories with reasons.
    $ recallflow ask "Where do I live?" --state-dir memory
    $ recallflow ask "What do I drink?" -k 3 --json --bootstrap-servers localhost:9092"""
    with open_engine(options) as engine:
        response = engine.ask("recall", _query_fields(options), takes_errors=True)
    if options.json:
        json_line(response)
    else:
        _print_answer(response, options)
    return 1 if response["status"] == "error" else 0


def _query_fields(options: argparse.Namespace) -> dict[str, Any]:
    times = {"event_time": options.as_of, "ingestion_time": options.known_at}
    as_of = {name: time for name, time in times.items() if time is not None}
    optional = {"min_relevance": options.min_relevance, "as_of": as_of or None, "wait_for": options.after}
    fields = {"query": options.question, "k": options.k, "mode": options.mode}
    fields |= {name: value for name, value in optional.items() if value is not None}
    fields["explain"] = options.explain or not options.json
    return fields | {step: True for step in _MODEL_STEPS if getattr(options, step)}


def _print_answer(response: Mapping[str, Any], options: argparse.Namespace) -> None:
    target = console()
    if response["status"] == "error":
        target.print(Text(one_line(f"error: {response['error']['message']}"), "red"), soft_wrap=True)
        return
    print_warnings(target, [one for one in response["warnings"] if one["code"] not in _OMITTED_WARNINGS])
    codes, memories = {one["code"] for one in response["warnings"]}, response["memories"]
    if "decryption_failed" in codes and not memories:
        return
    if options.select_categories or response.get("sufficient"):
        for category, summary in response["context"]["summaries"].items():
            print_block(target, Text(one_line(f"{category}: {summary}")), "  ")
    if response.get("sufficient"):
        return
    if NO_MATCH in codes and (options.min_relevance is None or not memories):
        target.print("no relevant memories (--min-relevance 0 shows the nearest ones)", soft_wrap=True)
        return
    for memory in memories:
        print_ranked(target, memory, explain=options.explain)
    if not memories:
        target.print(no_memories_message(options), soft_wrap=True)


def no_memories_message(options: argparse.Namespace) -> str:
    """Return the message for a user without memories. It names the user, because the name may be mistyped."""
    environment = "" if options.environment == "prod" else f" in {options.environment}"
    user = f"user {options.user} of tenant {options.tenant}{environment}"
    return one_line(f"no memories of {user}; --user and --tenant select another")


def add_memories(commands: Commands) -> None:
    listing = add_command(commands, "list", run_list)
    _add_limit(listing)
    listing.add_argument("--all", action="store_true", help="list all memories, without a limit")
    for flag, name in _FILTERS.items():
        listing.add_argument(flag, dest=name, action="append", metavar="NAME", help="only these; may be repeated")
    listing.add_argument("--as-of", metavar="TIME", help="list the memories of that time")
    show = add_command(commands, "show", run_show)
    show.add_argument("id", metavar="ID")
    forget = add_command(commands, "forget", run_forget)
    forget.add_argument("id", nargs="?", metavar="ID")
    forget.add_argument("--session", dest="session_id", metavar="ID", help="memories of this session")
    forget.add_argument("--category", metavar="NAME", help="memories of this category")
    forget.add_argument("--tag", metavar="TAG", help="memories with this tag")
    forget.add_argument("--older-than", metavar="TIME", help="memories from before this time")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    episodes = add_command(commands, "episodes", run_episodes)
    episodes.add_argument("--session", dest="session_id", metavar="ID", help="conversations of this session only")
    _add_limit(episodes)
    for parser in (listing, show, forget, episodes):
        add_engine(parser)


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="maximum number (default: 20)")


def run_list(options: argparse.Namespace) -> None:
    """List a user's memories, newest first.
    $ recallflow list --state-dir memory
    $ recallflow list --json --bootstrap-servers localhost:9092"""
    listed, total = 0, 0
    with open_engine(options) as engine:
        for response in _pages(engine, options):
            page = response["memory_page"]
            total, listed = max(total, page["total"]), listed + len(page["memories"])
            if options.json:
                json_line(response)
                continue
            print_warnings(console(), response["warnings"])
            print_memories(console(), page["memories"])
    if options.json:
        return
    if listed == 0:
        is_filtered = any(getattr(options, name) for name in (*_FILTERS.values(), "as_of"))
        print("no matching memories" if is_filtered else no_memories_message(options))
    elif listed < total and console().is_terminal:
        note(f"{listed:,} of {total:,} memories; --all lists all")


def _pages(engine: CommandEngine, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield responses up to the requested number of memories, or the end."""
    filters = {name: values for name in _FILTERS.values() if (values := getattr(options, name))}
    fields: dict[str, Any] = {"filters": filters}
    if options.as_of is not None:
        fields["as_of"] = {"event_time": options.as_of}
    remaining: float = math.inf if options.all else options.limit
    while True:
        response = engine.ask("memories.list", fields | {"limit": min(remaining, PAGE_SIZE_MAX)})
        yield response
        page = response["memory_page"]
        remaining, fields["after"] = remaining - len(page["memories"]), page["after"]
        if fields["after"] is None or remaining <= 0:
            return


def run_show(options: argparse.Namespace) -> None:
    """Show one memory: text, fields, versions, edges, usage.
    $ recallflow show home --state-dir memory"""
    fields = {"memory_id": options.id}
    with open_engine(options) as engine:
        memory, history = engine.ask("memory.get", fields), engine.ask("memory.history", fields)
    if options.json:
        json_line(memory)
        json_line(history)
    else:
        print_warnings(console(), history["warnings"])
        print_memory(console(), history, memory["usage"])


def run_episodes(options: argparse.Namespace) -> None:
    """List a user's conversations, newest first.
    $ recallflow episodes --limit 5 --state-dir memory"""
    session = {} if options.session_id is None else {"session_id": options.session_id}
    with open_engine(options) as engine:
        response = engine.ask("episodes.list", {"limit": options.limit} | session)
    if options.json:
        json_line(response)
    elif response["episodes"]:
        print_episodes(console(), response["episodes"])
    else:
        print(no_memories_message(options) if options.session_id is None else "no episode of this session")


def run_forget(options: argparse.Namespace) -> int:
    """Forget memories permanently.
    One memory, or all that match every given filter. On a terminal it asks for confirmation.
    $ recallflow forget home --yes --state-dir memory"""
    conditions = {name: value for name in _QUERY_FILTERS if (value := getattr(options, name)) is not None}
    if (options.id is None) == (not conditions):
        raise UsageError("give either an ID, or a filter: --session, --category, --tag, …")
    with open_engine(options) as engine:
        if not options.yes and sys.stdin.isatty() and not _confirmed(engine, options, conditions):
            print("nothing was forgotten")
            return 1
        target = {"memory_id": options.id} if options.id is not None else {"filter": conditions}
        receipt = engine.send("memory.forget", target)
    if options.json:
        json_line(receipt.model_dump(mode="json", exclude_unset=True))
    else:
        print(receipt.outcome if receipt.outcome == "forgotten" else "no memories to forget")
    return 0


def _confirmed(engine: CommandEngine, options: argparse.Namespace, conditions: Mapping[str, Any]) -> bool:
    """Show the memories to be forgotten, and return whether the user confirms."""
    target = console(stderr=True)
    if options.id is not None:
        memory = engine.ask("memory.get", {"memory_id": options.id})["versions"][-1]
        print_block(target, Text.assemble((f"{speaker(memory)}:", WHO), f" {one_line(memory['content'])}"))
        question = "Forget it permanently?"
    else:
        lists = {name: value if name == "older_than" else [value] for name, value in conditions.items()}
        filters = {_QUERY_FILTERS[name]: value for name, value in lists.items()}
        page = engine.ask("memories.list", {"filters": filters, "limit": 3})["memory_page"]
        print_memories(target, page["memories"])
        question = f"Forget all {page['total']:,} memories permanently?"
    return confirmed(question)
