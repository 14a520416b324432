"""LoCoMo: long two-person conversations, with questions whose evidence is known message by message.

The data (CC BY-NC 4.0) stays outside the repository: `$RECALLFLOW_SHARED/data/locomo_dev.json`.
"""

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Category 5 is left out: its questions are adversarial and have no answer in the conversation.
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
DEPTHS = (5, 10, 20)
_TURN_ID = re.compile(r"D:?0*(?P<session>\d+):0*(?P<turn>\d+)")


class MissingDataError(Exception):
    """Something the benchmark reads is not in the shared folder: set RECALLFLOW_SHARED to where it is."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One memory: a message, or a fact, which nobody said (`role` None). `time` is in UTC; LoCoMo dates sessions, not
    messages. `speaker`: the name, where the chat has names."""

    id: str
    session: str
    time: datetime
    speaker: str | None
    text: str
    caption: str = ""
    role: str | None = "user"

    @property
    def content(self) -> str:
        """What was said, and what the picture shows that came with it."""
        return f"{self.text} [image: {self.caption}]".strip() if self.caption else self.text

    @property
    def memory(self) -> str:
        """The text that a baseline remembers: without its author it could not tell who said it."""
        author = self.speaker or self.role
        return f"{author}: {self.content}" if author else self.content


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the ids of the turns that answer it (empty only for an unanswerable one), and the expected
    answer, if the data has one."""

    text: str
    category: str
    evidence: frozenset[str]
    answer: str = ""


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


def load(path: Path) -> list[Conversation]:
    """Conversations of one LoCoMo file, in the file's order."""
    return [_conversation(sample) for sample in json.loads(path.read_bytes())]


def _conversation(sample: Mapping[str, Any]) -> Conversation:
    turns = _turns(sample["conversation"])
    known = {turn.id for turn in turns}
    asked = [
        Question(
            entry["question"],
            CATEGORIES[entry["category"]],
            turn_ids(entry.get("evidence", ())) & known,
            str(entry.get("answer", "")),
        )
        for entry in sample["qa"]
        if entry["category"] in CATEGORIES
    ]
    return Conversation(sample["sample_id"], turns, [question for question in asked if question.evidence])


def _turns(sessions: Mapping[str, Any]) -> list[Turn]:
    # The file dates some sessions that it has no turns for, and sorts session_10 before session_2.
    numbers = sorted(int(key.removeprefix("session_")) for key in sessions if re.fullmatch(r"session_\d+", key))
    turns = []
    for session in map("session_{}".format, numbers):
        began = datetime.strptime(sessions[f"{session}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for said in sessions[session]:
            caption = said.get("blip_caption", "")
            turns.append(Turn(said["dia_id"], session, began, said["speaker"], said["text"].strip(), caption))
    return turns


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
