"""Workspace routing: the owner that a request's project belongs to, where a header asks for it."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from fastapi import Request

from recallflow.connectors.http.errors import Problem
from recallflow.credentials import USER_HEADER, Headers
from recallflow.events import Event
from recallflow.workspaces import workspace_of

ROUTING_HEADER, ORGANISATIONS_HEADER = "x-workspace-routing", "x-organisations"
_MODE = "auto"

AnyEvent = TypeVar("AnyEvent", bound=Event)
Mappings = Callable[[str], Mapping[str, str | None]]  # of a tenant: project owner → workspace


def without_mappings(_: str) -> Mapping[str, str | None]:
    """Return no mappings, for a gateway without decisions."""
    return {}


def route_to_workspace(
    request: Request, event: AnyEvent, headers: Headers, mappings: Mappings
) -> tuple[AnyEvent, Headers]:
    """Return the event and its credentials, addressed to the workspace of the event's project.

    `x-end-user-id` follows where it names the event's user, so that both still name one owner. Admission judges the
    result: credentials for a user alone do not reach a workspace.

    Raises:
        Problem: one of the headers cannot be read.
    """
    mode = _header(request, ROUTING_HEADER)
    if mode is None:
        return event, headers
    if mode != _MODE:
        raise Problem("invalid_event", f"give {_MODE}, or leave it out", ROUTING_HEADER)
    organisations = [name.strip() for name in (_header(request, ORGANISATIONS_HEADER) or "").split(",")]
    user_id = event.user_id
    workspace = workspace_of(event.project_id, mappings(event.tenant_id), organisations, user_id)
    if workspace == user_id:
        return event, headers
    named, routed = (USER_HEADER, user_id.encode()), (USER_HEADER, workspace.encode())
    return (
        event.model_copy(update={"user_id": workspace}),
        tuple(routed if header == named else header for header in headers),
    )


def _header(request: Request, name: str) -> str | None:
    """Return a header's value. Raise Problem where it is given twice or is not ASCII."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Problem("invalid_event", "is given twice; give it once", name)
    if values and not values[0].isascii():
        raise Problem("invalid_event", "must be ASCII", name)
    return values[0].strip() if values else None
