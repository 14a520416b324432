"""Conversations as the events that the flow takes in, and its responses as rankings."""

import argparse
from datetime import timedelta
from pathlib import Path

import orjson

from benchmarks.locomo import DEPTHS, Conversation, shared
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
        author = {"role": turn.role, "name": turn.speaker} if turn.speaker else {"role": turn.role}
        lines.append(orjson.dumps(event | (author if turn.role else {"kind": "fact"})))
    return lines


def query_lines(conversation: Conversation, mode: str, k: int = max(DEPTHS)) -> list[bytes]:
    """Return one recall per question, asked the day after the last message."""
    asked_at = max(turn.time for turn in conversation.turns) + timedelta(days=1)
    scope = {"type": "recall", "tenant_id": TENANT, "user_id": conversation.id, "timestamp": asked_at}
    return [
        orjson.dumps(scope | {"id": f"question-{number}", "query": question.text, "k": k, "mode": mode})
        for number, question in enumerate(conversation.questions)
    ]


def answers(processed: Processed, conversation: Conversation) -> list[list[str]]:
    """Return turn ids per question, best first. Raise BrokenRunError if a line was rejected, or a question did not get
    a full answer."""
    rejected, count = processed.rejected, len(conversation.questions)
    if rejected or len(processed.responses) != count:
        responses = len(processed.responses)
        raise BrokenRunError(f"{conversation.id}: {responses} responses to {count} questions, rejected {rejected[:3]}")
    rankings, known = list[list[str]](), {turn.id for turn in conversation.turns}
    for number, response in enumerate(processed.responses):
        ranked = [memory["id"] for memory in response.get("memories", ())]
        # A degraded answer came from another embedder or fewer steps than the row of the table names.
        is_full = response["status"] == "ok" and response["query_id"] == f"question-{number}"
        if not is_full or not known.issuperset(ranked) or len(set(ranked)) != len(ranked):
            raise BrokenRunError(f"{conversation.id}, question-{number}: not a full answer: {response}")
        rankings.append(ranked)
    return rankings
