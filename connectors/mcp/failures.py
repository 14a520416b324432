"""What a model is told of a tool that failed: what is wrong, and what to do."""

import logging
import uuid

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from recallflow.defects import DefectLog
from recallflow.errors import DeliveryFailed, InvalidRecord, QueryFailed, QueryTimeout, SourceError

_ADVICE = {
    "catching_up": "Call again in a moment: the memory has just started, and has not read all that it holds.",
    "not_found": "Search again, and take a memory_id from the result.",
    "unauthenticated": "You cannot mend this: tell the user that the memory's credentials are not accepted.",
    "forbidden": "You cannot mend this: tell the user that the credentials are not for this.",
    "over_quota": "Tell the user that the memory's limit is reached; do not try again at once.",
    "too_large": "Ask for less, or add several shorter memories.",
    "internal_error": "Do not try again with the same arguments.",
    "unreadable": "You cannot mend this: tell the user that the memory cannot be read at present.",
}
_CORRECT = "Correct the arguments and call again."

_defects = DefectLog(logging.getLogger(__name__))


def explain(error: Exception) -> str:
    """The text of a failure. What an unexpected error says stays here: it may quote a memory."""
    match error:
        case ValidationError():
            problems = [f"{'.'.join(map(str, one['loc']))}: {_problem(one)}" for one in error.errors()]
            return f"invalid_arguments: {'; '.join(problems)}. {_CORRECT}"
        case InvalidRecord():
            return f"{error.code}: {error}. {_ADVICE.get(error.code, _CORRECT)}"
        case QueryFailed():
            code = error.error.code
            return f"{code}: {error.error.message}. {_ADVICE.get(code, _CORRECT)}"
        case QueryTimeout():
            return f"no_answer: the memory did not answer within {error.timeout_s:g} s. Call again in a moment."
        case DeliveryFailed():
            return f"not_stored: {error} Search for it before you call again: it may be stored all the same."
        case SourceError():
            return f"unavailable: {error}. Tell the user that the memory is not available at present."
    error_id = uuid.uuid4().hex[:12]
    _defects.report(error_id, "a tool", error)
    return f"internal_error: internal error {error_id} of the memory. {_ADVICE['internal_error']}"


def _problem(one: ErrorDetails) -> str:
    return "there is no such argument" if one["type"] == "extra_forbidden" else one["msg"]
