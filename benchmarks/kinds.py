"""The kinds of chat that recall is measured on, each as conversations with questions whose evidence is known.

| kind | what |
|---|---|
| locomo | two people, many sessions |
| assistant, assistant_long | a user and an assistant, about 240 and 1,100 turns |
| assistant_user | the user's turns alone, and the questions whose whole evidence they hold |
| group | several people, no dates |
| chinese | a user's notes to an assistant, in Chinese |
| everyday | one person's facts, one session, asked in other words; the English ones (`everyday_facts/`) |
| everyday_languages | the same in twelve other languages |
| mixed | locomo and group with facts beside the messages (`facts.py`) |

The data stay outside the repository, in `$RECALLFLOW_SHARED/data`, but for those of everyday facts.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from benchmarks import locomo
from benchmarks.facts import with_facts
from benchmarks.locomo import Conversation, Question, Turn, shared

KINDS = (
    "locomo",
    "assistant",
    "assistant_user",
    "assistant_long",
    "group",
    "chinese",
    "mixed",
    "everyday",
    "everyday_languages",
)
EVERYDAY = Path(__file__).parent / "everyday_facts"
SMALLEST, LARGEST = 1, 10  # memories of a small store

# These ask for no evidence: an order of everything, a manner of answering, a summary, or what was never said.
NOT_ASKED = ("event_ordering", "instruction_following", "preference_following", "summarization", "abstention")
_ROLES = ("user", "assistant", "system", "tool")
_BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
_APART = timedelta(seconds=20)


def load(kind: str) -> list[Conversation]:
    """All development conversations of a kind. Those of `mixed` keep the ids of what they were made from, and those of
    `assistant_user` too: whoever leaves a conversation out of a fit leaves all of that id out."""
    match kind:
        case "locomo":
            return locomo.load(shared("data", "locomo_dev.json"))
        case "assistant_user":
            return read(shared("data", "assistant_dev.json"), user_only=True)
        case "everyday" | "everyday_languages":
            files = sorted(EVERYDAY.glob("*.json"))
            return [one for file in files if (file.stem == "en") == (kind == "everyday") for one in everyday(file)]
        case "mixed":
            return [with_facts(one) for of in ("locomo", "group") for one in load(of)]
        case _:
            return read(shared("data", f"{kind}_dev.json"))


class _Said(BaseModel):
    id: str
    session_id: Annotated[str, BeforeValidator(str)]
    author: str
    timestamp: datetime | None
    text: str


class _Asked(BaseModel):
    question: str
    category: str
    evidence: locomo.Ids


class _Sample(BaseModel):
    sample_id: str
    turns: list[_Said]
    questions: list[_Asked]


def read(path: Path, *, user_only: bool = False) -> list[Conversation]:
    """Return the conversations of a file of any kind but LoCoMo's. `user_only`: what the user said, and the questions
    about that alone."""
    samples = locomo.parse_file(list[_Sample], path)
    return locomo.checked(path, (_conversation(sample, user_only=user_only) for sample in samples))


def everyday(path: Path) -> Iterator[Conversation]:
    """Yield each person of a file as a conversation of facts that a user told."""
    told = json.loads(path.read_bytes())
    for number, person in enumerate(told["people"]):
        turns = [
            Turn(str(at), "told", _BEGIN + at * _APART, None, one["fact"]) for at, one in enumerate(person["facts"])
        ]
        asked = [
            Question(text, told["language"], frozenset((str(at),)))
            for at, one in enumerate(person["facts"])
            for text in one["questions"]
        ]
        unanswerable = [Question(text, told["language"], frozenset()) for text in person["unanswerable"]]
        yield Conversation(f"{told['language']}-{number}", turns, asked, unanswerable)


def _conversation(sample: _Sample, *, user_only: bool) -> Conversation:
    said = [turn for turn in sample.turns if not user_only or turn.author == "user"]
    turns = [_turn(turn, time) for turn, time in zip(said, _times(said), strict=True)]
    known = {turn.id for turn in turns}
    asked = [
        Question(entry.question, entry.category, entry.evidence)
        for entry in sample.questions
        if entry.category not in NOT_ASKED and (not user_only or entry.evidence <= known)
    ]
    return Conversation(sample.sample_id, turns, asked)


def _turn(turn: _Said, time: datetime) -> Turn:
    named = turn.author not in _ROLES
    speaker, role = (turn.author, "user") if named else (None, turn.author)
    return Turn(turn.id, turn.session_id, time, speaker, turn.text, role=role)


def _times(turns: Iterable[_Said]) -> Iterator[datetime]:
    """A turn without a time, or with one that is not later than all before, comes 20 seconds after the last."""
    latest, time = None, _BEGIN
    for turn in turns:
        given = turn.timestamp and turn.timestamp.replace(tzinfo=turn.timestamp.tzinfo or UTC).astimezone(UTC)
        later = given is not None and (latest is None or given > latest)
        time = given if given is not None and later else time + _APART
        if given is not None and later:
            latest = given
        yield time


# ---------------------------------------------------------------------- other stores of the same conversations


def by_session(conversation: Conversation) -> list[Conversation]:
    """Each session as an owner of its own, with the questions whose whole evidence it holds; without any, it is left
    out."""
    sessions = dict.fromkeys(turn.session for turn in conversation.turns)
    return [store for session in sessions if (store := _store(conversation, session)).questions]


def _store(conversation: Conversation, session: str) -> Conversation:
    turns = [turn for turn in conversation.turns if turn.session == session]
    known = {turn.id for turn in turns}
    asked = [question for question in conversation.questions if question.evidence <= known]
    return Conversation(f"{conversation.id} {session}", turns, asked)


def small(conversation: Conversation, memories: int) -> list[Conversation]:
    """A store of so many memories for each question (see `_small_store`)."""
    return [_small_store(conversation, number, memories) for number in range(len(conversation.questions))]


def small_stores(conversations: Sequence[Conversation]) -> list[Conversation]:
    """A store for each question, of 1 to 10 memories in turn."""
    asked = [(one, number) for one in conversations for number in range(len(one.questions))]
    sizes = cycle(range(SMALLEST, LARGEST + 1))
    return [_small_store(one, number, memories) for (one, number), memories in zip(asked, sizes, strict=False)]


def _small_store(conversation: Conversation, number: int, memories: int) -> Conversation:
    """Neighbours in the conversation with the question's first evidence among them, whose place in the store goes round
    with the questions' numbers."""
    question = conversation.questions[number]
    first = next(at for at, turn in enumerate(conversation.turns) if turn.id in question.evidence)
    start = max(min(first - number % memories, len(conversation.turns) - memories), 0)
    turns = conversation.turns[start : start + memories]
    evidence = question.evidence & {turn.id for turn in turns}
    return Conversation(f"{conversation.id} {number}", turns, [replace(question, evidence=evidence)])
