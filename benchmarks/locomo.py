"""LoCoMo: long two-person conversations, with questions whose evidence is known message by message.

The data (CC BY-NC 4.0) stays outside the repository: `$RECALLFLOW_SHARED/data/locomo_dev.json`.
"""

import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

# Category 5 is left out: its questions are adversarial and have no answer in the conversation.
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
DEPTHS = (5, 10, 20)
_TURN_ID = re.compile(r"D:?0*(?P<session>\d+):0*(?P<turn>\d+)")


class BenchmarkError(Exception):
    """Reason why a benchmark ends, for the user."""


class DataFormatError(BenchmarkError):
    """A file that is not of the format. Names the file, the field, and the remedy."""


class MissingDataError(BenchmarkError):
    """Something the benchmark reads is not in the shared folder: set RECALLFLOW_SHARED to where it is."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One memory: a message, or a fact without an author (`role` None). `time` is in UTC; LoCoMo dates sessions, not
    messages. `speaker`: the name, if the chat has names. `shows_date`: other systems read the date before the text."""

    id: str
    session: str
    time: datetime
    speaker: str | None
    text: str
    caption: str = ""
    role: str | None = "user"
    shows_date: bool = False

    @property
    def content(self) -> str:
        """What was said, and what the picture shows that came with it."""
        return f"{self.text} [image: {self.caption}]".strip() if self.caption else self.text

    @property
    def memory(self) -> str:
        """Text that other systems store. recallflow receives author and date as fields."""
        author, date = self.speaker or self.role, f"[{self.time:%-d %B %Y}] " if self.shows_date else ""
        return f"{date}{author}: {self.content}" if author else f"{date}{self.content}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the ids of the turns that answer it (empty only for an unanswerable one), and the expected
    answer and the time of the question, if the data has them."""

    text: str
    category: str
    evidence: frozenset[str]
    answer: str = ""
    asked: datetime | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in the order they were said, the questions about them, and questions about the same people that no turn
    answers (with no evidence; most data sets have none)."""

    id: str
    turns: list[Turn]
    questions: list[Question]
    unanswerable: list[Question] = field(default_factory=list)


def shared(*parts: str) -> Path:
    """A file or folder of the shared folder, or an error that says how to name another place."""
    root = Path(os.environ.get("RECALLFLOW_SHARED") or Path(__file__).parents[2] / "shared")
    path = root.joinpath(*parts)
    if not path.exists():
        raise MissingDataError(f"{path} is missing; set RECALLFLOW_SHARED to the folder that holds {Path(*parts)}")
    return path


def ids(value: Any) -> Iterator[str]:
    """Yield the ids of a nested value of strings, numbers, lists and objects."""
    if isinstance(value, int | str):
        yield str(value)
    elif value:
        for one in value.values() if isinstance(value, dict) else value:
            yield from ids(one)


def _text(value: Any) -> str:
    """Return an answer as text: some data sets have numbers, lists and null."""
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


Ids = Annotated[frozenset[str], BeforeValidator(lambda value: frozenset(ids(value)))]
Text = Annotated[str, BeforeValidator(_text)]


def parse_file(form: Any, path: Path) -> Any:
    """Return the content of a JSON file by its pydantic form. Raise DataFormatError."""
    try:
        return TypeAdapter(form).validate_json(path.read_text("utf-8-sig"))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole file"
        message = f"{path}: {field}: {first['msg']}. Correct the field, or name the file's own format"
        raise DataFormatError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataFormatError(f"{path}: {error}. Name a JSON file in UTF-8") from None


def checked(path: Path, conversations: Iterable[Conversation], *, is_free_text: bool = False) -> list[Conversation]:
    """Return the conversations with the messages that have a text, and the questions that have evidence among them.

    Print how many others there are. `is_free_text`: annotators wrote the evidence as text, in which ids of no message
    occur: they are printed too.

    Raises:
        DataFormatError: An id is not unique, evidence has no message or one without text, or no question remains.
    """
    found, names, left_out = list[Conversation](), set[str](), Counter[str]()
    try:
        for one in conversations:
            turns = [turn for turn in one.turns if turn.content.strip()]
            known = {turn.id for turn in turns}
            if one.id in names:
                raise ValueError(f"two conversations have the id {one.id}. Rename one")  # noqa: TRY301
            if repeated := [name for name, times in Counter(turn.id for turn in one.turns).items() if times > 1]:
                raise ValueError(f"{one.id}: two messages have the id {repeated[0]}. Rename one")  # noqa: TRY301
            names.add(one.id)
            for question in one.questions:
                if unknown := ", ".join(sorted(question.evidence - known)):
                    problem = f'{one.id}, question "{question.text}": no message with a text has the evidence {unknown}'
                    if not is_free_text:
                        raise ValueError(f"{problem}. Correct the evidence")  # noqa: TRY301
                    print(f"{path}: {problem}. It is left out", file=sys.stderr)
            asked = [replace(question, evidence=question.evidence & known) for question in one.questions]
            kept = [question for question in asked if question.evidence]
            left_out["questions without evidence"] += len(asked) - len(kept)
            left_out["messages without text"] += len(one.turns) - len(turns)
            found += [replace(one, turns=turns, questions=kept)] if kept else []
    except ValueError as error:
        raise DataFormatError(f"{path}: {error}") from None
    for what, number in (+left_out).items():
        print(f"{path}: {what}, left out: {number}", file=sys.stderr)
    if not found:
        raise DataFormatError(
            f"{path}: no question has evidence among the messages. Name a file or folder of the data set"
        )
    return found


class _Said(BaseModel):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str | None = None


class _Asked(BaseModel):
    question: str
    category: int = Field(ge=1, le=5)
    evidence: Ids = frozenset()
    answer: Text = ""


class _Sample(BaseModel):
    sample_id: str
    conversation: dict[str, list[_Said] | str]
    qa: list[_Asked]


def load(path: Path) -> list[Conversation]:
    """Return the conversations of one LoCoMo file, in the file's order."""
    return checked(path, map(_conversation, parse_file(list[_Sample], path)), is_free_text=True)


def _conversation(sample: _Sample) -> Conversation:
    asked = [
        Question(entry.question, CATEGORIES[entry.category], turn_ids(entry.evidence), entry.answer)
        for entry in sample.qa
        if entry.category in CATEGORIES
    ]
    return Conversation(sample.sample_id, [*_turns(sample)], asked)


def _turns(sample: _Sample) -> Iterator[Turn]:
    # The file dates some sessions that it has no turns for, and sorts session_10 before session_2.
    sessions = sample.conversation
    numbers = sorted(int(key.removeprefix("session_")) for key in sessions if re.fullmatch(r"session_\d+", key))
    for session in map("session_{}".format, numbers):
        try:
            dated = str(sessions[f"{session}_date_time"])
            began = datetime.strptime(dated, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        except (KeyError, ValueError):
            form = 'a date such as "1:56 pm on 8 May, 2023"'
            raise ValueError(f"{sample.sample_id}: {session}_date_time is not {form}. Add it") from None
        for said in sessions[session]:
            if isinstance(said, str):
                raise ValueError(f"{sample.sample_id}: {session} is a text. Replace it by a list of messages")  # noqa: TRY004 names the field
            text, caption = said.text.strip(), said.blip_caption or ""
            yield Turn(said.dia_id, session, began, said.speaker, text, caption, shows_date=True)


def turn_ids(evidence: Iterable[str]) -> frozenset[str]:
    """Every turn id that the annotators' free text holds, in the spelling of the turns.

    One entry may list several ids with any separator, put a colon after the D or zeros before a number, or hold none.
    """
    found = (match for entry in evidence for match in _TURN_ID.finditer(entry))
    return frozenset(f"D{match['session']}:{match['turn']}" for match in found)


@dataclass(frozen=True, slots=True)
class Score:
    """How well one question was answered, by measure."""

    conversation: str
    category: str
    measures: dict[str, float]


def score(conversation: Conversation, question: Question, ranked: Sequence[str]) -> Score:
    """Judges one ranking."""
    return Score(conversation.id, question.category, measure(ranked, question.evidence))


def measure(ranked: Sequence[str], evidence: frozenset[str]) -> dict[str, float]:
    """any@k: some evidence is among the first k; all@k: all of it; nDCG@10: binary gain; MRR: 1 / rank of the first."""
    ranks = [rank for rank, turn in enumerate(ranked, 1) if turn in evidence]
    measures = {}
    for depth in DEPTHS:
        found = sum(rank <= depth for rank in ranks)
        measures[f"any@{depth}"] = float(found > 0)
        measures[f"all@{depth}"] = float(found == len(evidence))
    ideal = _gain(range(1, min(len(evidence), 10) + 1))
    measures["nDCG@10"] = _gain(rank for rank in ranks if rank <= 10) / ideal
    measures["MRR"] = 1 / ranks[0] if ranks else 0.0
    return measures


def _gain(ranks: Iterable[int]) -> float:
    return sum(1 / math.log2(rank + 1) for rank in ranks)


def summarise(scores: Sequence[Score]) -> dict[str, Any]:
    """Means over all questions, by category and by conversation; `questions` is how many each mean is over."""
    by_category: dict[str, list[Score]] = defaultdict(list)
    by_conversation: dict[str, list[Score]] = defaultdict(list)
    for one in scores:
        by_category[one.category].append(one)
        by_conversation[one.conversation].append(one)
    return {
        "overall": _mean(scores),
        "by_category": {name: _mean(by_category[name]) for name in sorted(by_category)},
        "by_conversation": {name: _mean(group) for name, group in by_conversation.items()},
    }


def _mean(scores: Sequence[Score]) -> dict[str, float]:
    means = {name: sum(one.measures[name] for one in scores) / len(scores) for name in scores[0].measures}
    return {**means, "questions": len(scores)}
