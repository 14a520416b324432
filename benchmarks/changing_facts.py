"""Facts that change: cases with a question, the memory that answers it, and the others.

A case in one of thirteen languages is one user's chat: small talk, statements about other attributes, of which some
change, and two to four statements about one. A profile is 25 facts that one person told, with about 18 questions;
nothing is fitted to profiles.
"""

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import orjson

FOLDER = Path(__file__).parent / "changing_facts"
PROFILES = Path(__file__).with_name("profiles.json")
Kind = Literal[
    "update", "past", "other", "addition", "double", "reverted", "correction", "group", "participant", "profile"
]
USER, PARTICIPANT = "user", "Ben"
LEAST_TALK, MOST_TALK = 2, 40
OTHER_ATTRIBUTES = 8  # whose first statements are in the chat
OTHER_CHANGES = 4  # of which change: most statements of change are about something else than the question


class Line(NamedTuple):
    """A message of a case."""

    text: str
    author: str = USER


class Case(NamedTuple):
    """A chat and a question.

    Attributes:
        style: "plain", or "indirect" where the statements are idiomatic and leave much to be understood; for a question
            about a profile, whether the fact "changed" or is "constant".
        lines: the messages, in order.
        best: the message that answers the question, by its number.
        replaced: the messages that it must precede.
        others: the messages about other attributes.
    """

    language: str
    attribute: str
    style: str
    kind: Kind
    lines: Sequence[Line]
    question: str
    best: int
    replaced: Sequence[int]
    others: Set[int] = frozenset()


# The statements of each kind in order, and which of them answers the question.
_STATEMENTS: dict[Kind, tuple[Sequence[str], int]] = {
    "update": (("old", "new"), 1),
    "past": (("old", "new"), 0),
    "other": (("old", "other"), 0),
    "addition": (("old", "addition"), 0),
    "double": (("old", "new", "newest"), 2),
    "reverted": (("old", "new", "back"), 2),
    "correction": (("old", "new", "correction"), 2),
    "group": (("old", "group"), 1),
    "participant": (("old", "new"), 0),  # another participant states facts of his own
}


def cases() -> Iterator[Case]:
    """Yield every case; amount and place of small talk are drawn from the case's own name."""
    for file in sorted(FOLDER.glob("*.json")):
        data = orjson.loads(file.read_bytes())
        for entry in data["cases"]:
            for kind, (statements, best) in _STATEMENTS.items():
                if all(entry.get(name) for name in statements) and not (kind == "participant" and entry.get("group")):
                    yield _case(data, entry, kind, statements, best)


def profiles() -> Iterator[Case]:
    """Yield every question about a profile."""
    for profile in orjson.loads(PROFILES.read_bytes()):
        lines = [Line(fact) for fact in profile["facts"]]
        for one in profile["questions"]:
            style = "changed" if one["replaced"] else "constant"
            asked, best, replaced = one["question"], one["best"], one["replaced"]
            yield Case(profile["language"], "", style, "profile", lines, asked, best, replaced)


def _case(data: dict[str, Any], entry: dict[str, Any], kind: Kind, statements: Sequence[str], best: int) -> Case:
    draw = Random(f"{data['language']} {entry['attribute']} {entry['style']} {entry['old']} {kind}")
    talk = draw.sample(data["small_talk"], draw.randint(LEAST_TALK, MOST_TALK))
    others = _others(data, entry["attribute"], draw)
    filling = [Line(text) for text in (*talk, *others)]
    draw.shuffle(filling)
    positions = sorted(draw.sample(range(len(filling) + len(statements) - 1), len(statements)))
    lines, rest = list[Line](), iter(filling)
    if kind == "correction":  # it follows at once
        positions = [*positions[:-1], positions[-2] + 1]
    own = dict(zip(positions, statements, strict=True))
    for at in range(len(filling) + len(statements)):
        lines.append(_line(entry, own[at], kind) if at in own else next(rest))
    question = entry["past_question" if kind == "past" else "question"]
    replaced = [position for position in positions if position != positions[best]]
    about = {at for at, line in enumerate(lines) if at not in own and line.text in others}
    return Case(
        data["language"], entry["attribute"], entry["style"], kind, lines, question, positions[best], replaced, about
    )


def _others(data: dict[str, Any], attribute: str, draw: Random) -> list[str]:
    """Return statements about other attributes, of which some change."""
    by_attribute = {one["attribute"]: one for one in draw.sample(data["cases"], len(data["cases"]))}
    chosen = draw.sample([one for name, one in by_attribute.items() if name != attribute], OTHER_ATTRIBUTES)
    return [one["old"] for one in chosen] + [one["new"] for one in chosen[:OTHER_CHANGES]]


def _line(entry: dict[str, Any], name: str, kind: Kind) -> Line:
    is_other = name == "group" or (kind == "participant" and name == "new")
    return Line(entry[name], PARTICIPANT if is_other else USER)
