"""What `recallflow doctor` says of one thing that it looked at."""

from typing import Literal, NamedTuple

Status = Literal["OK", "WARN", "FAIL"]


class Finding(NamedTuple):
    """`check`: what was looked at; `what`: what was found; `todo`: what to do about it, empty where nothing is."""

    check: str
    status: Status
    what: str
    todo: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check, "OK", what)


def warn(check: str, what: str, todo: str = "") -> Finding:
    """It works, and may not do what is expected."""
    return Finding(check, "WARN", what, todo)


def fail(check: str, what: str, todo: str) -> Finding:
    """It does not work so, or loses something. What a library says over several lines becomes one."""
    return Finding(check, "FAIL", " ".join(what.split()), todo)
