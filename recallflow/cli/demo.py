"""`recallflow demo`: the bundled conversations through the real engine, and ten questions about them."""

import argparse
import sys
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from recallflow.cli.options import add_kafka, config
from recallflow.cli.output import console, heading, json_line, paragraph

if TYPE_CHECKING:  # an engine takes long to import, and help needs none
    from collections.abc import Sequence

    from recallflow.events import MemoryEvent
    from recallflow.queries import Recall
    from recallflow.records import Position
    from recallflow.responses import Response
    from recallflow.samples import SampleQuestion

TENANT = "demo"


class Engine(Protocol):
    """`Memory` in this process, or `RecallClient` before a broker."""

    def send(self, event: "MemoryEvent") -> "Position": ...

    def ask(self, query: "Recall") -> "Response": ...


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="ten questions about bundled conversations, answered with reasons",
        description="Has an engine remember bundled conversations (a person with her assistant, a team, two friends) "
        "and asks it ten questions. No Kafka and no network unless you want them, and nothing is left behind.",
        examples=("recallflow demo", "recallflow demo --json | head -1"),
    )
    parser.add_argument("--interactive", action="store_true", help="ask questions of your own, one a line")
    parser.add_argument(
        "--kafka", action="store_true", help="the same through a broker: topics and an engine for the demo alone"
    )
    parser.add_argument("--json", action="store_true", help="print the responses as JSON lines")
    add_kafka(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from recallflow.samples import sample_events, sample_questions

    began_s = time.perf_counter()
    with _opened(options) as engine:
        events = sample_events()
        for event in events:
            engine.send(event)
        if options.interactive:
            _converse(engine)
            return 0
        asked = sample_questions()
        answers = [_asked(engine, question.query) for question in asked]
    if options.json:
        for answer in answers:
            json_line(answer)
        return 0
    people = len({event.user_id for event in events})
    _print(asked, answers, f"{len(events)} events of {people} chats", time.perf_counter() - began_s)
    return 0


def _opened(options: argparse.Namespace) -> AbstractContextManager[Engine]:
    if options.kafka:
        from recallflow.cli.demo_kafka import engine_behind

        return engine_behind(config(options).kafka, TENANT)
    from recallflow import Memory

    return Memory(tenant=TENANT)


def _asked(engine: Engine, query: dict[str, Any]) -> dict[str, Any]:
    from recallflow.queries import Recall

    return engine.ask(Recall.model_validate(query)).model_dump(mode="json", exclude_unset=True)


def _print(
    asked: "Sequence[SampleQuestion]", answers: "Sequence[dict[str, Any]]", remembered: str, seconds: float
) -> None:
    from recallflow.cli.demo_text import print_question

    print(paragraph(f"{remembered} remembered, {len(asked)} questions answered, in {seconds:.1f} s with start-up."))
    target = console()
    for number, (question, answer) in enumerate(zip(asked, answers, strict=True), 1):
        print_question(target, number, question, answer)
    print()
    heading("Your own memory")
    print('  recallflow remember "I moved to Porto" --state-dir memory --create')
    print('  recallflow ask "Where do I live?" --state-dir memory')


def _converse(engine: Engine) -> None:
    """Answers one line after the other until there are no more. `maya: …` asks about Maya, and so do lines after it."""
    from recallflow.cli.demo_text import NAMES, print_answer, time_of
    from recallflow.samples import sample_questions

    target, person = console(), next(iter(NAMES))
    moment = sample_questions()[0].query["timestamp"]
    if is_person := sys.stdin.isatty():
        print(paragraph(f"Ask about {', '.join(NAMES)}: “theo: What is the cat called?”. An empty line ends it."))
    while line := _line(f"{person}> " if is_person else ""):
        named, colon, question = line.partition(":")
        if colon and named.strip().lower() in NAMES:
            person, line = named.strip().lower(), question.strip()
        if line:
            fields = {"tenant_id": TENANT, "user_id": person, "query": line, "k": 3, "timestamp": moment}
            print_answer(target, _asked(engine, {"type": "recall"} | fields), person, time_of(moment))


def _line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        return ""
