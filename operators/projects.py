"""Rights of senders with credentials for some projects only: they may change memories of these projects, and nothing
shared.

Memories of other projects are treated as missing. Ids are an exception: they belong to the owner, so an id used in
another project is taken."""

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import (
    MemoryAdd,
    MemoryEmbedding,
    MemoryFeedback,
    MemoryForget,
    MemoryUpdate,
    Message,
)
from recallflow.operators.events import Ask, Write


def check(write: Write) -> None:
    """Raise InvalidRecord for an event that its sender may not send, regardless of stored data."""
    event, projects = write.event, write.projects
    if projects is None:
        return
    match event:
        case Message() | MemoryAdd():
            if event.project_id not in projects:
                raise _forbidden("project_id", f"these credentials are for {_listed(projects)}: name one")
        case MemoryUpdate() | MemoryEmbedding() | MemoryFeedback() | MemoryForget():
            pass  # the memory's project decides later
        case _:
            raise _too_wide(event.type, "changes what all projects of a user have in common")


def refuse_all(ask: Ask) -> None:
    """Raise InvalidRecord for a query that covers all projects, if its sender may read only some."""
    if ask.projects is not None:
        raise _too_wide(ask.query.type, "tells of all projects of a user")


def _listed(projects: tuple[str, ...]) -> str:
    return f"the project{'s' if len(projects) > 1 else ''} {', '.join(sorted(projects))}" if projects else "no project"


def _too_wide(kind: str, what: str) -> InvalidRecord:
    return _forbidden("type", f"{kind} {what}: send it with credentials that are for all projects")


def _forbidden(field: str, problem: str) -> InvalidRecord:
    return InvalidRecord("forbidden", [FieldProblem(field, problem)])
