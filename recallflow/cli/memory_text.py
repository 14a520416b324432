"""How memories look to a person: whose words, when, and why they are in an answer."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from recallflow.cli.output import clean

WHEN, WHO, FOUND, ASIDE = "cyan", "bold", "bold yellow", "dim"
_INDENT = " " * 5
# Whoever writes them decides in which order others' text is shown; without them each script has its direction still.
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


def one_line(text: str) -> str:
    """Somebody's text without line breaks, and without what would move a terminal: a character for each, so that
    places in it stay what they are."""
    return clean(_DIRECTIONS.sub("\N{REPLACEMENT CHARACTER}", _BREAKS.sub(" ", text)))


def said_at(rfc3339: str, now: datetime | None = None) -> str:
    """A time as a person says it, by the clock of this machine."""
    moment = datetime.fromisoformat(rfc3339)
    if not 1 < moment.year < 9_999:  # another zone may be beyond what a date can be
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
    """Who said it; of what nobody said, what it is."""
    return one_line(memory["name"] or memory["role"] or memory["kind"])


def print_block(target: Console, text: Text, first: str = "", rest: str | None = None) -> None:
    """Text wrapped to the width of the console, its first line behind `first`, all others behind `rest`."""
    rest = " " * len(first) if rest is None else rest
    for number, line in enumerate(text.wrap(target, max(target.width - len(rest), 20))):
        line.rstrip()
        target.print(Text(rest if number else first).append_text(line), soft_wrap=True)


def print_ranked(target: Console, memory: Mapping[str, Any], *, explain: bool = False) -> None:
    """One memory of an answer: when, who, what, and why."""
    shown = Text.assemble((said_at(memory["created_at"]), WHEN), " ", (f"{who(memory)}:", WHO), " ")
    print_block(target, shown.append_text(passage(memory)), f"{memory['rank']:>3}. ")
    reasons = [one_line(reason["text"]) for reason in memory["why"]]
    because = "; ".join(reasons if explain else reasons[:1])
    if memory.get("question") is not None:
        because += f"; asked beside: {one_line(memory['question'])}"
    print_block(target, Text(f"because: {because}", ASIDE), _INDENT)
    if explain and memory.get("explanation") is not None:
        print_block(target, Text(_score(memory), ASIDE), _INDENT)


def passage(memory: Mapping[str, Any]) -> Text:
    """The text with the words that are asked for standing out; of a long one the passage that fits the question best,
    and how much there is beside it."""
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
    """How the score came about."""
    parts = memory["explanation"]
    weighed = [
        f"{name} {parts['weights'].get(name, 1):g} × {value:.2f}" for name, value in parts["factors"].items() if value
    ]
    boosts = [f"{name} {value:+.2f}" for name, value in parts["boosts"].items() if value]
    return f"score {memory['score']:.3f} ({', '.join([*weighed, *boosts])}); relevance {memory['relevance']:.2f}"


def print_warnings(target: Console, warnings: Iterable[Mapping[str, str]]) -> None:
    """What the asker should know about an answer."""
    for warning in warnings:
        print_block(target, Text(one_line(f"{warning['code']}: {warning['detail']}"), "yellow"), "", "  ")
