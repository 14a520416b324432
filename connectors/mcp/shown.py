"""Results of tools as text, and cut to a size that leaves a model room to think."""

import json
import unicodedata
from typing import NamedTuple

from pydantic import BaseModel

from recallflow.connectors.mcp.tools import Added, Episode, Episodes, Forgotten, Found, FoundMemory
from recallflow.responses import EpisodeInfo, RecalledMemory, Response

TEXTS_CHARACTERS = 24_000  # of all memories in an answer
TEXT_CHARACTERS = 4_000  # of one
SUMMARY_CHARACTERS = 600
_JOINERS = "\u200c\u200d"  # which Persian, Hindi and emoji are written with
_SEEN = {"no_memories", "k_exceeds_memories"}  # warnings of what the list itself shows


class Result(NamedTuple):
    """What a tool gives: for a model to read, and for a program."""

    text: str
    structured: BaseModel


def found(response: Response) -> Result:
    """The memories of an answer."""
    recalled = response.memories or []
    most = min(TEXT_CHARACTERS, TEXTS_CHARACTERS // max(len(recalled), 1))
    memories = [_memory(memory, most) for memory in recalled]
    warnings = [f"{warn.code}: {warn.detail}" for warn in response.warnings if warn.code not in _SEEN]
    structured = Found(memories=memories, answerable=response.answerable, warnings=warnings)
    if not memories:
        return Result("\n".join(["Nothing is remembered that fits.", *warnings]), structured)
    lines = [f"{_count(len(memories), 'memory', 'memories')}, the most fitting first."]
    if response.answerable is not None:
        lines.append(f"Probability that they hold an answer: {response.answerable:.2f}.")
    return Result("\n".join(lines + warnings + [_line(*numbered) for numbered in enumerate(memories, 1)]), structured)


def added(memory_id: str, *, applied: bool) -> Result:
    """What became of a memory that was added."""
    later = "" if applied else " It is stored, and found a moment later: do not add it again."
    return Result(f"Remembered as {memory_id}.{later}", Added(memory_id=memory_id, applied=applied))


def forgotten(memory_id: str, *, applied: bool) -> Result:
    """What became of a memory that was to be forgotten."""
    named = _quoted(memory_id)
    text = f"Forgotten: {named}." if applied else f"{named} will be forgotten a moment from now."
    return Result(text, Forgotten(memory_id=memory_id, applied=applied))


def episodes(infos: list[EpisodeInfo]) -> Result:
    """Conversations."""
    listed = [_episode(info) for info in infos]
    lines = [
        f"{number}. session {_quoted(one.session_id)}, {one.started_at} to {one.ended_at}"
        f"{' (goes on)' if one.open else ''}, {_count(one.messages, 'message', 'messages')}: {_quoted(one.summary)}"
        for number, one in enumerate(listed, 1)
    ]
    text = "\n".join(lines) if lines else "There are no conversations yet."
    return Result(text, Episodes(episodes=listed))


def _memory(memory: RecalledMemory, most: int) -> FoundMemory:
    content = memory.content
    if len(content) > most and memory.excerpt is not None:
        content = content[memory.excerpt["start"] : memory.excerpt["end"]]
    content = content[:most]
    return FoundMemory(
        memory_id=memory.id,
        content=content,
        truncated=memory.truncated or len(content) < len(memory.content),
        kind=memory.kind,
        category=memory.category,
        said_by=memory.name or memory.role,
        session_id=memory.session_id,
        created_at=memory.created_at,
        relevance=round(memory.relevance, 3),
    )


def _episode(info: EpisodeInfo) -> Episode:
    summary = info.summary[:SUMMARY_CHARACTERS]
    return Episode(
        episode_id=info.id,
        session_id=info.session_id,
        started_at=info.started_at,
        ended_at=info.ended_at,
        open=info.open,
        messages=info.messages,
        summary=summary,
        truncated=info.truncated or len(summary) < len(info.summary),
    )


def _line(number: int, memory: FoundMemory) -> str:
    who = f", said by {_quoted(memory.said_by)}" if memory.said_by else ""
    cut = " (a passage)" if memory.truncated else ""
    about = f"{_quoted(memory.kind)}, {memory.created_at}{who}, relevance {memory.relevance:.2f}"
    return f"{number}. {_quoted(memory.content)}{cut} [{about}; memory_id {_quoted(memory.memory_id)}]"


def _quoted(text: str | None) -> str:
    """A stored text on one line, so that none can look like a line of ours: whatever breaks a line, turns the direction
    of writing or is not seen at all stands as its number."""
    if text is None:
        return "none"
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(map(_seen, quoted))


def _seen(character: str) -> str:
    if unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} or character in _JOINERS:
        return character
    return json.dumps(character)[1:-1]


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
