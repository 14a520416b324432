"""Codes of errors, warnings and model failures, exceptions, and the texts of all errors."""

import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import get_args

from recallflow import errors, responses
from recallflow.errors import ErrorCode, ModelFailure, RecallflowError
from recallflow.responses import WARNINGS
from tools.reference import markdown
from tools.reference.markdown import code, escaped, prose, table
from tools.reference.messages import messages

INTRODUCTION = (
    "From this page you can look up a code, a warning or an error message, and its remedy. A refused record becomes a "
    "[dead letter](../how-to/dead-letters.md), and a refused query gets a response with the status `error`. Both name "
    "the code and every wrong field."
)
REMEDIES: Mapping[ErrorCode, str] = {
    "invalid_json": "send one JSON object in UTF-8 for each record, without a schema registry's framing",
    "unknown_schema": "register the schema in the same registry, then run `recallflow dlq replay`",
    "undecodable": "send the record with the serializer of its schema",
    "invalid_event": "correct the fields that the error names",
    "unknown_type": "use a type of the [events](events.md) or [queries](queries.md)",
    "too_large": "keep a record below 1 MiB; for a response, ask for less or raise the topic's `max.message.bytes`",
    "wrong_dimension": "omit `embedding`, or send a vector of the configured model",
    "id_conflict": "use another id for other content",
    "not_found": "check the id; forgotten memories do not exist",
    "catching_up": "repeat the query in a moment",
    "unauthenticated": "send valid credentials; the error states the problem",
    "forbidden": "use credentials for this tenant, environment, project or user",
    "over_quota": "send later, or raise the [quota](../how-to/quotas.md), then run `recallflow dlq replay`",
    "unreadable": "restore the key or a checkpoint, or erase the user",
    "skipped": "none: an operator passed `--skip` for this record",
    "internal_error": "report it with the log line that has the same id; after a fix, run `recallflow dlq replay`",
}
MODEL_REMEDIES: Mapping[ModelFailure, str] = {
    "timeout": "raise `timeout_ms` or `query_timeout_ms`, or lower `capacity`",
    "rate_limited": "lower `capacity`",
    "unavailable": "check the service and the network",
    "rejected": "check key, model name and `base_url`",
    "refused": "none: the model or a content filter declines this text",
    "malformed": "use a model that follows JSON schemas",
    "over_budget": "raise `tokens_per_day` or the tenant's quota",
    "left_alone": "check the service; it is called again after 10 s",
    "busy": "raise `capacity`",
}


def page() -> str:
    """Return the page of all errors and warnings."""
    meanings = _comments()
    warnings = [
        (code(name), "yes" if meaning.degrades else "", meaning.text) for name, meaning in sorted(WARNINGS.items())
    ]
    return markdown.page(
        "Errors and warnings",
        INTRODUCTION,
        "## Error codes\n\n"
        + table(
            ("code", "meaning", "remedy"), [(code(one), meanings[one], REMEDIES[one]) for one in get_args(ErrorCode)]
        ),
        "## Warnings\n\nA response with a degrading warning has the status `degraded`.\n\n"
        + table(("code", "degrades", "meaning"), warnings),
        "## Model failures\n\n"
        + table(
            ("code", "meaning", "remedy"),
            [(code(one), meanings[one], MODEL_REMEDIES[one]) for one in get_args(ModelFailure)],
        ),
        "## Exceptions\n\nExceptions of `recallflow.errors` and `recallflow.responses`, each below its base class.\n\n"
        + "\n".join(_tree()),
        "## Messages\n\nAll texts of exceptions, by module. `{…}` is a value.",
        *_messages(),
    )


def _comments() -> dict[str, str]:
    """Return the comment of each value of a `Literal` in `recallflow.errors`."""
    return dict(re.findall(r'^    "(\w+)",  # (.+)$', inspect.getsource(errors), re.M))


def _tree(error: type[Exception] = RecallflowError, depth: int = 0) -> Iterator[str]:
    yield f"{'    ' * depth}- `{error.__name__}`: {prose(error)}"
    for kind in error.__subclasses__():
        if kind.__module__ in (errors.__name__, responses.__name__):
            yield from _tree(kind, depth + 1)


def _messages() -> Iterator[str]:
    for file, found in groupby(messages(), key=lambda message: message.file):
        rows = [(code(message.error), escaped(message.text)) for message in found]
        yield f"### {file}\n\n" + table(("exception", "message"), rows)
