"""Every code that an error or a warning may have, and every exception."""

import inspect
import re
from collections.abc import Iterator
from typing import get_args

from recallflow import errors
from recallflow.errors import ErrorCode, ModelFailure, RecallflowError
from recallflow.responses import WARNINGS
from tools.reference import markdown
from tools.reference.markdown import code, prose, table

TOLD = (
    "A record that is refused becomes a dead letter, and a question an answer of the status `error`, with one of these "
    "codes and every wrong field. What to do about dead letters is in [operations](../operations.md#dead-letters)."
)


def page() -> str:
    """The page on all of them."""
    comments = _comments()
    return markdown.page(
        "Errors and warnings",
        TOLD,
        "## Codes of errors\n\n" + table(("code", "what"), [(code(one), comments[one]) for one in get_args(ErrorCode)]),
        "## Codes of warnings\n\nAn answer with one that degrades has the status `degraded`.\n\n"
        + table(("code", "degrades", "what"), [
            (code(name), "yes" if meaning.degrades else "", meaning.text) for name, meaning in sorted(WARNINGS.items())
        ]),
        "## Why a model gave nothing\n\n"
        + table(("code", "what"), [(code(one), comments.get(one, "")) for one in get_args(ModelFailure)]),
        "## Exceptions\n\nOf `recallflow.errors`, each below what it is a kind of.\n\n" + "\n".join(_tree()),
    )  # fmt: skip


def _comments() -> dict[str, str]:
    """What the code says beside each value of a `Literal`."""
    return dict(re.findall(r'^    "(\w+)",  # (.+)$', inspect.getsource(errors), re.M))


def _tree(error: type[Exception] = RecallflowError, depth: int = 0) -> Iterator[str]:
    yield f"{'    ' * depth}- `{error.__name__}`: {prose(error)}"
    for kind in error.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from _tree(kind, depth + 1)
