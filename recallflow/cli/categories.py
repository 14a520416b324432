"""`recallflow categories …`: what a tenant's memories are sorted into."""

import argparse
from contextlib import closing
from typing import Any

from recallflow.cli.deciding import append, client, control_table
from recallflow.cli.options import add_control, add_kafka, config, decisions
from recallflow.control import Category
from recallflow.decisions import History, categories
from recallflow.fields import EPOCH_MS_MAX


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("categories", help="what a tenant's memories are sorted into")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    where = "Sends the decision to the control topic, or appends it to the file of --control; it holds from then on."
    setting = actions.add_parser("set", help="define a category, or describe it anew", description=where)
    removing = actions.add_parser("remove", help="sort nothing into a category any more", description=where)
    listing = actions.add_parser("list", help="print a tenant's categories", description="As they are now.")
    for action in (setting, removing, listing):
        action.add_argument("tenant", metavar="TENANT")
        add_kafka(action, "topics.control")
        add_control(action)
    for action in (setting, removing):
        action.add_argument("name", metavar="NAME")
        action.add_argument("--by", metavar="NAME", help="who decides")
        action.add_argument("--why", metavar="TEXT", help="for what reason")
        action.set_defaults(run=run_decide)
    setting.add_argument("--description", required=True, metavar="TEXT", help="what belongs there; models read it")
    listing.set_defaults(run=run_list)


def run_decide(options: argparse.Namespace) -> int:
    fields: dict[str, Any] = {"name": options.name, "removed": options.action == "remove"}
    fields |= {"description": getattr(options, "description", "")}
    fields |= {name: given for name in ("by", "why") if (given := getattr(options, name)) is not None}
    said = " ".join(["categories", options.action, options.tenant, options.name])
    if options.control is not None:
        append(options.control, options.tenant, "category", fields)
        print(f"{said}: appended to {options.control}")
        return 0
    with client(config(options), options.tenant) as opened:
        position = opened.category(**fields)
    print(f"{said}: {position}")
    return 0


def run_list(options: argparse.Namespace) -> int:
    for one in _held(options):
        print(f"{one.name}: {one.description}")
    return 0


def _held(options: argparse.Namespace) -> list[Category]:
    if options.control is not None:
        return _latest(decisions(options), options.tenant)
    with closing(control_table(config(options))) as table:
        return _latest(table.history, options.tenant)


def _latest(history: History, tenant_id: str) -> list[Category]:
    return categories(history, tenant_id, EPOCH_MS_MAX)
