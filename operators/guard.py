"""Where our own code fails at a record, that record is refused, and the flow goes on without it.

A RecallflowError passes as it is: an InvalidRecord is about the record; any other, such as a full disk, is about the
surroundings and stops the flow. So do MemoryError and whatever is no `Exception`.
"""

import logging
import traceback
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from recallflow.errors import FieldProblem, InvalidRecord, RecallflowError
from recallflow.records import Position

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Undo = Callable[[], None]

_log = logging.getLogger(__name__)


def twice(
    step: str,
    position: Position,
    work: Callable[[*Arguments], T],
    *arguments: *Arguments,
    undo: Undo | None = None,
) -> T:
    """`once`, and once again where it fails."""
    try:
        return work(*arguments)
    except (RecallflowError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 see `once`
        report(step, position, error, undo)
    return once(step, position, work, *arguments, undo=undo)


def once(
    step: str,
    position: Position,
    work: Callable[[*Arguments], T],
    *arguments: *Arguments,
    undo: Undo | None = None,
) -> T:
    """What `work` returns. Where our own code fails in it, the log says where, `undo` is called, and InvalidRecord
    (`internal_error`) is raised."""
    try:
        return work(*arguments)
    except (RecallflowError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 one event, whatever is wrong with it, must not keep all others waiting
        report(step, position, error, undo)
        problem = f"{type(error).__name__} in our own code; report it with the engine's log, and keep the record"
        raise InvalidRecord("internal_error", [FieldProblem("", problem)]) from None


def report(step: str, position: Position, error: Exception, undo: Undo | None = None) -> None:
    """Says in the log where our own code failed."""
    known = {"position": str(position), "code": "internal_error"}
    _log.error("%s: our own code failed in step %s\n%s", position, step, _trace(error), extra=known)
    if undo is not None:
        undo()


def _trace(error: BaseException) -> str:
    """The places and types of an error and what led to it. Not their messages: those may quote a memory."""
    trace = "".join([*traceback.format_tb(error.__traceback__), type(error).__qualname__])
    before = error.__cause__ or error.__context__
    return trace if before is None else f"{_trace(before)}\nled to\n{trace}"
