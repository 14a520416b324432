"""`recallflow dlq`: list dead letters, and send them again."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from recallflow.cli.options import add_kafka, config
from recallflow.cli.output import json_line, paragraph
from recallflow.errors import ErrorCode
from recallflow.masking import mask

if TYPE_CHECKING:
    from recallflow.connectors.kafka.dead_letters import Letter
    from recallflow.flows.config import Config

SHOWN_CHARACTERS = 200
CODES = get_args(ErrorCode)
DENIED = ("unauthenticated", "forbidden")


def add_dlq(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "dlq", help="list dead letters, and send them again", description="Lists dead letters, and sends them again."
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    listing = actions.add_parser(
        "list",
        help="list refused records and the reasons",
        description="Prints refused records and the reasons.",
        examples=(
            "recallflow dlq list --bootstrap-servers localhost:9092",
            "recallflow dlq list --code invalid_event --json --bootstrap-servers localhost:9092",
        ),
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    listing.set_defaults(run=run_list)
    replay = actions.add_parser(
        "replay",
        help="send refused records again, unchanged",
        description="Sends refused records to their topic again, as they were, with auth.api_key where that is given. "
        "Records that name an id apply once, however often they are sent. What a dead letter does not hold whole is "
        "left out, and the exit code 1. So are records whose sender was not known or not allowed to, unless --code "
        "names that reason: they would be believed, as yours.",
        examples=("recallflow dlq replay --code internal_error --bootstrap-servers localhost:9092",),
    )
    replay.set_defaults(run=run_replay)
    for action in (listing, replay):
        text = f"only those refused for this reason: {', '.join(CODES)}"
        action.add_argument("--code", metavar="CODE", choices=CODES, help=text)
        add_kafka(action, "topics.dead_letters", *(("topics.memory", "topics.queries") if action is replay else ()))


def run_list(options: argparse.Namespace) -> int:
    count = 0
    for letter in _chosen(options, config(options)):
        count += 1
        # Earlier versions stored dead letters unmasked.
        text = None if letter.value is None else mask(letter.value)[0].decode(errors="replace")
        if options.json:
            json_line({"position": str(letter.position), "error": letter.error, "record": text})
        else:
            error = letter.error
            print(paragraph(f"{error['source']} {error['code']}: {error['detail']}"))
            print(paragraph("(no value: a tombstone)" if text is None else text[:SHOWN_CHARACTERS], "    "))
            for missing in letter.missing:
                print(paragraph(f"({missing})", "    "))
    if not options.json:
        print(f"{count} dead letters")
    return 0


def run_replay(options: argparse.Namespace) -> int:
    from recallflow.connectors.kafka.dead_letters import send_again

    where = config(options)
    letters = [*_chosen(options, where)]
    cut = [letter for letter in letters if letter.missing]
    for letter in cut:
        print(f"recallflow: {letter.source} cannot be sent again: {'; '.join(letter.missing)}", file=sys.stderr)
    denied = [letter for letter in letters if options.code is None and letter.error.get("code") in DENIED]
    if denied:
        remedy = f"check them, and give --code {' or '.join(DENIED)} to send them"
        print(f"recallflow: {len(denied)} not sent, because their senders were refused; {remedy}", file=sys.stderr)
    whole = [letter for letter in letters if not letter.missing and letter not in denied]
    judged = where.topics.memory, where.topics.queries
    sent = send_again(where.kafka, whole, where.auth.credentials, judged)
    print(f"{sent} sent again" + (f"; {len(cut)} not sent, because they are incomplete" if cut else ""))
    return 1 if cut or denied else 0


def _chosen(options: argparse.Namespace, where: "Config") -> "Iterator[Letter]":
    from recallflow.connectors.kafka.dead_letters import read_letters

    for letter in read_letters(where.kafka, where.topics.dead_letters):
        if options.code in (None, letter.error.get("code")):
            yield letter
