"""Conversations as the events that the flow takes in, and its responses as rankings."""

import argparse
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from benchmarks.command_line import output_file
from benchmarks.locomo import DEPTHS, BenchmarkError, Conversation, shared
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings

EMBEDDERS = ("meaning", "hash", "static", "minilm")
TENANT = "locomo"
_FOLDERS = {"static": "static-minilm-256", "minilm": "all-MiniLM-L6-v2"}


class BrokenRunError(BenchmarkError):
    """The engine refused a line or did not answer as asked: figures from such a run would mean nothing."""


def model_path(embedder: str, given: Path | None) -> Path | None:
    """The folder of the embedder's model, for one that has a model."""
    return given or shared("models", _FOLDERS[embedder]) if embedder in _FOLDERS else None


def embedder_arguments(about: str | None, *more: str) -> argparse.ArgumentParser:
    """The arguments of a benchmark of one embedder, and where its figures go."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedder", choices=(*EMBEDDERS, *more), default="hash")
    parser.add_argument("--model-path", type=Path, metavar="DIR")
    parser.add_argument("--json", type=output_file, metavar="FILE")
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


def query_lines(conversation: Conversation, mode: str, k: int, max_tokens: int | None = None) -> list[bytes]:
    """Return one recall per question, asked at the question's time, or the day after the last message."""
    last = max(turn.time for turn in conversation.turns)
    scope = {"type": "recall", "tenant_id": TENANT, "user_id": conversation.id, "k": k, "mode": mode}
    scope |= {"max_tokens": max_tokens} if max_tokens else {}
    return [
        orjson.dumps(
            scope
            | {"id": f"question-{number}", "query": question.text}
            | {"timestamp": max(last, question.asked or last + timedelta(days=1))}
        )
        for number, question in enumerate(conversation.questions)
    ]


class FlowStore:
    """A state directory with all messages of the conversations.

    Each series of questions reads a copy, because answers count as usage and would change the next series.
    """

    def __init__(self, settings: Settings, conversations: Sequence[Conversation]) -> None:
        self._settings, self.conversations = settings, conversations
        self._folder = TemporaryDirectory(prefix="recallflow-benchmark-")
        self._state = Path(self._folder.name) / "state"
        lines = (line for one in conversations for line in message_lines(one))
        stored, self.ingest_s = self._process(lines, self._state)
        if stored.rejected:
            raise BrokenRunError(f"rejected {stored.rejected[:3]}")

    def ask(self, mode: str = "hybrid", k: int = max(DEPTHS),
            max_tokens: int | None = None) -> tuple[list[Processed], float]:  # fmt: skip
        """Return the responses to the questions of each conversation, and the processor time in seconds."""
        with TemporaryDirectory(prefix="recallflow-benchmark-") as folder:
            state = shutil.copytree(self._state, Path(folder) / "state")
            lines = (line for one in self.conversations for line in query_lines(one, mode, k, max_tokens))
            processed, seconds = self._process(lines, state)
        responses = iter(processed.responses)
        return [
            Processed([response for _, response in zip(one.questions, responses, strict=False)], [], processed.rejected)
            for one in self.conversations
        ], seconds

    def _process(self, lines: Iterable[bytes], state: Path) -> tuple[Processed, float]:
        """Process the lines. The time begins with the first read, when the engine is open."""
        began = 0.0

        def timed() -> Iterator[bytes]:
            nonlocal began
            began = time.process_time()
            yield from lines

        processed = process(timed(), self._settings, state)
        return processed, time.process_time() - began


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
