"""`recallflow state verify | checkpoint | restore | rebuild`: maintenance of a state directory that is not in use."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from recallflow.cli.options import STATE, add_kafka, add_settings, config
from recallflow.cli.output import json_line, paragraph
from recallflow.errors import StateBehind

if TYPE_CHECKING:
    from recallflow.state.at_rest import AtRest
    from recallflow.state.verify import Report

GAVE_UP = (
    "The recovery store is new and empty.",
    "The next run reads memories from the beginning, passing over those applied, and queries from where they end now.",
    "Lost: queries that were not answered before now, those that waited for a position among them, never will be.",
    "Possibly twice: receipts and dead letters of which the output topics no longer hold the first.",
    "No longer checked: whether a state partition lacks memories that the topic does not hold any more.",
)
GAVE_UP_QUERIES = (
    "Queries that Kafka removed before they were read will never be answered.",
    "The next run reads queries on from where their topic begins now.",
)


def add_to(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Below `recallflow state`."""
    verifying = actions.add_parser(
        "verify",
        help="read everything, and report all that is wrong",
        description="Reads everything, and reports all that is wrong; then it ends with 1.",
        examples=("recallflow state verify --state-dir engine",),
    )
    verifying.add_argument("--json", action="store_true", help="print as JSON")
    verifying.set_defaults(run=run_verify)
    copying = actions.add_parser(
        "checkpoint",
        help="copy the directory, in a moment",
        description="Copies the directory, in a moment.",
        examples=("recallflow state checkpoint backup --state-dir engine",),
    )
    copying.add_argument("target", type=Path, metavar="DIR", help="an empty or new folder")
    copying.set_defaults(run=run_checkpoint)
    restoring = actions.add_parser(
        "restore",
        help="make a directory of a checkpoint",
        description="Makes a state directory, which is not there yet, of a checkpoint.",
        examples=("recallflow state restore checkpoint --state-dir restored",),
    )
    restoring.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="the checkpoint; it stays as it is")
    restoring.set_defaults(run=run_restore)
    rebuilding = actions.add_parser(
        "rebuild",
        help="have the next run read again what the state lost",
        description="Has the next run read again from the log what the state lost.",
        examples=("recallflow state rebuild --state-dir engine --bootstrap-servers localhost:9092",),
    )
    rebuilding.add_argument(
        "--give-up-unanswered",
        action="store_true",
        help="go on without a lost recovery store, or without queries that Kafka removed",
    )
    add_kafka(rebuilding, *STATE, "topics.queries")
    rebuilding.set_defaults(run=run_rebuild)
    for action in (verifying, copying, restoring):
        add_settings(action, *STATE)


def run_verify(options: argparse.Namespace) -> int:
    from recallflow.flows.check import start_problems
    from recallflow.state.directory import hold
    from recallflow.state.verify import verify

    state_dir, at_rest = _opened(options)
    with hold(state_dir):
        report = verify(state_dir, at_rest)
        report.problems += start_problems(state_dir, at_rest)
    if options.json:
        json_line({"partitions": report.partitions, "records": report.records, "problems": report.problems})
    else:
        _print_report(report)
    return 1 if report.problems else 0


def run_checkpoint(options: argparse.Namespace) -> int:
    from recallflow.flows.behind import behind, lack
    from recallflow.flows.recovery import has_store
    from recallflow.state.checkpoint import checkpoint
    from recallflow.state.directory import hold

    state_dir, at_rest = _opened(options)
    with hold(state_dir):
        # A copy of a directory that lacks something would pass for a whole one.
        if has_store(state_dir) and (found := behind(state_dir, at_rest)):
            lacking = "; ".join(map(lack, found))
            raise StateBehind(f"{lacking}: rebuild first (recallflow state rebuild, recallflow run)")
        checkpoint(state_dir, options.target, at_rest)
    print(f"{options.target}: checkpoint of {state_dir}")
    return 0


def run_restore(options: argparse.Namespace) -> int:
    from recallflow.state.checkpoint import restore

    state_dir, at_rest = _opened(options)
    restore(options.checkpoint, state_dir, at_rest)
    print(f"{state_dir}: restored. recallflow run reads on from there; recallflow state verify reads it whole")
    return 0


def run_rebuild(options: argparse.Namespace) -> int:
    from recallflow.flows.behind import lack
    from recallflow.flows.encryption import open_at_rest
    from recallflow.flows.rebuild import rebuild

    chosen = config(options)
    if options.give_up_unanswered:
        from recallflow.flows.give_up import give_up_unanswered

        gave_up = give_up_unanswered(chosen.named_state_dir(), chosen.kafka, chosen.topics.queries)
        print("\n".join(map(paragraph, GAVE_UP if gave_up.store else GAVE_UP_QUERIES)))
        what = "queries up to the end, answered or not" if gave_up.store else "queries that were never answered"
        for part, (offset, count) in sorted(gave_up.queries.items()):
            print(f"{part}: from offset {offset} on, {count} {what}")
        print(f"{sum(count for _, count in gave_up.queries.values())} queries given up")
        return 0
    found, offsets = rebuild(chosen.named_state_dir(), open_at_rest(chosen.encryption))
    for one in found:
        print(lack(one))
    if not found:
        print("nothing is missing: nothing has to be read again")
        return 0
    for source, offset in offsets.items():
        print(f"{source}: the next recallflow run reads again from offset {offset} on")
    print(paragraph("Until it has caught up, answers lack what is not read again yet. Nothing is answered twice."))
    return 0


def _opened(options: argparse.Namespace) -> "tuple[Path, AtRest]":
    """The state directory that is named, and what protects it."""
    from recallflow.flows.encryption import open_at_rest

    chosen = config(options)
    return chosen.named_state_dir(), open_at_rest(chosen.encryption)


def _print_report(report: "Report") -> None:
    for problem in report.problems:
        print(problem)
    counts = ", ".join(f"{count} {name}" for name, count in report.records.items())
    print(f"{report.partitions} state partitions: {counts or 'no records'}")
    print(f"{len(report.problems)} problems" if report.problems else "everything was read, and agrees")
