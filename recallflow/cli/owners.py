"""`recallflow owners …`: the workspaces that events about an owner's projects go to."""

import argparse

from recallflow.cli.deciding import add_reasons, decide, decided
from recallflow.cli.options import add_control, add_kafka
from recallflow.cli.output import json_line, table


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("owners", help="workspaces that events about an owner's projects go to")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    where = "Sends the decision to the control topic, or appends it to the file of --control."
    mapping = actions.add_parser(
        "map",
        help="route an owner's projects to a workspace",
        description=f"{where} Memories that are there already do not move.",
        examples=("recallflow owners map acme acme-labs labs --control control.jsonl",),
    )
    unmapping = actions.add_parser(
        "unmap",
        help="route them to their users again",
        description=where,
        examples=("recallflow owners unmap acme acme-labs --control control.jsonl",),
    )
    listing = actions.add_parser(
        "list",
        help="print a tenant's mappings",
        description="As they are now.",
        examples=("recallflow owners list acme --json --control control.jsonl",),
    )
    listing.add_argument("--json", action="store_true", help="a line of JSON for each")
    for action in (mapping, unmapping, listing):
        action.add_argument("tenant", metavar="TENANT")
        add_kafka(action, "topics.control")
        add_control(action)
    for action in (mapping, unmapping):
        action.add_argument("owner", metavar="OWNER", help="of projects, as in github.com/OWNER/…")
        action.set_defaults(run=run_map, workspace=None)
    mapping.add_argument("workspace", metavar="WORKSPACE", help="owns the memories, as a user of this id would")
    add_reasons(mapping, unmapping)
    listing.set_defaults(run=run_list)


def run_map(options: argparse.Namespace) -> int:
    said = " ".join(["owners", options.action, options.tenant, options.owner])
    fields = {"name": options.owner, "workspace": options.workspace}
    return decide(options, said, "owner.mapping", fields, lambda opened, given: opened.map_owner(**given))


def run_list(options: argparse.Namespace) -> int:
    from recallflow.decisions import owner_mappings
    from recallflow.fields import EPOCH_MS_MAX

    found = [(owner, to) for owner, to in owner_mappings(decided(options), options.tenant, EPOCH_MS_MAX).items() if to]
    if options.json:
        for owner, workspace in found:
            json_line({"owner": owner, "workspace": workspace})
    else:
        table(("owner", "workspace"), found)
    return 0
