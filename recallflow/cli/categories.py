"""`recallflow categories …`: what a tenant's memories are sorted into."""

import argparse

from recallflow.cli.deciding import add_reasons, decide, decided
from recallflow.cli.options import add_control, add_kafka
from recallflow.cli.output import json_line, table


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("categories", help="what a tenant's memories are sorted into")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    where = "Sends the decision to the control topic, or appends it to the file of --control; it holds from then on."
    setting = actions.add_parser(
        "set",
        help="define a category, or describe it anew",
        description=where,
        examples=('recallflow categories set acme food --description "what they eat" --control control.jsonl',),
    )
    removing = actions.add_parser(
        "remove",
        help="sort nothing into a category any more",
        description=where,
        examples=("recallflow categories remove acme food --control control.jsonl",),
    )
    listing = actions.add_parser(
        "list",
        help="print a tenant's categories",
        description="As they are now.",
        examples=("recallflow categories list acme --control control.jsonl",),
    )
    listing.add_argument("--json", action="store_true", help="a line of JSON for each")
    for action in (setting, removing, listing):
        action.add_argument("tenant", metavar="TENANT")
        add_kafka(action, "topics.control")
        add_control(action)
    for action in (setting, removing):
        action.add_argument("name", metavar="NAME")
        action.set_defaults(run=run_decide)
    add_reasons(setting, removing)
    setting.add_argument("--description", required=True, metavar="TEXT", help="what belongs there; models read it")
    listing.set_defaults(run=run_list)


def run_decide(options: argparse.Namespace) -> int:
    said = " ".join(["categories", options.action, options.tenant, options.name])
    fields = {"name": options.name, "removed": options.action == "remove"}
    fields |= {"description": getattr(options, "description", "")}
    return decide(options, said, "category", fields, lambda opened, given: opened.category(**given))


def run_list(options: argparse.Namespace) -> int:
    from recallflow.decisions import categories
    from recallflow.fields import EPOCH_MS_MAX

    found = [(one.name, one.description) for one in categories(decided(options), options.tenant, EPOCH_MS_MAX)]
    if options.json:
        for name, description in found:
            json_line({"name": name, "description": description})
    else:
        table(("category", "what belongs there"), found)
    return 0
