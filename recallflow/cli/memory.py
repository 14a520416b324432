"""`recallflow remember` and `recallflow ask`: one memory, one question."""

import argparse
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from recallflow.cli.engine import add_engine, event_of, opened
from recallflow.cli.memory_text import one_line, print_block, print_ranked, print_warnings
from recallflow.cli.options import GRAPH, LLM, RERANK, add_control, add_create
from recallflow.cli.output import console, json_line

MODES = ("recency", "relevance", "entity_focused", "balanced", "episode", "hybrid", "decayed", "auto")
NOTHING_RELEVANT = "nothing_relevant"
_SEEN = {"no_memories", "k_exceeds_memories", NOTHING_RELEVANT}  # warnings of what the list of memories shows

_STEPS = {  # of a language model
    "select_categories": "show the summaries of the categories that it selects",
    "check_sufficiency": "show summaries alone where they answer the question",
    "rewrite": "ask smaller questions as well, up to three that it makes of the question",
}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    remember = commands.add_parser(
        "remember",
        help="store one memory",
        description="Stores one memory, and prints its id once it is applied: what asks after that finds it.",
        examples=(
            'recallflow remember "I moved from Leeds to Porto" --state-dir memory --create',
            'recallflow remember "Tea, please" --kind preference --bootstrap-servers localhost:9092',
        ),
    )
    remember.add_argument("text", metavar="TEXT")
    remember.add_argument("--kind", default="fact", metavar="KIND", help="fact, preference, rule, … (default: fact)")
    remember.add_argument("--id", metavar="ID", help="idempotency key")
    remember.add_argument("--session", dest="session_id", metavar="ID", help="the conversation that it is of")
    remember.add_argument("--category", metavar="NAME", help="what it is about")
    remember.add_argument("--tag", dest="tags", action="append", metavar="TAG", help="a label; may be given often")
    add_engine(remember)
    add_create(remember)
    remember.set_defaults(run=run_remember)
    ask = commands.add_parser(
        "ask",
        help="ask one question",
        description="Asks one question.",
        examples=(
            'recallflow ask "Where do I live?" --state-dir memory',
            'recallflow ask "What do I drink?" -k 3 --json --bootstrap-servers localhost:9092',
        ),
    )
    ask.add_argument("question", metavar="QUESTION")
    ask.add_argument("-k", "--k", type=int, default=5, help="how many memories (default: 5)")
    ask.add_argument("--mode", choices=MODES, default="hybrid", help="ranking mode (default: hybrid)")
    ask.add_argument(
        "--min-relevance", type=float, metavar="X", help="only memories at least so relevant, 0 to 1; 0 shows any"
    )
    ask.add_argument("--as-of", metavar="TIME", help="as of that time: nothing that was said after it")
    ask.add_argument("--known-at", metavar="TIME", help="with what the engine knew then, whenever it had been said")
    ask.add_argument("--after", metavar="POSITION", help="once what was written there is applied")
    ask.add_argument("--explain", action="store_true", help="show every reason, and how each score came about")
    for step, text in _STEPS.items():
        ask.add_argument(f"--{step.replace('_', '-')}", action="store_true", help=f"with --llm: {text}")
    add_control(ask)
    add_engine(ask, *GRAPH, *RERANK, *LLM, "llm.query_timeout_ms")
    ask.set_defaults(run=run_ask)


def run_remember(options: argparse.Namespace) -> int:
    named = ("id", "session_id", "category", "tags")
    fields = {name: given for name in named if (given := getattr(options, name)) is not None}
    fields |= {"content": options.text, "kind": options.kind}
    event_of(options, "memory", fields)  # what would be refused makes no directory
    with opened(options) as engine:
        receipt = engine.send("memory", fields)
    if options.json:
        json_line(receipt.model_dump(exclude_unset=True))
        return 0
    console().print(Text.assemble((receipt.outcome, "green"), f": {one_line(receipt.memory_id or '')}"), soft_wrap=True)
    if receipt.code is not None:
        print_warnings(console(), [{"code": receipt.code, "detail": receipt.detail or ""}])
    return 0


def run_ask(options: argparse.Namespace) -> int:
    with opened(options) as engine:
        response = engine.ask("recall", _query(options)).model_dump(mode="json", exclude_unset=True)
    if options.json:
        json_line(response)
    else:
        _print(response, options)
    return 1 if response["status"] == "error" else 0


def _query(options: argparse.Namespace) -> dict[str, Any]:
    moments = {"event_time": options.as_of, "ingestion_time": options.known_at}
    as_of = {name: at for name, at in moments.items() if at is not None}
    given = {"min_relevance": options.min_relevance, "as_of": as_of or None, "wait_for": options.after}
    asked = {"query": options.question, "k": options.k, "mode": options.mode}
    asked |= {name: value for name, value in given.items() if value is not None}
    return asked | {step: True for step in _STEPS if getattr(options, step)}


def _print(response: Mapping[str, Any], options: argparse.Namespace) -> None:
    target = console()
    if response["status"] == "error":
        target.print(Text(one_line(f"error: {response['error']['message']}"), "red"), soft_wrap=True)
        return
    print_warnings(target, [one for one in response["warnings"] if one["code"] not in _SEEN])
    codes, shown = {one["code"] for one in response["warnings"]}, response["memories"]
    if "decryption_failed" in codes and not shown:
        return
    if options.select_categories or response.get("sufficient"):
        for category, summary in response["context"]["summaries"].items():
            print_block(target, Text(one_line(f"{category}: {summary}")), "  ")
    if response.get("sufficient"):
        return
    if NOTHING_RELEVANT in codes and (options.min_relevance is None or not shown):
        target.print("nothing about that (--min-relevance 0 shows the nearest memories)", soft_wrap=True)
        return
    for memory in shown:
        print_ranked(target, memory, explain=options.explain)
    if not shown:
        target.print(nothing_of(options), soft_wrap=True)


def nothing_of(options: argparse.Namespace) -> str:
    """That a user has no memories, and which user that is: a name may be mistyped."""
    where = "" if options.environment == "prod" else f" in {options.environment}"
    return one_line(
        f"nothing remembered yet of user {options.user} of tenant {options.tenant}{where}; "
        "--user and --tenant name another"
    )
