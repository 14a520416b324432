"""What a model claims, and what is made of it: the events that say it, and why the rest is refused."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from recallflow.enrichment import ShownMemory
from recallflow.fields import parse_time
from recallflow.llm import Prompt

CLAIMS_MAX = 200  # of one answer; prompts ask for fewer

Reason = Literal[
    "unknown_id",
    "own_memory",
    "wrong_end",
    "no_evidence",
    "not_in_texts",
    "out_of_bounds",
    "low_confidence",
    "wrong_date",
    "empty",
    "too_long",
    "too_many",
    "duplicate",
    "unfit",
]
REFUSALS: Mapping[Reason, str] = MappingProxyType(
    {
        "unknown_id": "it names a memory, an entity or a category that the model was not shown",
        "own_memory": "it relates a memory to itself, or to what it was made from or together with",
        "wrong_end": "it is of a type that does not lead from, or to, such a thing, or leaves the memory out",
        "no_evidence": "the quote that should bear it out does not stand in the memory",
        "not_in_texts": "it has a name or a number that no text shown has",
        "out_of_bounds": "a confidence or a weight is outside 0 to 1",
        "low_confidence": "the model is less sure of it than the settings ask for",
        "wrong_date": "a date in it is none, or ends before it begins",
        "empty": "it has no text",
        "too_long": "its text is longer than such a text may be",
        "too_many": "the answer has more of its kind than are kept of one memory",
        "duplicate": "the same answer says it twice, or says two things of one",
        "unfit": "no valid event can be made of it",
    }
)


class Draft(NamedTuple):
    """An event to be sent, without its owner and its id. It is told that it was made from the memory `about`, with
    `others` read beside it; None where its own fields say so."""

    fields: dict[str, Any]
    about: ShownMemory | None
    others: Sequence[ShownMemory] = ()


class Refusal(Exception):
    """A claim is not kept, for this reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Found:
    """What one answer says for one request, in the order in which it says it."""

    drafts: list[Draft] = field(default_factory=list)
    refused: Counter[Reason] = field(default_factory=Counter)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Around what is made of one claim: a Refusal in it is counted, and the next claim is read."""
        try:
            yield
        except Refusal as refusal:
            self.refused[refusal.reason] += 1

    def first(self, claims: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The claims that are read: no answer takes long, however much a model wrote. The others are counted."""
        if len(claims) > CLAIMS_MAX:
            self.refused["too_many"] += len(claims) - CLAIMS_MAX
        return claims[:CLAIMS_MAX]


class Step(NamedTuple):
    """One call of a language model, for the requests of these numbers. `read` makes of an answer, which has the
    prompt's schema, what it says for each of them, in their order."""

    requests: Sequence[int]
    prompt: Prompt
    read: Callable[[Mapping[str, Any]], list[Found]]


def check_share(number: float) -> float:
    """A confidence or a weight. Raises Refusal."""
    if not 0 <= number <= 1:  # NaN is outside too
        raise Refusal("out_of_bounds")
    return float(number)


def check_confidence(claim: Mapping[str, Any], least: float) -> float:
    """How sure the model is. Raises Refusal where it is not sure enough."""
    confidence = check_share(claim["confidence"])
    if confidence < least:
        raise Refusal("low_confidence")
    return confidence


def check_text(text: str, most: int) -> str:
    """A text on one line, of at most so many characters. Raises Refusal."""
    found = " ".join(text.split())
    if not found:
        raise Refusal("empty")
    if len(found) > most:
        raise Refusal("too_long")
    if not found.isprintable():
        raise Refusal("unfit")
    return found


def check_time(text: str | None) -> int | None:
    """A date or time as a model writes it, in epoch milliseconds. Raises Refusal."""
    if text is None:
        return None
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise Refusal("wrong_date") from None
