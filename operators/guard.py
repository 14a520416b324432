"""Handling of internal errors: the record that causes one is refused, and the flow continues.

A RecallflowError is raised unchanged: an InvalidRecord refuses the record; any other, such as a full disk, is a problem
of the environment and stops the flow. MemoryError and exceptions outside of `Exception` also stop the flow."""

import logging
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from recallflow.errors import DefectLog, InvalidRecord, RecallflowError, defect_id
from recallflow.records import Position

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Undo = Callable[[], None]
_defects = DefectLog(logging.getLogger(__name__))


def retry_once(
    step: str, position: Position, work: Callable[[*Arguments], T], *arguments: *Arguments, undo: Undo | None = None
) -> T:
    """Return the result of `work`. After an internal error, call `undo` and try once more. Raise InvalidRecord
    (`internal_error`) with the id of the log record if both attempts fail."""
    try:
        return work(*arguments)
    except (RecallflowError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 one event must not block all others
        first = error
    if undo is not None:
        undo()
    try:
        result = try_once(step, position, work, *arguments, undo=undo)
    except InvalidRecord as failed:
        if failed.code != "internal_error":
            report(step, position, first)
        raise
    report(step, position, first)
    return result


def try_once(
    step: str, position: Position, work: Callable[[*Arguments], T], *arguments: *Arguments, undo: Undo | None = None
) -> T:
    """Return the result of `work`. After an internal error, log it, call `undo`, and raise InvalidRecord
    (`internal_error`) with the id of the log record."""
    try:
        return work(*arguments)
    except (RecallflowError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 one event must not block all others
        error_id = report(step, position, error)
        if undo is not None:
            undo()
        kind = type(error).__name__
        problem = f"{kind} in our own code (internal error {error_id}); report it with the engine's log of that id"
        raise InvalidRecord.of("internal_error", problem) from None


def report(step: str, position: Position, error: Exception) -> str:
    """Log an internal error at a record. Return the id of the log record, which is the same in each replay."""
    error_id = defect_id(position, step, type(error).__qualname__)
    _defects.report(error_id, f"{position}, step {step}", error, position=str(position))
    return error_id
