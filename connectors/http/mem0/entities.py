"""Whose memories mem0's entities mean, and the ids that its clients know memories by.

mem0 attaches a memory to any of a user, an agent, an app and a run. Ours belongs to one owner, by which it is found:
the first that is given of these four. An owner that is no user is called after its kind (`agent:planner`), and so no
user may be called like that.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from recallflow.errors import FieldProblem, InvalidRecord

USER, AGENT, APP, RUN = "user_id", "agent_id", "app_id", "run_id"
ENTITIES = (USER, AGENT, APP, RUN)
AGENT_LABEL = AGENT  # the field of a memory's metadata that an agent stands in
_PREFIXES = {AGENT: "agent:", APP: "app:", RUN: "run:"}


class Owned(NamedTuple):
    """The owner, and what else was given: fields of an event."""

    user_id: str
    fields: dict[str, Any]


def owner_of(entities: Mapping[str, str]) -> tuple[str, str]:
    """The owner's name with us, and which of the entities it is. Raises InvalidRecord where there is none."""
    for kind in ENTITIES:
        if name := entities.get(kind):
            if kind == USER:
                _check_user(name)
            return _PREFIXES.get(kind, "") + name, kind
    raise invalid(USER, f"is missing: give one of {', '.join(ENTITIES)}, at the top or in filters")


def _check_user(name: str) -> None:
    for kind, prefix in _PREFIXES.items():
        if name.startswith(prefix):
            raise invalid(USER, f"begins with {prefix}, as the owners that a {kind} makes do: give the {kind} instead")


def owned(entities: Mapping[str, str], metadata: Mapping[str, Any] | None) -> Owned:
    """Whose a new memory is, and the fields that say the rest: a run is a session, an app a project, and an agent
    stands in the metadata. Raises InvalidRecord."""
    user_id, _ = owner_of(entities)
    fields: dict[str, Any] = {}
    if run := entities.get(RUN):
        fields["session_id"] = run
    if app := entities.get(APP):
        fields["project_id"] = app
    if labelled := dict(metadata or {}) | ({AGENT_LABEL: agent} if (agent := entities.get(AGENT)) else {}):
        fields["metadata"] = labelled
    return Owned(user_id, fields)


def shown_entities(user_id: str, version: Mapping[str, Any]) -> dict[str, str | None]:
    """The entities of a version of a memory, as mem0 names them."""
    found = {
        USER: None,
        AGENT: (version.get("metadata") or {}).get(AGENT_LABEL),
        APP: version.get("project_id"),
        RUN: version.get("session_id"),
    }
    for kind, prefix in _PREFIXES.items():
        if user_id.startswith(prefix):
            return found | {kind: user_id.removeprefix(prefix)}
    return found | {USER: user_id}


def mem0_id(user_id: str, memory_id: str) -> str:
    """The id that a client of mem0 knows a memory by. It names the owner, as the client asks for it by this alone."""
    return f"{quote(user_id, safe='')}:{quote(memory_id, safe='')}"


def our_id(given: str) -> tuple[str, str]:
    """Owner and id out of such an id. Raises InvalidRecord (`not_found`)."""
    user_id, colon, memory_id = given.partition(":")
    if not (user_id and colon and memory_id):
        raise InvalidRecord("not_found", [FieldProblem("memory_id", "is no id that was given out here")])
    return unquote(user_id), unquote(memory_id)


def invalid(field: str, problem: str) -> InvalidRecord:
    return InvalidRecord("invalid_event", [FieldProblem(field, problem)])
