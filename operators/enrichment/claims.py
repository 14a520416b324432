"""Claims in a model's answer: the event drafts made from them, and the reasons for rejected claims."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from recallflow.enrichment import ShownMemory
from recallflow.fields import parse_time
from recallflow.llm import Prompt

CLAIMS_MAX = 200  # per answer; prompts ask for fewer

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
    """An event without its owner and id. Its provenance names the memory `about`, and `others` that the model read with
    it. `about` is None for events whose own fields name their source."""

    fields: dict[str, Any]
    about: ShownMemory | None
    others: Sequence[ShownMemory] = ()


class Refusal(Exception):
    """A rejected claim, with the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Found:
    """The event drafts and rejected claims of one answer for one request."""

    drafts: list[Draft] = field(default_factory=list)
    refused: Counter[Reason] = field(default_factory=Counter)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Guard the reading of one claim: count a rejection, and continue with the next claim."""
        try:
            yield
        except Refusal as refusal:
            self.refused[refusal.reason] += 1

    def first(self, claims: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the claims to read, up to a limit that bounds the time of an answer. Count the rest as rejected."""
        if len(claims) > CLAIMS_MAX:
            self.refused["too_many"] += len(claims) - CLAIMS_MAX
        return claims[:CLAIMS_MAX]


class Step(NamedTuple):
    """One call of a language model for the requests with these numbers. `read` converts an answer of the prompt's
    schema to one result per request."""

    requests: Sequence[int]
    prompt: Prompt
    read: Callable[[Mapping[str, Any]], list[Found]]


def check_share(number: float) -> float:
    """Return a confidence or weight. Raise an error outside of 0 to 1."""
    if not 0 <= number <= 1:  # NaN is outside too
        raise Refusal("out_of_bounds")
    return float(number)


def check_confidence(claim: Mapping[str, Any], least: float) -> float:
    """Return the confidence of a claim. Raise an error below the least one."""
    confidence = check_share(claim["confidence"])
    if confidence < least:
        raise Refusal("low_confidence")
    return confidence


def check_text(text: str, most: int) -> str:
    """Return a text on one line. Raise an error if it is empty or too long."""
    found = " ".join(text.split())
    if not found:
        raise Refusal("empty")
    if len(found) > most:
        raise Refusal("too_long")
    if not found.isprintable():
        raise Refusal("unfit")
    return found


def check_time(text: str | None) -> int | None:
    """Return a model's date or time in epoch milliseconds. Raise an error for an invalid one."""
    if text is None:
        return None
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise Refusal("wrong_date") from None
