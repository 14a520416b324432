"""Failures of our own code: one log record each, with the id that the client gets, and few tracebacks."""

import logging
import time
from collections.abc import Callable
from hashlib import sha256

from recallflow.errors import trace_of

TRACE_EVERY_S = 60.0
PLACES_MAX = 1_000
_ID_DIGITS = 12


def defect_id(*parts: object) -> str:
    """Return an id that is the same whenever the same work fails in the same way."""
    return sha256(" ".join(map(str, parts)).encode()).hexdigest()[:_ID_DIGITS]


class DefectLog:
    """The log of defects. Each place in the code has its traceback logged at most once in `TRACE_EVERY_S`."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._traced: dict[str, tuple[float, str]] = {}  # place → when its traceback was logged, under which id

    def report(self, error_id: str, where: str, error: BaseException, **fields: str) -> None:
        """Log one failure. Messages of exceptions are left out: they may quote a memory.

        Args:
            fields: attributes of the log record, beside `code` and `error_id`.
        """
        place, now_s = _place(error), self._clock()
        at_s, traced_id = self._traced.get(place, (float("-inf"), ""))
        detail = f"; traceback at internal error {traced_id}"
        if now_s - at_s >= TRACE_EVERY_S:
            if len(self._traced) >= PLACES_MAX:
                self._traced.clear()
            self._traced[place] = now_s, error_id
            detail = f"\n{trace_of(error)}"
        known = {"code": "internal_error", "error_id": error_id, **fields}
        self._logger.error("internal error %s: %s at %s%s", error_id, place, where, detail, extra=known)


def _place(error: BaseException) -> str:
    """Return the type of an error and the code that raised it."""
    at, kind = error.__traceback__, type(error).__qualname__
    if at is None:
        return kind
    while at.tb_next is not None:
        at = at.tb_next
    return f"{kind} in {at.tb_frame.f_code.co_qualname} ({at.tb_frame.f_globals.get('__name__')}:{at.tb_lineno})"
