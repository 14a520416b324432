"""`recallflow state verify | checkpoint | restore`: maintenance of a state directory that is not in use."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from recallflow.cli.options import STATE, add_settings, config
from recallflow.cli.output import json_line

if TYPE_CHECKING:
    from recallflow.state.at_rest import AtRest
    from recallflow.state.verify import Report


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
    for action in (verifying, copying, restoring):
        add_settings(action, *STATE)


def run_verify(options: argparse.Namespace) -> int:
    from recallflow.state.verify import verify

    state_dir, at_rest = _opened(options)
    report = verify(state_dir, at_rest)
    if options.json:
        json_line({"partitions": report.partitions, "records": report.records, "problems": report.problems})
    else:
        _print_report(report)
    return 1 if report.problems else 0


def run_checkpoint(options: argparse.Namespace) -> int:
    from recallflow.state.checkpoint import checkpoint

    state_dir, at_rest = _opened(options)
    checkpoint(state_dir, options.target, at_rest)
    print(f"{options.target}: checkpoint of {state_dir}")
    return 0


def run_restore(options: argparse.Namespace) -> int:
    from recallflow.state.checkpoint import restore

    state_dir, at_rest = _opened(options)
    restore(options.checkpoint, state_dir, at_rest)
    print(f"{state_dir}: restored. recallflow run reads on from there; recallflow state verify reads it whole")
    return 0


def _opened(options: argparse.Namespace) -> "tuple[Path, AtRest]":
    """The state directory that is named, and what protects it."""
    from recallflow.flows.settings import open_at_rest

    chosen = config(options)
    return chosen.named_state_dir(), open_at_rest(chosen.encryption)


def _print_report(report: "Report") -> None:
    for problem in report.problems:
        print(problem)
    counts = ", ".join(f"{count} {name}" for name, count in report.records.items())
    print(f"{report.partitions} state partitions: {counts or 'no records'}")
    print(f"{len(report.problems)} problems" if report.problems else "everything was read, and agrees")
