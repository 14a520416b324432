"""Readers of public data sets, for whoever has the files: LoCoMo, LongMemEval, BEAM, REALTALK and MemDaily.

Questions that ask for no fact are left out. So are questions without evidence and messages without text; their number
is printed. Files of another form raise DataFormatError.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from benchmarks import kinds, locomo
from benchmarks.conversation_events import message_lines, query_lines
from benchmarks.locomo import Conversation, DataFormatError, Ids, Question, Text, Turn, checked, parse_file
from recallflow.errors import InvalidRecord
from recallflow.parsing import parse

_APART = timedelta(seconds=20)
_REALTALK = {1: "fact", 2: "time", 3: "inference"}
_DAY = re.compile(r"(\d{4})\D(\d{1,2})\D(\d{1,2})(?:\D+(\d{1,2}):(\d{2}))?")
_Name = Annotated[str, BeforeValidator(str)]


def _dated(form: str) -> BeforeValidator:
    """Return a validator of dates. A weekday in brackets is ignored."""
    return BeforeValidator(
        lambda text: text and datetime.strptime(re.sub(r" \(\w+\)", "", str(text)), form).replace(tzinfo=UTC)
    )


class _Message(BaseModel):
    role: str
    content: str
    has_answer: bool | None = False


class _Instance(BaseModel):
    question_id: str
    question_type: str
    question: str
    answer: Text
    question_date: Annotated[datetime | None, _dated("%Y/%m/%d %H:%M")] = None
    haystack_session_ids: list[str]
    haystack_dates: list[Annotated[datetime, _dated("%Y/%m/%d %H:%M")]]
    haystack_sessions: list[list[_Message]]


def longmemeval(path: Path) -> list[Conversation]:
    """Return the instances of a file, each a conversation with one question, but for questions without an answer
    (`_abs`). The evidence is the turns with `has_answer`. The corrected file has the same format."""
    instances = parse_file(list[_Instance], path)
    return checked(path, (_instance(one) for one in instances if not one.question_id.endswith("_abs")))


def _instance(sample: _Instance) -> Conversation:
    turns, evidence = list[Turn](), set[str]()
    lists = (sample.haystack_session_ids, sample.haystack_dates, sample.haystack_sessions)
    if len({len(one) for one in lists}) > 1:
        raise ValueError(f"{sample.question_id}: the haystack_… lists differ in length. Complete them")
    for number, (session, began, messages) in enumerate(zip(*lists, strict=True)):
        for at, message in enumerate(messages):
            name, time = f"{number}:{at}", began + at * _APART
            turns.append(Turn(name, session, time, None, message.content, role=message.role, shows_date=True))
            if message.has_answer:
                evidence.add(name)
    turns.sort(key=lambda turn: turn.time)
    asked = Question(sample.question, sample.question_type, frozenset(evidence), sample.answer, sample.question_date)
    return Conversation(sample.question_id, turns, [asked])


class _BeamMessage(BaseModel):
    id: _Name
    role: str
    content: str
    time_anchor: Annotated[datetime | None, _dated("%B-%d-%Y")] = None


class _Batch(BaseModel):
    turns: list[list[_BeamMessage]]


class _Probe(BaseModel):
    question: str
    source_chat_ids: Ids = frozenset()
    answer: Text = ""
    ideal_response: Text = ""
    ideal_answer: Text = ""


def beam(folder: Path) -> list[Conversation]:
    """Return the conversations of a folder of one size, such as `chats/100K`: one folder each, with `chat.json` and
    `probing_questions/probing_questions.json`. Each batch of turns is a session. Its first time anchor is its date."""
    return checked(folder, map(_beam, sorted(folder.glob("[!._]*/"))))


def _beam(folder: Path) -> Conversation:
    turns, time = list[Turn](), datetime(2024, 1, 1, tzinfo=UTC)
    for number, batch in enumerate(parse_file(list[_Batch], folder / "chat.json")):
        for message in (message for group in batch.turns for message in group):
            time = max(time, message.time_anchor or time) + _APART
            turns.append(Turn(message.id, str(number), time, None, message.content, role=message.role))
    asked = parse_file(dict[str, list[_Probe]], folder / "probing_questions" / "probing_questions.json")
    questions = [
        Question(one.question, category, one.source_chat_ids, one.answer or one.ideal_response or one.ideal_answer)
        for category, entries in asked.items()
        for one in entries
        if category not in kinds.NOT_ASKED
    ]
    return Conversation(folder.name, turns, questions)


class _Talk(BaseModel):
    dia_id: str
    speaker: str
    clean_text: str
    date_time: Annotated[datetime, _dated("%d.%m.%Y, %H:%M:%S")]
    blip_caption: str | None = None


class _TalkQuestion(BaseModel):
    question: str
    category: int = Field(ge=1, le=3)
    evidence: Ids
    answer: Text


class _Chat(BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, list[_Talk] | Any]
    qa: list[_TalkQuestion]


def realtalk(path: Path) -> list[Conversation]:
    """Return the chat of a file, or those of all files of a folder."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return checked(path, map(_realtalk, files), is_free_text=True)


def _realtalk(path: Path) -> Conversation:
    chat, turns = parse_file(_Chat, path), list[Turn]()
    sessions = {key: of for key, of in chat.__pydantic_extra__.items() if re.fullmatch(r"session_\d+", key)}
    for session in sorted(sessions, key=lambda key: int(key[8:])):
        if not isinstance(sessions[session], list):
            raise ValueError(f"{path.name}: {session} is no list of messages. Correct it")  # noqa: TRY004 names the field
        for number, one in enumerate(sessions[session]):
            if not isinstance(one, _Talk):
                missing = "dia_id, speaker, clean_text or a date_time as 29.12.2023, 03:10:00"
                raise ValueError(f"{path.name}: {session}.{number} lacks {missing}. Add it")  # noqa: TRY004 names the field
            text, caption = one.clean_text, one.blip_caption or ""
            turns.append(Turn(one.dia_id, session, one.date_time, one.speaker, text, caption, shows_date=True))
    asked = [
        Question(one.question, _REALTALK[one.category], locomo.turn_ids(one.evidence), one.answer) for one in chat.qa
    ]
    return Conversation(path.stem, turns, asked)


def _day(text: str) -> datetime:
    if not (found := _DAY.search(text)):
        raise ValueError(f'"{text}" is no time such as 2024-03-15 10:30')
    year, month, day, hour, minute = (int(part or 0) for part in found.groups())
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


class _Note(BaseModel):
    mid: _Name
    message: str
    time: Annotated[datetime, BeforeValidator(_day)]


class _NoteQuestion(BaseModel):
    question: str
    answer: Text
    target_step_id: Ids


class _Trajectory(BaseModel):
    tid: _Name
    message_list: list[_Note]
    QA: _NoteQuestion


def memdaily(path: Path) -> list[Conversation]:
    """Return the trajectories of a file by question type and scenario, each a conversation with one question."""
    return checked(path, (
        _trajectory(f"{category} {scenario} {one.tid}", category, one)
        for category, scenarios in parse_file(dict[str, dict[str, list[_Trajectory]]], path).items()
        for scenario, trajectories in scenarios.items()
        for one in trajectories
    ))  # fmt: skip


def _trajectory(name: str, category: str, one: _Trajectory) -> Conversation:
    turns, time = list[Turn](), datetime(2024, 1, 1, tzinfo=UTC)
    for note in one.message_list:
        time = max(time, note.time) + _APART
        turns.append(Turn(note.mid, "0", time, None, note.message))
    return Conversation(name, turns, [Question(one.QA.question, category, one.QA.target_step_id, one.QA.answer)])


def load(form: str, path: Path) -> list[Conversation]:
    """Return the conversations of a file of a format. Raise DataFormatError, also for what recallflow refuses."""
    conversations = READERS[form](path)
    for one in conversations:
        names = [f"message {turn.id}" for turn in one.turns]
        names += [f'question "{question.text}"' for question in one.questions]
        for name, line in zip(names, [*message_lines(one), *query_lines(one, "hybrid", 1)], strict=True):
            try:
                parse(line)
            except InvalidRecord as error:
                raise DataFormatError(f"{path}: {one.id}, {name}: {error}. Correct the file") from None
    return conversations


READERS: Mapping[str, Callable[[Path], list[Conversation]]] = {
    "locomo": locomo.load,
    "longmemeval": longmemeval,
    "beam": beam,
    "realtalk": realtalk,
    "memdaily": memdaily,
    "recallflow": kinds.read,
}
