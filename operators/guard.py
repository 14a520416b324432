"""Where our own code fails at a record, that record is refused, and the flow goes on without it.

A RecallflowError passes as it is: an InvalidRecord is about the record; any other, such as a full disk, is about the
surroundings and stops the flow. So do MemoryError and whatever is no `Exception`.
"""

import logging
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from recallflow.defects import DefectLog, defect_id
from recallflow.errors import FieldProblem, InvalidRecord, RecallflowError
from recallflow.records import Position

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Undo = Callable[[], None]

_defects = DefectLog(logging.getLogger(__name__))


def twice(
    step: str,
    position: Position,
    work: Callable[[*Arguments], T],
    *arguments: *Arguments,
    undo: Undo | None = None,
) -> T:
    """Return what `work` returns, at the second attempt if the first fails. The log has one record of both.

    Raises:
        InvalidRecord: `internal_error`, if both attempts fail. It names the id of the log record.
    """
    try:
        return work(*arguments)
    except (RecallflowError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 see `once`
        first = error
    if undo is not None:
        undo()
    try:
        result = once(step, position, work, *arguments, undo=undo)
    except InvalidRecord as failed:
        if failed.code != "internal_error":
            report(step, position, first)
        raise
    report(step, position, first)
    return result


def once(
    step: str,
    position: Position,
    work: Callable[[*Arguments], T],
    *arguments: *Arguments,
    undo: Undo | None = None,
) -> T:
    """Return what `work` returns. Where our own code fails in it, log the failure, and call `undo`.

    Raises:
        InvalidRecord: `internal_error`, which names the id of the log record.
    """
    try:
        return work(*arguments)
    except (RecallflowError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 one event, whatever is wrong with it, must not keep all others waiting
        error_id = report(step, position, error)
        if undo is not None:
            undo()
        kind = type(error).__name__
        problem = f"{kind} in our own code (internal error {error_id}); report it with the engine's log of that id"
        raise InvalidRecord("internal_error", [FieldProblem("", problem)]) from None


def report(step: str, position: Position, error: Exception) -> str:
    """Log where our own code failed at a record. Return the id of the log record, which is the same in each replay."""
    error_id = defect_id(position, step, type(error).__qualname__)
    _defects.report(error_id, f"{position}, step {step}", error, position=str(position))
    return error_id
