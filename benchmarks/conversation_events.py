"""Conversations as the events that the flow takes in, and its responses as rankings."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from benchmarks.locomo import DEPTHS, Conversation, Turn, shared
from recallflow.flows.embedded import Processed
from recallflow.flows.settings import Settings

EMBEDDERS = ("meaning", "hash", "static", "minilm")
TENANT = "locomo"
_FOLDERS = {"static": "static-minilm-256", "minilm": "all-MiniLM-L6-v2"}


class BrokenRunError(Exception):
    """The engine refused a line or did not answer as asked: figures from such a run would mean nothing."""


def model_path(embedder: str, given: Path | None) -> Path | None:
    """The folder of the embedder's model, for one that has a model."""
    return given or shared("models", _FOLDERS[embedder]) if embedder in _FOLDERS else None


def embedder_arguments(about: str | None, *more: str) -> argparse.ArgumentParser:
    """The arguments of a benchmark of one embedder, and where its figures go."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedder", choices=(*EMBEDDERS, *more), default="hash")
    parser.add_argument("--model-path", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def embedder_settings(chosen: argparse.Namespace) -> Settings:
    """The settings that those arguments ask for."""
    return Settings(embedder=chosen.embedder, model_path=model_path(chosen.embedder, chosen.model_path))


def message_lines(conversation: Conversation) -> list[bytes]:
    """Return the conversation as message events, and its facts as memories."""
    lines = []
    for turn in conversation.turns:
        event = {
            "type": "message" if turn.role else "memory",
            "id": turn.id,
            "tenant_id": TENANT,
            "user_id": conversation.id,
            "session_id": turn.session,
            "timestamp": turn.time,
            "content": turn.content,
        }
        lines.append(orjson.dumps(event | _author(turn)))
    return lines


def _author(turn: Turn) -> dict[str, str]:
    """The fields that say whose words a memory is."""
    if turn.role is None:
        return {"kind": "fact"}
    return {"role": turn.role} | ({"name": turn.speaker} if turn.speaker else {})


def query_lines(conversation: Conversation, mode: str, k: int = max(DEPTHS)) -> list[bytes]:
    """One recall per question, asked the day after the last message."""
    asked_at = max(turn.time for turn in conversation.turns) + timedelta(days=1)
    return [
        orjson.dumps(
            {
                "type": "recall",
                "id": f"question-{number}",
                "tenant_id": TENANT,
                "user_id": conversation.id,
                "timestamp": asked_at,
                "query": question.text,
                "k": k,
                "mode": mode,
            }
        )
        for number, question in enumerate(conversation.questions)
    ]


def answers(processed: Processed, conversation: Conversation) -> list[list[str]]:
    """Turn ids per question, best first. Raises where the flow did anything but answer every question in full."""
    if processed.rejected:
        raise BrokenRunError(f"{conversation.id}: {len(processed.rejected)} lines rejected: {processed.rejected[:3]}")
    if len(processed.responses) != len(conversation.questions):
        raise BrokenRunError(
            f"{conversation.id}: {len(processed.responses)} responses to {len(conversation.questions)} questions"
        )
    known = {turn.id for turn in conversation.turns}
    return [_answer(response, number, known) for number, response in enumerate(processed.responses)]


def _answer(response: dict[str, Any], number: int, known: set[str]) -> list[str]:
    # A degraded answer came from another embedder or fewer steps than the row of the table names.
    if response["status"] != "ok":
        raise BrokenRunError(f"not a full answer: {_brief(response)}")
    if response["query_id"] != f"question-{number}":
        raise BrokenRunError(f"expected the answer to question-{number}: {_brief(response)}")
    ranked = [memory["id"] for memory in response["memories"]]
    if not known.issuperset(ranked) or len(set(ranked)) != len(ranked):
        raise BrokenRunError(f"memories that were never told, or one twice: {_brief(response)} {ranked}")
    return ranked


def _brief(response: dict[str, Any]) -> dict[str, Any]:
    return {key: response.get(key) for key in ("query_id", "status", "error", "fallback", "warnings")}
