"""`recallflow doctor`: whether the deployment that `run` would be started with works, and what to do."""

import argparse
from typing import TYPE_CHECKING

from rich.text import Text

from recallflow.cli.kafka import RUN
from recallflow.cli.options import add_kafka, config
from recallflow.cli.output import clean, console, json_line
from recallflow.errors import SourceError

if TYPE_CHECKING:
    from recallflow.flows.config import Config

_STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor",
        help="looks at everything a deployment needs, and says what to do",
        description="Looks at brokers, topics, rights, clocks, state, disk, models and auth, as `run` with the same "
        "settings would find them. Changes nothing. Exit code 1 where something fails.",
        examples=("recallflow doctor --bootstrap-servers localhost:9092 --state-dir engine",),
    )
    add_kafka(parser, *RUN)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each check")
    parser.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> int:
    from recallflow.flows.doctor import examine
    from recallflow.members.folders import state_directories

    failed = False
    chosen = config(options)
    for finding in examine(chosen, lambda path: state_directories(path, _processes(chosen))):
        failed |= finding.status == "FAIL"
        if options.json:
            json_line(finding._asdict())
        else:
            todo = f"\n      → {finding.todo}" if finding.todo else ""
            status = f"{finding.status:<5}", _STYLES.get(finding.status.upper(), "")
            said = clean(f" {finding.check}: {finding.what}{todo}")
            console().print(Text.assemble(status, said), soft_wrap=True)
    return 1 if failed else 0


def _processes(chosen: "Config") -> int:
    """Return how many members `run` would start. Brokers that do not answer are a finding of their own."""
    from recallflow.members.cpus import usable_cpus
    from recallflow.members.start import processes

    try:
        return processes(chosen)
    except SourceError:
        return usable_cpus()
