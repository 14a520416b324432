"""`recallflow keys …`: API keys and their permissions."""

import argparse
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from recallflow.cli.options import add_tenant, config
from recallflow.cli.output import json_line, note
from recallflow.cli.tenants import add_reasons, append_decision, check_signing, client, decide, decided
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.control import ApiKey
    from recallflow.decisions import History

KIND = "api_key"
# Permission of a key → its flag and value name. Without the flag the key is valid for all of the tenant's.
SCOPES = {
    "projects": ("--project", "PROJECT"),
    "environments": ("--environment", "NAME"),
    "end_users": ("--end-user", "USER"),
}


def add_keys(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("keys", help="manage API keys of senders")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    creating = actions.add_parser(
        "create",
        help="create a key",
        description="Creates an API key and prints it. It cannot be printed again: only a hash of the secret is "
        "stored, in the control topic or in the file of --control.",
        examples=(
            "recallflow keys create acme --environment prod --bootstrap-servers localhost:9092 > acme.key",
            "recallflow keys create acme --control control.jsonl > acme.key",
        ),
    )
    revoking = actions.add_parser(
        "revoke",
        help="revoke a key permanently",
        description="Revokes an API key.",
        examples=("recallflow keys revoke acme 0123456789abcdef --bootstrap-servers localhost:9092",),
    )
    listing = actions.add_parser(
        "list",
        help="print a tenant's keys",
        description="Prints a tenant's current keys, without secrets.",
        examples=("recallflow keys list acme --json --bootstrap-servers localhost:9092",),
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    for action in (creating, revoking, listing):
        add_tenant(action, "a tenant, or '*' for all tenants")
    for name, (flag, metavar) in SCOPES.items():
        text = f"for these {name.replace('_', ' ')} only; may be repeated (default: all)"
        creating.add_argument(flag, dest=name, action="append", metavar=metavar, help=text)
    revoking.add_argument("name", metavar="NAME", help="name of the key in `keys list`: 16 digits")
    add_reasons(creating, revoking)
    creating.set_defaults(run=run_create)
    revoking.set_defaults(run=run_revoke)
    listing.set_defaults(run=run_list)


def run_create(options: argparse.Namespace) -> int:
    from recallflow.credentials import new_key

    scopes = {name: getattr(options, name) for name in (*SCOPES, "by", "why")}
    if options.control is not None:
        key, fields = new_key()
        given = {name: one for name, one in scopes.items() if one is not None}
        append_decision(options.control, options.tenant, KIND, fields | given)
        text, held = key.text(), f"key {key.name} is appended to {options.control}, and is valid {_settled(options)}"
    else:
        where = config(options)
        check_signing(where)
        with client(where, options.tenant) as opened:
            made = opened.create_key(**scopes)
        text, held = made.text, f"key {made.event.name} is stored at {made.position}, and is valid {_settled(options)}"
    print(text)
    # On standard error, so that a pipe gets the key alone.
    sys.stdout.flush()
    note(f"{held}; it cannot be shown again")
    return 0


def run_revoke(options: argparse.Namespace) -> int:
    from recallflow.fields import format_time

    found = [key for key in _keys(decided(options), options.tenant) if key.event.name == options.name]
    if not found:  # the argument may be the key itself
        raise UsageError(f"tenant {options.tenant} has no key of this name: `recallflow keys list` prints their names")
    if found[0].revoked_ms is not None:
        print(f"keys revoke {options.tenant} {options.name}: already revoked at {format_time(found[0].revoked_ms)}")
        return 0
    said, key = f"keys revoke {options.tenant} {options.name}", found[0].event
    code = decide(
        options, said, KIND, key.revocation(),
        lambda opened, _: opened.revoke_key(key, by=options.by, why=options.why),
    )  # fmt: skip
    note(f"it is refused {_settled(options)}")
    return code


def run_list(options: argparse.Namespace) -> int:
    found = _keys(decided(options), options.tenant)
    for key in found:
        if options.json:
            json_line(key.fields())
        else:
            print(key.line())
    if not found:
        note(f"tenant {options.tenant} has no keys")
    return 0


def _settled(options: argparse.Namespace) -> str:
    from recallflow.control import SETTLED_MS

    if options.control is not None:
        return f"from {SETTLED_MS / 1_000:g} s after now, in engines started with that file"
    return f"for records with an append time from {SETTLED_MS / 1_000:g} s after now"


class _Key(NamedTuple):
    """A key with its times of creation and revocation (epoch milliseconds)."""

    event: "ApiKey"
    made_ms: int
    revoked_ms: int | None

    def line(self) -> str:
        from recallflow.fields import format_time

        event = self.event
        scopes = [
            f"{name.replace('_', ' ')}: {', '.join(given)}"
            for name in SCOPES
            if (given := getattr(event, name)) is not None
        ]
        said = [event.name, f"since {format_time(self.made_ms)}", *scopes]
        if self.revoked_ms is not None:
            said.append(f"revoked {format_time(self.revoked_ms)}")
        said += [f"{name}: {given}" for name in ("by", "why") if (given := getattr(event, name)) is not None]
        return "; ".join(said)

    def fields(self) -> dict[str, Any]:
        from recallflow.fields import format_time

        scopes = {name: getattr(self.event, name) for name in SCOPES}
        revoked = None if self.revoked_ms is None else format_time(self.revoked_ms)
        said = {"by": self.event.by, "why": self.event.why}
        return {"name": self.event.name, "since": format_time(self.made_ms), "revoked": revoked} | scopes | said


def _keys(history: "History", tenant_id: str) -> list[_Key]:
    """Return a tenant's keys by name. A revoked key stays revoked."""
    found = []
    for name in history.names(tenant_id, KIND):
        said = [(append_ms, cast("ApiKey", event)) for append_ms, event in history.decisions(tenant_id, KIND, name)]
        made_ms, _ = said[0]
        revoked_ms, shown = next(((at_ms, event) for at_ms, event in said if event.revoked), (None, said[-1][1]))
        found.append(_Key(shown, made_ms, revoked_ms))
    return found
