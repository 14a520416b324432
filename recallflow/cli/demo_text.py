"""How the demo looks to a person: a question, its answer in colour, and why it is the answer."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from recallflow.cli.memory import NOTHING_RELEVANT
from recallflow.cli.memory_text import ASIDE, WHEN, WHO, one_line, passage, print_block, said_at, who
from recallflow.samples import SampleQuestion

QUESTION, ANSWER, NONE = "bold", "bold green", "bold yellow"
NAMES = {"maya": "Maya", "team-atlas": "Team Atlas", "theo": "Theo"}
_INDENT = "    "


def print_question(target: Console, number: int, question: SampleQuestion, answer: Mapping[str, Any]) -> None:
    """A sample question with what came out: the memory that answers it stands out."""
    query = question.query
    target.print()
    print_block(target, Text(question.note, ASIDE), f"{number:>2}. ")
    print_block(target, Text.assemble((f"{NAMES[query['user_id']]}: ", WHO), (query["query"], QUESTION)), _INDENT)
    print_answer(target, answer, query["user_id"], time_of(query["timestamp"]), question.expect)


def print_answer(
    target: Console, answer: Mapping[str, Any], user: str, now: datetime, expect: Sequence[str] = ()
) -> None:
    """The memories of an answer; what stands out is the first that is expected, or else the first."""
    if NOTHING_RELEVANT in {warning["code"] for warning in answer.get("warnings", ())}:
        chance = f"a chance of {answer['answerable']:.0%} that anything remembered tells"
        print_block(target, Text.assemble(("no answer", NONE), f": {chance}"), f"{_INDENT}\N{EM DASH} ")
        return
    memories = answer["memories"]
    found = next((memory["id"] for memory in memories if memory["id"] in expect), None)
    for memory in memories:
        _print_memory(target, memory, user, now, answers=memory["id"] == (found or memories[0]["id"]))


def time_of(rfc3339: str) -> datetime:
    """When a question is asked, by which times of its answer are told."""
    return datetime.fromisoformat(rfc3339)


def _print_memory(target: Console, memory: Mapping[str, Any], user: str, now: datetime, *, answers: bool) -> None:
    speaker = NAMES[user] if memory["role"] == "user" and memory["name"] is None else who(memory)
    said = Text.assemble((f"{said_at(memory['created_at'], now)} ", WHEN), (f"{speaker}: ", WHO), passage(memory))
    if not answers:
        said.stylize(ASIDE)
        print_block(target, said, f"{_INDENT}  ")
        return
    print_block(target, said, f"{_INDENT}\N{BLACK RIGHT-POINTING SMALL TRIANGLE} ", f"{_INDENT}  ")
    reason = next((one for one in memory["why"] if one["code"] == "answers"), memory["why"][0])  # it tells most
    print_block(target, Text(f"because: {one_line(reason['text'])}", ASIDE), f"{_INDENT}  ")
