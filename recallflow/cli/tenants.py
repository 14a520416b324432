"""Decisions of tenants' operators: `recallflow categories`, `owners`, `quota` and `keys`."""

import argparse
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from recallflow.cli.flags import add_actions, add_tenant, config, decisions
from recallflow.cli.output import json_line, note, show, table
from recallflow.cli.parser import Commands, Handler, add_command
from recallflow.errors import UsageError
from recallflow.flows.runner import now_ms
from recallflow.limits import QUOTAS
from recallflow.private_files import open_private

if TYPE_CHECKING:
    from recallflow.client import KafkaVerbs
    from recallflow.connectors.kafka.control import ControlTable
    from recallflow.control import ApiKey, ControlHistory
    from recallflow.flows.config import Config

TIMEOUT_S = 10.0  # limit of the wait for Kafka's acknowledgement
# Command → fields of its listing in JSON.
LISTED = {"categories": ("name", "description"), "owners": ("owner", "workspace"), "quota": ("name", "limit")}
_QUOTA_NAMES = "\n".join(f"{name}: {text}" for name, text in QUOTAS.items())
API_KEY = "api_key"
# Restriction of a key → its flag and value name. Without the flag, the key has no such restriction.
KEY_SCOPES = {"projects": ("--project", "PROJECT"), "environments": ("--environment", "NAME"),
              "end_users": ("--end-user", "USER")}  # fmt: skip


def add_reasons(*actions: argparse.ArgumentParser, required: bool = False) -> None:
    for action in actions:
        action.add_argument("--by", required=required, metavar="NAME", help="name of the person who decides")
        action.add_argument("--why", required=required, metavar="TEXT", help="reason of the decision")


def decide(options: argparse.Namespace, argument: str, event_type: str, fields: Mapping[str, Any]) -> None:
    """Store a decision, and print the command with its `argument`, and where the decision is stored."""
    command = f"{options.command} {options.action} {options.tenant} {argument}"
    print(f"{command}: {store_decision(options, event_type, fields)}")


def store_decision(options: argparse.Namespace, event_type: str, fields: Mapping[str, Any]) -> str:
    """Send a decision with author and reason to the control topic, or append it, with the current time, to the file of
    --control. Return where it is stored. Raise InvalidRecord."""
    from recallflow.verbs.arguments import ClientScope

    fields = {**fields, **{name: text for name in ("by", "why") if (text := getattr(options, name)) is not None}}
    if options.control is not None:
        timestamp = {"timestamp": now_ms()}
        event = ClientScope(options.tenant, "prod").control_event(event_type, fields | timestamp)
        with open_private(options.control, "ab") as file:
            file.write(event.model_dump_json(exclude_none=True).encode() + b"\n")
        return f"appended to {options.control}"
    chosen = config(options)
    check_signing(chosen)
    with closing(open_client(chosen, options.tenant)) as client:
        return str(client.decide(event_type, fields).result())


def decision_history(options: argparse.Namespace) -> "ControlHistory":
    """Return all decisions in the file of --control, or in the control topic."""
    if options.control is not None:
        return decisions(options)
    with closing(control_table(config(options))) as table:
        return table.history


def open_client(chosen: "Config", tenant_id: str, environment: str = "prod") -> "KafkaVerbs":
    from recallflow.client import ClientTopics, KafkaVerbs
    from recallflow.credentials import ClientCredentials
    from recallflow.verbs.arguments import ClientScope

    topics, auth, scope = chosen.topics, chosen.auth, ClientScope(tenant_id, environment)
    client_topics = ClientTopics(topics.memory, topics.queries, topics.responses, topics.control)
    key, secret = ClientCredentials(auth.api_key), auth.control_secret
    return KafkaVerbs(chosen.kafka, scope, client_topics, TIMEOUT_S, key, secret)


def control_table(chosen: "Config") -> "ControlTable":
    from recallflow.connectors.kafka.control import ControlTable

    return ControlTable(chosen.kafka, chosen.topics.control, secret=chosen.auth.control_secret)


def check_signing(chosen: "Config") -> None:
    """Raise UsageError if decisions are signed, and no secret is configured: without a signature, the new one would
    have no effect."""
    if chosen.auth.control_secret is not None:
        return
    with closing(control_table(chosen)) as table:
        if table.are_signed():
            problem = f"decisions in {chosen.topics.control} are signed, and this one would have no signature"
            raise UsageError(f"{problem}; give auth.control_secret (RECALLFLOW_AUTH_CONTROL_SECRET)")


def add_decisions(
    actions: Commands, run: Handler, description: str, *commands: tuple[str, str, str], required: bool = False
) -> list[argparse.ArgumentParser]:
    """Add a command for each name, help and example. With `required`, author and reason must be given."""
    parsers = []
    for name, text, example in commands:
        examples = (f"{example} --control control.jsonl",)
        parser = actions.add_parser(name, help=text, description=description, examples=examples)
        add_tenant(parser)
        add_reasons(parser, required=required)
        parser.set_defaults(run=run)
        parsers.append(parser)
    return parsers


def run_decision(options: argparse.Namespace) -> None:
    """Store a decision, whose event type and fields (names of options) are defaults of the command's parser."""
    decide(options, options.name, options.event_type, {name: getattr(options, name) for name in options.fields})


def _add_listing(actions: Commands, command: str) -> None:
    example = f"recallflow {command} list acme --control control.jsonl"
    text = f"print a tenant's current {command}"
    parser = actions.add_parser("list", help=text, description=f"{text.capitalize()}.", examples=(example,))
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_tenant(parser)
    parser.set_defaults(run=run_listing)


def run_listing(options: argparse.Namespace) -> None:
    fields, rows = LISTED[options.command], _rows(options.command, decision_history(options), options.tenant)
    if options.json:
        for row in rows:
            json_line(dict(zip(fields, row, strict=True)))
    else:
        heading = "category" if options.command == "categories" else options.command.removesuffix("s")
        table((heading, fields[1]), rows)


def _rows(command: str, history: "ControlHistory", tenant_id: str) -> list[tuple[str, object]]:
    from recallflow.control import Quota, categories, owner_mappings

    match command:
        case "categories":
            return [(one.name, one.description) for one in categories(history, tenant_id)]
        case "owners":
            return [(owner, space) for owner, space in owner_mappings(history, tenant_id).items() if space]
    return [(one.name, one.limit) for one in history.in_force(Quota, "quota", tenant_id) if one.limit is not None]


def add_categories(commands: Commands) -> None:
    actions = add_actions(commands, "categories", "manage the categories of a tenant's memories")
    effect = "Sends the decision to the control topic, or appends it to the file of --control; it applies from then on."
    setting, removing = add_decisions(
        actions, run_decision, effect,
        ("set", "define or redescribe a category", 'recallflow categories set acme food --description "what they eat"'),
        ("remove", "remove a category for later memories", "recallflow categories remove acme food"),
    )  # fmt: skip
    for action in (setting, removing):
        action.add_argument("name", metavar="NAME")
        action.set_defaults(event_type="category", fields=("name", "description", "removed"), removed=False)
    removing.set_defaults(description="", removed=True)
    text = "content of the category, as instruction for models"
    setting.add_argument("--description", required=True, metavar="TEXT", help=text)
    _add_listing(actions, "categories")


def add_owners(commands: Commands) -> None:
    actions = add_actions(commands, "owners", "map owners of projects to workspaces")
    effect = "Sends the decision to the control topic, or appends it to the file of --control. Memories do not move."
    mapping, unmapping = add_decisions(
        actions, run_decision, effect,
        ("map", "route an owner's projects to a workspace", "recallflow owners map acme acme-labs labs"),
        ("unmap", "route an owner's projects to their users again", "recallflow owners unmap acme acme-labs"),
    )  # fmt: skip
    for action in (mapping, unmapping):
        action.add_argument("name", metavar="OWNER", help="owner of projects, as in github.com/OWNER/…")
        action.set_defaults(event_type="owner.mapping", fields=("name", "workspace"), workspace=None)
    mapping.add_argument("workspace", metavar="WORKSPACE", help="owner of the memories, in place of a user")
    _add_listing(actions, "owners")


def add_quota(commands: Commands) -> None:
    actions = add_actions(commands, "quota", "manage a tenant's limits of rates and sizes")
    effect = "Sends the decision to the control topic, or appends it to the file of --control; it applies after 1 s."
    effect += f"\n\nquotas:\n{_QUOTA_NAMES}"
    setting, removing = add_decisions(
        actions, run_decision, effect,
        ("set", "set a limit", "recallflow quota set acme events_per_s 50"),
        ("remove", "remove a limit", "recallflow quota remove acme events_per_s"),
    )  # fmt: skip
    for action in (setting, removing):
        action.add_argument("name", metavar="NAME", choices=[*QUOTAS])
        action.set_defaults(event_type="quota", fields=("name", "limit"), limit=None)
    setting.add_argument("limit", type=int, metavar="LIMIT")
    _add_listing(actions, "quota")


def add_keys(commands: Commands) -> None:
    actions = add_actions(commands, "keys", "manage API keys of senders")
    creating = add_command(actions, "create", run_key_create)
    revoking = add_command(actions, "revoke", run_key_revoke)
    listing = add_command(actions, "list", run_keys_list)
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    for action in (creating, revoking, listing):
        add_tenant(action, "a tenant, or '*' for all tenants")
    for name, (flag, metavar) in KEY_SCOPES.items():
        text = f"for these {name.replace('_', ' ')} only; may be repeated (default: all)"
        creating.add_argument(flag, dest=name, action="append", metavar=metavar, help=text)
    revoking.add_argument("name", metavar="NAME", help="name of the key in `keys list`: 16 hexadecimal digits")
    add_reasons(creating, revoking)


def run_key_create(options: argparse.Namespace) -> None:
    """Create an API key, and print it.
    It cannot be printed again: only a hash of the secret is stored, in the control topic or in the file of --control.
    $ recallflow keys create acme --environment prod --bootstrap-servers localhost:9092 > acme.key
    $ recallflow keys create acme --control control.jsonl > acme.key"""
    from recallflow.credentials import new_key

    key, fields = new_key()
    scopes = {name: values for name in KEY_SCOPES if (values := getattr(options, name)) is not None}
    stored = store_decision(options, API_KEY, fields | scopes)
    print(key.text(), flush=True)
    # On standard error, so that a pipe gets only the key.
    note(f"key {key.name}: {stored}; it is valid {_effective_from(options)}, and cannot be shown again")


def run_key_revoke(options: argparse.Namespace) -> None:
    """Revoke a key permanently.
    $ recallflow keys revoke acme 0123456789abcdef --bootstrap-servers localhost:9092"""
    keys = _keys(decision_history(options), options.tenant)
    if options.name not in keys:  # the message does not repeat the argument, which may be the key itself
        raise UsageError(f"tenant {options.tenant} has no key of this name: `recallflow keys list` prints their names")
    key, fields = keys[options.name]
    if fields["revoked"] is not None:
        print(f"keys revoke {options.tenant} {options.name}: already revoked at {fields['revoked']}")
    else:
        decide(options, options.name, API_KEY, key.revocation())
        note(f"the key is refused {_effective_from(options)}")


def run_keys_list(options: argparse.Namespace) -> None:
    """Print a tenant's keys, without secrets.
    $ recallflow keys list acme --json --bootstrap-servers localhost:9092"""
    keys = _keys(decision_history(options), options.tenant)
    for _, fields in keys.values():
        show(fields, _key_line(fields), as_json=options.json)
    if not keys:
        note(f"tenant {options.tenant} has no keys")


def _effective_from(options: argparse.Namespace) -> str:
    from recallflow.control import DELAY_MS

    if options.control is not None:
        return f"from {DELAY_MS / 1_000:g} s after now, in engines started with that file"
    return f"for records appended {DELAY_MS / 1_000:g} s from now or later"


def _key_line(fields: Mapping[str, Any]) -> str:
    scopes = [f"{name.replace('_', ' ')}: {', '.join(fields[name])}" for name in KEY_SCOPES if fields[name] is not None]
    revoked = [] if fields["revoked"] is None else [f"revoked {fields['revoked']}"]
    author = [f"{name}: {fields[name]}" for name in ("by", "why") if fields[name] is not None]
    return "; ".join([fields["name"], f"since {fields['since']}", *scopes, *revoked, *author])


def _keys(history: "ControlHistory", tenant_id: str) -> "dict[str, tuple[ApiKey, dict[str, Any]]]":
    """Return a tenant's keys and their printed fields, by name. A revoked key stays revoked."""
    from recallflow.fields import format_time

    keys = {}
    for name in history.names(tenant_id, API_KEY):
        events = [(format_time(at), cast("ApiKey", event)) for at, event in history.decisions(tenant_id, API_KEY, name)]
        revoked, key = next(((at, event) for at, event in events if event.revoked), (None, events[-1][1]))
        fields: dict[str, Any] = {"name": name, "since": events[0][0], "revoked": revoked}
        keys[name] = key, fields | {name: getattr(key, name) for name in (*KEY_SCOPES, "by", "why")}
    return keys
