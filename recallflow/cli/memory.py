"""`recallflow remember` and `recallflow ask`: one memory, one question. Text output of memories."""

import argparse
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from recallflow.cli.engine import add_engine, event_of, opened
from recallflow.cli.options import GRAPH, LLM, RERANK, add_control, add_create
from recallflow.cli.output import clean, console, json_line

WHEN, WHO, FOUND, ASIDE = "cyan", "bold", "bold yellow", "dim"
_INDENT = " " * 5
# Direction marks: their author could reorder neighbouring text. Scripts keep their direction without them.
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


def one_line(text: str) -> str:
    """Return text without line breaks and control characters, each replaced by one character, so that offsets stay
    valid."""
    return clean(_DIRECTIONS.sub("\N{REPLACEMENT CHARACTER}", _BREAKS.sub(" ", text)))


def said_at(rfc3339: str, now: datetime | None = None) -> str:
    """Return a relative time in words, in the local time zone."""
    moment = datetime.fromisoformat(rfc3339)
    if not 1 < moment.year < 9_999:  # another time zone may exceed the range of dates
        return rfc3339[:10]
    local = moment.astimezone()
    today = (now or datetime.now(UTC)).astimezone()
    days = (today.date() - local.date()).days
    if days in (0, 1):
        return f"{'yesterday' if days else 'today'} {local:%H:%M}"
    if 1 < days < 7:
        return f"{days} days ago"
    return f"{local.day} {local:%B}" + (f" {local.year}" if local.year != today.year else "")


def who(memory: Mapping[str, Any]) -> str:
    """Return the speaker; for a memory without one, its kind."""
    return one_line(memory["name"] or memory["role"] or memory["kind"])


def print_block(target: Console, text: Text, first: str = "", rest: str | None = None) -> None:
    """Print text wrapped to the console's width, with `first` before its first line and `rest` before the others."""
    rest = " " * len(first) if rest is None else rest
    for number, line in enumerate(text.wrap(target, max(target.width - len(rest), 20))):
        line.rstrip()
        target.print(Text(rest if number else first).append_text(line), soft_wrap=True)


def print_ranked(target: Console, memory: Mapping[str, Any], *, explain: bool = False) -> None:
    """Print one ranked memory: time, speaker, text and reasons."""
    shown = Text.assemble((said_at(memory["created_at"]), WHEN), " ", (f"{who(memory)}:", WHO), " ")
    print_block(target, shown.append_text(passage(memory)), f"{memory['rank']:>3}. ")
    reasons = [one_line(reason["text"]) for reason in memory["why"]]
    because = "; ".join(reasons if explain else reasons[:1])
    if memory.get("question") is not None:
        because += f"; subquery: {one_line(memory['question'])}"
    print_block(target, Text(f"because: {because}", ASIDE), _INDENT)
    if explain and memory.get("explanation") is not None:
        print_block(target, Text(_score(memory), ASIDE), _INDENT)


def passage(memory: Mapping[str, Any]) -> Text:
    """Return the text with the query's words highlighted; of a long text the best passage, with the number of
    omitted characters."""
    content, excerpt = memory["content"], memory["excerpt"] or {"start": 0, "end": len(memory["content"])}
    text = Text(one_line(content))
    for reason in memory["why"]:
        for word in reason.get("words", ()):
            for place in word["places"]:
                text.stylize(FOUND, place["start"], place["end"])
    start, end = excerpt["start"], excerpt["end"]
    shown = text[start:end] if start < end else Text()
    if (rest := len(content) - len(shown)) > 0:
        before, behind = "… " * (start > 0), " …" * (end < len(content))
        return Text.assemble(before, shown, behind, (f" ({rest:,} characters more)", ASIDE))
    return shown


def _score(memory: Mapping[str, Any]) -> str:
    """Describe the parts of the score."""
    parts = memory["explanation"]
    weighed = [
        f"{name} {parts['weights'].get(name, 1):g} × {value:.2f}" for name, value in parts["factors"].items() if value
    ]
    boosts = [f"{name} {value:+.2f}" for name, value in parts["boosts"].items() if value]
    return f"score {memory['score']:.3f} ({', '.join([*weighed, *boosts])}); relevance {memory['relevance']:.2f}"


def print_warnings(target: Console, warnings: Iterable[Mapping[str, str]]) -> None:
    """Print the warnings of an answer."""
    for warning in warnings:
        print_block(target, Text(one_line(f"{warning['code']}: {warning['detail']}"), "yellow"), "", "  ")


MODES = ("recency", "relevance", "entity_focused", "balanced", "episode", "hybrid", "decayed", "auto")
NOTHING_RELEVANT = "nothing_relevant"
_SEEN = {"no_memories", "k_exceeds_memories", NOTHING_RELEVANT}  # warnings that the list of memories shows

_STEPS = {  # of a language model
    "select_categories": "show summaries of categories selected by the model",
    "check_sufficiency": "show summaries alone where they answer the question",
    "rewrite": "also ask up to three subqueries written by the model",
}


def add_memory(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    remember = commands.add_parser(
        "remember",
        help="store one memory",
        description="Stores one memory, and prints its id once it is applied. Later questions find it.",
        examples=(
            'recallflow remember "I moved from Leeds to Porto" --state-dir memory --create',
            'recallflow remember "Tea, please" --kind preference --bootstrap-servers localhost:9092',
        ),
    )
    remember.add_argument("text", metavar="TEXT")
    remember.add_argument("--kind", default="fact", metavar="KIND", help="fact, preference, rule, … (default: fact)")
    remember.add_argument("--id", metavar="ID", help="idempotency key")
    remember.add_argument("--session", dest="session_id", metavar="ID", help="conversation of the memory")
    remember.add_argument("--category", metavar="NAME", help="topic of the memory")
    remember.add_argument("--tag", dest="tags", action="append", metavar="TAG", help="label; may be repeated")
    add_engine(remember)
    add_create(remember)
    remember.set_defaults(run=run_remember)
    ask = commands.add_parser(
        "ask",
        help="ask one question",
        description="Asks one question, and prints the best memories with reasons.",
        examples=(
            'recallflow ask "Where do I live?" --state-dir memory',
            'recallflow ask "What do I drink?" -k 3 --json --bootstrap-servers localhost:9092',
        ),
    )
    ask.add_argument("question", metavar="QUESTION")
    ask.add_argument("-k", "--k", type=int, default=5, help="number of memories (default: 5)")
    ask.add_argument("--mode", choices=MODES, default="hybrid", help="ranking mode (default: hybrid)")
    ask.add_argument("--min-relevance", type=float, metavar="X", help="minimum relevance, 0 to 1; 0 shows all")
    ask.add_argument("--as-of", metavar="TIME", help="answer as of that time, without later messages")
    ask.add_argument("--known-at", metavar="TIME", help="with the engine's knowledge of that time, by ingestion time")
    ask.add_argument("--after", metavar="POSITION", help="wait until the record at this position is applied")
    ask.add_argument("--explain", action="store_true", help="show every reason, and the parts of each score")
    for step, text in _STEPS.items():
        ask.add_argument(f"--{step.replace('_', '-')}", action="store_true", help=f"with --llm: {text}")
    add_control(ask)
    add_engine(ask, *GRAPH, *RERANK, *LLM, "llm.query_timeout_ms")
    ask.set_defaults(run=run_ask)


def run_remember(options: argparse.Namespace) -> int:
    named = ("id", "session_id", "category", "tags")
    fields = {name: given for name in named if (given := getattr(options, name)) is not None}
    fields |= {"content": options.text, "kind": options.kind}
    event_of(options, "memory", fields)  # a refused event must not create the directory
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
        response = engine.ask("recall", _query_fields(options)).model_dump(mode="json", exclude_unset=True)
    if options.json:
        json_line(response)
    else:
        _print_answer(response, options)
    return 1 if response["status"] == "error" else 0


def _query_fields(options: argparse.Namespace) -> dict[str, Any]:
    moments = {"event_time": options.as_of, "ingestion_time": options.known_at}
    as_of = {name: at for name, at in moments.items() if at is not None}
    given = {"min_relevance": options.min_relevance, "as_of": as_of or None, "wait_for": options.after}
    asked = {"query": options.question, "k": options.k, "mode": options.mode}
    asked |= {name: value for name, value in given.items() if value is not None}
    return asked | {step: True for step in _STEPS if getattr(options, step)}


def _print_answer(response: Mapping[str, Any], options: argparse.Namespace) -> None:
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
        target.print("no relevant memories (--min-relevance 0 shows the nearest ones)", soft_wrap=True)
        return
    for memory in shown:
        print_ranked(target, memory, explain=options.explain)
    if not shown:
        target.print(nothing_of(options), soft_wrap=True)


def nothing_of(options: argparse.Namespace) -> str:
    """Return the message for a user without memories. It names the user, because the name may be mistyped."""
    where = "" if options.environment == "prod" else f" in {options.environment}"
    return one_line(
        f"no memories of user {options.user} of tenant {options.tenant}{where}; --user and --tenant select another"
    )
