"""`recallflow list`, `show`, `forget` and `episodes`: what is remembered of a user, and taking it away."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from recallflow.cli.engine import Engine, add_engine, opened
from recallflow.cli.memories_text import print_episodes, print_memories, print_memory
from recallflow.cli.memory import nothing_of
from recallflow.cli.memory_text import WHO, one_line, print_block, print_warnings, who
from recallflow.cli.output import console, json_line, note
from recallflow.errors import RecallflowError, UsageError

PAGE_MOST = 1_000  # memories or episodes of one answer
# Flag of `list` → the filter of a query that it stands for.
_FILTERS = {"--kind": "kinds", "--category": "categories", "--tag": "tags", "--session": "session_ids"}
# Field of a forget's filter → the same in a query's.
_SAME = {"session_id": "session_ids", "category": "categories", "tag": "tags", "older_than": "created_before"}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    listing = commands.add_parser(
        "list",
        help="a user's memories, newest first",
        description="Lists memories.",
        examples=("recallflow list --state-dir memory", "recallflow list --json --bootstrap-servers localhost:9092"),
    )
    _add_limit(listing)
    listing.add_argument("--all", action="store_true", help="every one, however many there are")
    for flag, name in _FILTERS.items():
        text = "only those; may be given often"
        listing.add_argument(flag, dest=name, action="append", metavar="NAME", help=text)
    listing.add_argument("--as-of", metavar="TIME", help="as it stood at that time")
    listing.set_defaults(run=run_list)
    show = commands.add_parser(
        "show",
        help="one memory: text, fields, versions, edges, usage",
        description="Shows all that is known of a memory.",
        examples=("recallflow show home --state-dir memory",),
    )
    show.add_argument("id", metavar="ID")
    show.set_defaults(run=run_show)
    forget = commands.add_parser(
        "forget",
        help="take memories away, for good",
        description="Forgets one memory, or all of a session, category or tag, those alone that all of the given holds "
        "of. On a terminal it asks before.",
        examples=("recallflow forget home --yes --state-dir memory",),
    )
    forget.add_argument("id", nargs="?", metavar="ID")
    forget.add_argument("--session", dest="session_id", metavar="ID", help="all of this session")
    forget.add_argument("--category", metavar="NAME", help="all of this category")
    forget.add_argument("--tag", metavar="TAG", help="all with this tag")
    forget.add_argument("--older-than", metavar="TIME", help="all that was said before")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    forget.set_defaults(run=run_forget)
    episodes = commands.add_parser(
        "episodes",
        help="a user's conversations, newest first",
        description="Lists conversations.",
        examples=("recallflow episodes --limit 5 --state-dir memory",),
    )
    episodes.add_argument("--session", dest="session_id", metavar="ID", help="only of this session")
    _add_limit(episodes)
    episodes.set_defaults(run=run_episodes)
    for parser in (listing, show, forget, episodes):
        add_engine(parser)


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (default: 20)")


# ---------------------------------------------------------------------- looking


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
        note(f"{shown:,} of {total:,} memories; --all lists every one")
    return 0


def _pages(engine: Engine, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Responses until there are as many memories as are asked for, or no more."""
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
    return "nothing remembered that fits" if is_narrowed else nothing_of(options)


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


def _asked(engine: Engine, query_type: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Raises RecallflowError where the answer is that there is none."""
    response = engine.ask(query_type, fields).model_dump(mode="json", exclude_unset=True)
    if response["status"] == "error":
        raise RecallflowError(response["error"]["message"])
    return response


# ---------------------------------------------------------------------- forgetting


def run_forget(options: argparse.Namespace) -> int:
    chosen = {name: given for name in _SAME if (given := getattr(options, name)) is not None}
    if (options.id is None) == (not chosen):
        raise UsageError("give either an ID, or what all that is to be forgotten has: --session, --category, --tag, …")
    with opened(options) as engine:
        if not options.yes and sys.stdin.isatty() and not _confirmed(engine, options, chosen):
            print("nothing is forgotten")
            return 1
        target = {"memory_id": options.id} if options.id is not None else {"filter": chosen}
        receipt = engine.send("memory.forget", target)
    if options.json:
        json_line(receipt.model_dump(mode="json", exclude_unset=True))
    else:
        print(receipt.outcome if receipt.outcome == "forgotten" else "nothing there to forget")
    return 0


def _confirmed(engine: Engine, options: argparse.Namespace, chosen: Mapping[str, Any]) -> bool:
    """Whether the person at the terminal says so, who is shown what it is about."""
    target = console(stderr=True)
    if options.id is not None:
        memory = _asked(engine, "memory.get", {"memory_id": options.id})["versions"][-1]
        shown = Text.assemble((f"{who(memory)}:", WHO), f" {one_line(memory['content'])}")
        print_block(target, shown)
        question = "Forget it for good?"
    else:
        filters = {_SAME[name]: given if name == "older_than" else [given] for name, given in chosen.items()}
        page = _asked(engine, "memories.list", {"filters": filters, "limit": 3})["memory_page"]
        print_memories(target, page["memories"])
        question = f"Forget all {page['total']:,} of them for good?"
    target.print(f"{question} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
