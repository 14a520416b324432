"""Readers of public data sets, for whoever has the files: LoCoMo, LongMemEval, BEAM, REALTALK and MemDaily.

Questions without evidence, and those that ask for no fact, are left out.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import kinds, locomo
from benchmarks.locomo import Conversation, Question, Turn

_APART = timedelta(seconds=20)
_REALTALK = {1: "fact", 2: "time", 3: "inference"}
_DAY = re.compile(r"(\d{4})\D(\d{1,2})\D(\d{1,2})(?:\D+(\d{1,2}):(\d{2}))?")


def longmemeval(path: Path) -> list[Conversation]:
    """Return the instances of a file, each a conversation with one question. The evidence is the turns with
    `has_answer`. The corrected file of the data set has the same format."""
    return [*filter(_is_asked, map(_instance, json.loads(path.read_bytes())))]


def _instance(sample: Mapping[str, Any]) -> Conversation:
    turns, evidence = list[Turn](), set[str]()
    sessions = zip(sample["haystack_session_ids"], sample["haystack_dates"], sample["haystack_sessions"], strict=True)
    for number, (session, date, messages) in enumerate(sessions):
        began = datetime.strptime(re.sub(r" \(\w+\)", "", date), "%Y/%m/%d %H:%M").replace(tzinfo=UTC)
        for at, message in enumerate(messages):
            name = f"{number}:{at}"
            turns.append(Turn(name, session, began + at * _APART, None, message["content"], role=message["role"]))
            if message.get("has_answer"):
                evidence.add(name)
    turns.sort(key=lambda turn: turn.time)
    question = Question(sample["question"], sample["question_type"], frozenset(evidence), str(sample["answer"]))
    return Conversation(sample["question_id"], turns, [question])


def beam(folder: Path) -> list[Conversation]:
    """Return the conversations of a folder of one size, such as `chats/100K`: one folder each, with `chat.json` and
    `probing_questions/probing_questions.json`. Each batch of turns is a session. Its first time anchor is its date."""
    return [*filter(_is_asked, map(_beam, sorted(path.parent for path in folder.glob("*/chat.json"))))]


def _beam(folder: Path) -> Conversation:
    turns, time = list[Turn](), datetime(2024, 1, 1, tzinfo=UTC)
    for number, batch in enumerate(json.loads((folder / "chat.json").read_bytes())):
        for message in (message for group in batch["turns"] for message in group):
            if anchor := message.get("time_anchor"):
                time = max(time, datetime.strptime(anchor, "%B-%d-%Y").replace(tzinfo=UTC))
            time += _APART
            turns.append(Turn(str(message["id"]), str(number), time, None, message["content"], role=message["role"]))
    asked = json.loads((folder / "probing_questions" / "probing_questions.json").read_bytes())
    questions = [
        Question(one["question"], category, frozenset(map(str, _numbers(one.get("source_chat_ids")))), _answer(one))
        for category, entries in asked.items()
        for one in entries
        if category not in kinds.NOT_ASKED
    ]
    return Conversation(folder.name, turns, [one for one in questions if one.evidence])


def _answer(entry: Mapping[str, Any]) -> str:
    return str(entry.get("answer") or entry.get("ideal_response") or entry.get("ideal_answer") or "")


def _numbers(value: Any) -> Iterator[int]:
    """Yield the numbers of a nested value of lists and objects."""
    if isinstance(value, int):
        yield value
    elif value:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)


def realtalk(path: Path) -> list[Conversation]:
    """Return the chat of a file, or those of all files of a folder."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [*filter(_is_asked, map(_realtalk, files))]


def _realtalk(path: Path) -> Conversation:
    sample, turns = json.loads(path.read_bytes()), list[Turn]()
    for session in sorted((key for key in sample if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:])):
        for message in sample[session]:
            time = datetime.strptime(message["date_time"], "%d.%m.%Y, %H:%M:%S").replace(tzinfo=UTC)
            caption = message.get("blip_caption") or ""
            turns.append(Turn(message["dia_id"], session, time, message["speaker"], message["clean_text"], caption))
    known = {turn.id for turn in turns}
    asked = [
        Question(one["question"], _REALTALK[one["category"]], evidence, str(one["answer"]))
        for one in sample["qa"]
        if (evidence := locomo.turn_ids(one["evidence"]) & known)
    ]
    return Conversation(path.stem, turns, asked)


def memdaily(path: Path) -> list[Conversation]:
    """Return the trajectories of a file by question type and scenario, each a conversation with one question."""
    sample = json.loads(path.read_bytes())
    return [
        _trajectory(f"{category} {scenario} {one['tid']}", category, one)
        for category, scenarios in sample.items()
        for scenario, trajectories in scenarios.items()
        for one in trajectories
    ]


def _trajectory(name: str, category: str, one: Mapping[str, Any]) -> Conversation:
    turns, time = list[Turn](), datetime(2024, 1, 1, tzinfo=UTC)
    for message in one["message_list"]:
        if found := _DAY.search(message["time"]):
            time = max(time, datetime(*(int(part or 0) for part in found.groups()), tzinfo=UTC))  # type: ignore[misc,arg-type]
        time += _APART
        turns.append(Turn(str(message["mid"]), "0", time, None, message["message"]))
    asked = one["QA"]
    evidence = frozenset(map(str, _numbers(asked["target_step_id"])))
    return Conversation(name, turns, [Question(asked["question"], category, evidence, str(asked["answer"]))])


def _is_asked(conversation: Conversation) -> bool:
    return any(question.evidence for question in conversation.questions)


READERS: Mapping[str, Callable[[Path], list[Conversation]]] = {
    "locomo": locomo.load,
    "longmemeval": longmemeval,
    "beam": beam,
    "realtalk": realtalk,
    "memdaily": memdaily,
    "recallflow": kinds.read,
}
