"""For whom the tools are called. Nothing of it comes from the model."""

from collections.abc import Iterable
from typing import NamedTuple

from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, Headers
from recallflow.errors import FieldProblem, InvalidRecord

_CREDENTIALS = {name.encode(): name for name in (TOKEN_HEADER, KEY_HEADER, USER_HEADER)}


class Place(NamedTuple):
    """Which part of a deployment a server is for. With a `project_id` it reads and stores that project's memories
    alone."""

    tenant_id: str
    environment: str
    project_id: str | None = None


class Caller(NamedTuple):
    """One user of a place, with what proves that the tools may be called for that user."""

    place: Place
    user_id: str
    headers: Headers

    def scope(self) -> dict[str, str]:
        """The fields by which an event says whose it is."""
        named = self.place._asdict() | {"user_id": self.user_id}
        return {name: value for name, value in named.items() if value is not None}


def caller_of(place: Place, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
    """Who an HTTP request is for: the user that its x-end-user-id names. A credential that is given twice stays so, and
    is refused by whoever judges. Raises InvalidRecord."""
    given = tuple((_CREDENTIALS[name], value) for name, value in headers if name in _CREDENTIALS)
    users = [value for name, value in given if name == USER_HEADER]
    if len(users) != 1:
        raise _refused("is missing: it names the user whose memory this is" if not users else "is given twice")
    try:
        return Caller(place, users[0].decode(), given)
    except UnicodeDecodeError:
        raise _refused("is not UTF-8") from None


def _refused(problem: str) -> InvalidRecord:
    return InvalidRecord("unauthenticated", [FieldProblem(USER_HEADER, problem)])
