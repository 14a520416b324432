"""What the sender of an event may change whose credentials are for some projects only: memories of these, and nothing
that others rest on too.

What belongs to another project, or to none, is answered as what is not there. Only an id is not: ids are the owner's,
and one that another project has used is used.
"""

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
    """Raises InvalidRecord for an event that its sender may not send, whatever is there."""
    event, projects = write.event, write.projects
    if projects is None:
        return
    match event:
        case Message() | MemoryAdd():
            if event.project_id not in projects:
                raise _forbidden("project_id", f"these credentials are for {_listed(projects)}: name one")
        case MemoryUpdate() | MemoryEmbedding() | MemoryFeedback() | MemoryForget():
            pass  # what they are about tells
        case _:
            raise _too_wide(event.type, "changes what all projects of a user have in common")


def refuse_all(ask: Ask) -> None:
    """Raises InvalidRecord for a query that cannot be limited to some projects, where its sender may read no others."""
    if ask.projects is not None:
        raise _too_wide(ask.query.type, "tells of all projects of a user")


def _listed(projects: tuple[str, ...]) -> str:
    return f"the project{'s' if len(projects) > 1 else ''} {', '.join(sorted(projects))}" if projects else "no project"


def _too_wide(kind: str, what: str) -> InvalidRecord:
    return _forbidden("type", f"{kind} {what}: send it with credentials that are for all projects")


def _forbidden(field: str, problem: str) -> InvalidRecord:
    return InvalidRecord("forbidden", [FieldProblem(field, problem)])
