"""Who may, by what is decided now."""

import time
from collections.abc import Callable

from recallflow.credentials import Headers
from recallflow.errors import SourceError
from recallflow.events import Event
from recallflow.operators.authorise import Authoriser
from recallflow.records import Position, Record

NOWHERE = Position("gateway", 0, 0)  # of a record that is not in its log yet

# Why decisions cannot be read on, if so.
Failure = Callable[[], Exception | None]


class Present:
    """Admission by what is decided now: the engine's own verdict, on a record that is appended at this moment. Where
    decisions cannot be read on, nobody knows what is decided, and everybody is refused with SourceError."""

    def __init__(self, authoriser: Authoriser, failure: Failure = lambda: None) -> None:
        self._authoriser, self._failure = authoriser, failure

    def check(self, event: Event, headers: Headers) -> None:
        self._authoriser.check(self._record(headers), event)

    def ids(self, headers: Headers) -> dict[str, str]:
        """As Authoriser has it."""
        return self._authoriser.ids(self._record(headers))

    def authenticate(self, headers: Headers) -> None:
        self._authoriser.authenticate(self._record(headers))

    def check_tenant(self, tenant_id: str, headers: Headers, *, decides: bool) -> str | None:
        """As Authoriser has it."""
        return self._authoriser.check_tenant(self._record(headers), tenant_id, decides=decides)

    def _record(self, headers: Headers) -> Record:
        if (error := self._failure()) is not None:
            raise SourceError(f"decisions cannot be read on: {error}")
        return record_now(headers)


def record_now(headers: Headers) -> Record:
    """A record that is appended at this moment."""
    return Record(NOWHERE, b"", now_ms(), headers=headers)


def now_ms() -> int:
    """The time of this moment."""
    return time.time_ns() // 1_000_000
