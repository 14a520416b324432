"""`recallflow quota …`: what a tenant may send, and what each of its users may hold."""

import argparse

from recallflow.cli.deciding import add_reasons, decide, decided
from recallflow.cli.options import add_control, add_kafka
from recallflow.cli.output import json_line, table
from recallflow.quota_names import QUOTAS

_NAMES = "\n".join(f"{name}: {what}" for name, what in QUOTAS.items())


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("quota", help="what a tenant may send, and what each of its users may hold")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    where = (
        "Sends the decision to the control topic, or appends it to the file of --control; it holds from a second "
        f"later on.\n\nquotas:\n{_NAMES}"
    )
    setting = actions.add_parser(
        "set",
        help="set a limit",
        description=where,
        examples=("recallflow quota set acme events_per_s 50 --control control.jsonl",),
    )
    removing = actions.add_parser(
        "remove",
        help="take a limit away",
        description=where,
        examples=("recallflow quota remove acme events_per_s --control control.jsonl",),
    )
    listing = actions.add_parser(
        "list",
        help="print a tenant's limits",
        description="As they are now.",
        examples=("recallflow quota list acme --control control.jsonl",),
    )
    listing.add_argument("--json", action="store_true", help="a line of JSON for each")
    for action in (setting, removing, listing):
        action.add_argument("tenant", metavar="TENANT")
        add_kafka(action, "topics.control")
        add_control(action)
    for action in (setting, removing):
        action.add_argument("name", metavar="NAME", choices=[*QUOTAS])
        action.set_defaults(run=run_decide, limit=None)
    add_reasons(setting, removing)
    setting.add_argument("limit", type=int, metavar="LIMIT")
    listing.set_defaults(run=run_list)


def run_decide(options: argparse.Namespace) -> int:
    said = " ".join(["quota", options.action, options.tenant, options.name])
    fields = {"name": options.name, "limit": options.limit}
    return decide(options, said, "quota", fields, lambda opened, given: opened.quota(**given))


def run_list(options: argparse.Namespace) -> int:
    from recallflow.control import Quota
    from recallflow.fields import EPOCH_MS_MAX

    history = decided(options)
    found = []
    for name in history.names(options.tenant, "quota"):
        held = history.as_of(options.tenant, "quota", name, EPOCH_MS_MAX)
        if isinstance(held, Quota) and held.limit is not None:
            found.append((name, held.limit))
    if options.json:
        for name, limit in found:
            json_line({"name": name, "limit": limit})
    else:
        table(("quota", "limit"), found)
    return 0
