"""`recallflow quota …`: what a tenant may send, and what each of its users may hold."""

import argparse
from contextlib import closing
from typing import Any

from recallflow.cli.deciding import append, client, control_table
from recallflow.cli.options import add_control, add_kafka, config, decisions
from recallflow.control import QUOTAS, Quota
from recallflow.decisions import History
from recallflow.fields import EPOCH_MS_MAX

_NAMES = "\n".join(f"  {name}: {what}" for name, what in QUOTAS.items())


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("quota", help="what a tenant may send, and what each of its users may hold")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    where = (
        "Sends the decision to the control topic, or appends it to the file of --control; it holds from a second "
        f"later on.\n\nquotas:\n{_NAMES}"
    )
    shown: dict[str, Any] = {"description": where, "formatter_class": argparse.RawDescriptionHelpFormatter}
    setting = actions.add_parser("set", help="set a limit", **shown)
    removing = actions.add_parser("remove", help="take a limit away", **shown)
    listing = actions.add_parser("list", help="print a tenant's limits", description="As they are now.")
    for action in (setting, removing, listing):
        action.add_argument("tenant", metavar="TENANT")
        add_kafka(action, "topics.control")
        add_control(action)
    for action in (setting, removing):
        action.add_argument("name", metavar="NAME", choices=[*QUOTAS])
        action.add_argument("--by", metavar="NAME", help="who decides")
        action.add_argument("--why", metavar="TEXT", help="for what reason")
        action.set_defaults(run=run_decide, limit=None)
    setting.add_argument("limit", type=int, metavar="LIMIT")
    listing.set_defaults(run=run_list)


def run_decide(options: argparse.Namespace) -> int:
    fields: dict[str, Any] = {"name": options.name, "limit": options.limit}
    fields |= {name: given for name in ("by", "why") if (given := getattr(options, name)) is not None}
    said = " ".join(["quota", options.action, options.tenant, options.name])
    if options.control is not None:
        append(options.control, options.tenant, "quota", fields)
        print(f"{said}: appended to {options.control}")
        return 0
    with client(config(options), options.tenant) as opened:
        position = opened.quota(**fields)
    print(f"{said}: {position}")
    return 0


def run_list(options: argparse.Namespace) -> int:
    for name, limit in _held(options):
        print(f"{name}: {limit:,}")
    return 0


def _held(options: argparse.Namespace) -> list[tuple[str, int]]:
    if options.control is not None:
        return _latest(decisions(options), options.tenant)
    with closing(control_table(config(options))) as table:
        return _latest(table.history, options.tenant)


def _latest(history: History, tenant_id: str) -> list[tuple[str, int]]:
    """A tenant's limits, by name."""
    names = history.names(tenant_id, "quota")
    found = ((name, history.as_of(tenant_id, "quota", name, EPOCH_MS_MAX)) for name in names)
    return [(name, one.limit) for name, one in found if isinstance(one, Quota) and one.limit is not None]
