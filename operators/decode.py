"""The decoding of a record into a valid event, or a refusal that names every wrong field."""

from collections.abc import Container

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.operators.events import Ask, Decoded, Refused, Write
from recallflow.operators.guard import twice
from recallflow.parsing import QUERY_TYPES, parse, raw_query
from recallflow.queries import QUERY_IDS
from recallflow.records import Position, Record, Refusal

STEP = "decode"


def decode(record: Record, skips: Container[Position] = ()) -> Decoded:
    """Return the event of a record. Invalid events, internal errors, and positions in `skips` give `Refused`."""
    if skips and record.position in skips:
        skipped = InvalidRecord("skipped", [FieldProblem("", "passed over unread, as run --skip said")])
        return Refused(record, skipped, STEP)
    if record.refusal is not None:
        return refused(record, record.refusal)
    try:
        return twice(STEP, record.position, _event_of, record)
    except InvalidRecord as error:
        return Refused(record, error, STEP, _query_id(record))


def refused(record: Record, refusal: Refusal) -> Refused:
    """Return a refused record, with its verdict attached."""
    error = InvalidRecord(refusal.code, [FieldProblem(refusal.field, refusal.problem)])
    return Refused(record._replace(refusal=refusal), error, refusal.step, _query_id(record))


def _event_of(record: Record) -> Write | Ask:
    event = parse(record.value)
    if event.type in QUERY_TYPES:  # type: ignore[attr-defined]
        return Ask(record, event, event.owner)  # type: ignore[arg-type]
    return Write(record, event, event.owner)  # type: ignore[arg-type]


def _query_id(record: Record) -> str | None:
    """Return the id of a refused record that is recognisably a query."""
    raw = raw_query(record.value)
    if raw is None:
        return None
    given = next((raw[name] for name in QUERY_IDS if name in raw), None)
    return given[:128] if isinstance(given, str) and given else str(record.position)
