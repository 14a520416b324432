"""`recallflow demo`: the bundled sample conversations through the real dataflow, questions answered with reasons."""

import argparse
import time
from typing import Any

import orjson

from recallflow.cli.memory_text import print_ranked
from recallflow.cli.output import console, paragraph
from recallflow.errors import RecallflowError
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.samples import SampleQuestion, sample_path, sample_questions


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="replay the bundled conversations and ask them questions",
        description="Replays the bundled sample conversations through the real dataflow and asks them questions. "
        "No Kafka, no network.",
    )
    parser.add_argument("--json", action="store_true", help="print the responses as JSON lines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    events = sample_path("conversations.jsonl").read_bytes().splitlines()
    asked = sample_questions()
    plain = [orjson.dumps(question.query) for question in asked]
    started = time.perf_counter()
    processed = process([*events, *plain], Settings())
    seconds = time.perf_counter() - started
    if processed.rejected:
        raise RecallflowError(
            f"sample line {processed.rejected[0]['line']}: {processed.rejected[0]['error']['message']}"
        )
    if options.json:
        for response in processed.responses:
            print(orjson.dumps(response).decode())
        return 0
    _print_answers(events, asked, processed.responses, seconds)
    return 0


def _print_answers(
    events: list[bytes], asked: list[SampleQuestion], responses: list[dict[str, Any]], seconds: float
) -> None:
    users = {orjson.loads(event)["user_id"] for event in events}
    went = f"{len(events)} events of {len(users)} users went through the dataflow into RocksDB"
    print(paragraph(f"{went}, and {len(asked)} questions were answered, in {seconds:.1f} s with start-up."))
    for question, response in zip(asked, responses, strict=True):
        query = question.query
        how = f"{query['user_id']}, {query.get('mode', 'hybrid')}, {response['processing_time_ms']:.1f} ms"
        print(f"\n{paragraph(f'{question.note} [{how}]')}")
        print(paragraph(query["query"], "   ", "?  "))
        for memory in response["memories"]:
            print_ranked(console(), memory)
    print("\nYour own memory:")
    print('  recallflow remember "I moved to Porto" --state-dir memory')
    print('  recallflow ask "Where do I live?" --state-dir memory')
