"""What a query's answer looks like on its way out: where it goes, and as which bytes."""

from collections.abc import Iterable, Mapping

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.outputs import Answer
from recallflow.queries import ReplyTo
from recallflow.records import Position
from recallflow.responses import ErrorBody, Response, Warn


def checked(wanted: ReplyTo | None, known: Mapping[str, int] | None) -> ReplyTo | None:
    """Where an answer is to go, if a query may say so: `known`, the reply topics with their partition counts. Raises
    InvalidRecord."""
    if wanted is None or known is None:
        return None
    if wanted.topic not in known:
        problem = f"not among the reply topics: {', '.join(sorted(known)) or 'none'}"
        raise InvalidRecord("invalid_event", [FieldProblem("reply_to.topic", problem)])
    if wanted.partition is not None and wanted.partition >= known[wanted.topic]:
        problem = f"{wanted.topic} has {known[wanted.topic]} partitions"
        raise InvalidRecord("invalid_event", [FieldProblem("reply_to.partition", problem)])
    return wanted


def answer(position: Position, number: int, key: bytes, response: Response, reply_to: ReplyTo | None) -> Answer:
    """A response as an output."""
    body = response.model_dump_json(exclude_unset=True).encode()
    return Answer(position, number, key, body, response, reply_to)


def failure(query_id: str, error: InvalidRecord, applied: Iterable[str], warnings: Iterable[Warn] = ()) -> Response:
    """The response to a query that there is no answer to."""
    response = Response(query_id=query_id, status="error", error=ErrorBody.of(error), applied=[*applied])
    given = [*warnings]
    return response.model_copy(update={"warnings": given}) if given else response
