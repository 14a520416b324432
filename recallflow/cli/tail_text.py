"""A record of a topic in one line."""

import time
from typing import Any

import orjson
from rich.text import Text

from recallflow.cli.memory_text import ASIDE, WHEN, WHO, one_line

# What a record is called, and its colour.
_LABELS = {
    "memory": ("event", "green"),
    "queries": ("query", "blue"),
    "responses": ("answer", "magenta"),
    "receipts": ("receipt", "green"),
    "dead_letters": ("refused", "bold red"),
}


def line_of(message: Any, name: str, *, goes_in: bool) -> Text:
    """When, in or out, what, whose, and what it says in short."""
    from recallflow.connectors.kafka.messages import time_ms

    when = time.strftime("%H:%M:%S", time.localtime(time_ms(message) / 1_000))
    label, style = _LABELS[name]
    return Text.assemble(
        (when, WHEN),
        " → " if goes_in else " ← ",
        (f"{label:<8}", style),
        (one_line((message.key() or b"").decode(errors="replace")), WHO),
        " ",
        one_line(_short(name, _parsed(message), message)),
        (f"  {message.topic()}:{message.partition()}:{message.offset()}", ASIDE),
    )


def record_of(message: Any) -> dict[str, Any]:
    """The same for programs: where it stands, and all of it. What is no JSON is text."""
    from recallflow.connectors.kafka.dead_letters import Letter

    letter = Letter.of(message)
    found = {
        "position": f"{message.topic()}:{message.partition()}:{message.offset()}",
        "timestamp_ms": message.timestamp()[1],
        "key": (message.key() or b"").decode(errors="replace"),
        "record": _parsed(message),
    }
    return found if letter is None else found | {"error": letter.error}


def _parsed(message: Any) -> Any:
    """What a record holds: JSON, else text; None for a tombstone."""
    value = message.value()
    if value is None:
        return None
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value.decode(errors="replace")


def _short(name: str, record: Any, message: Any) -> str:
    if name == "dead_letters":
        from recallflow.connectors.kafka.dead_letters import Letter

        letter = Letter.of(message)
        return "not written by an engine" if letter is None else f"{letter.error.get('code')}: {letter.error['detail']}"
    if not isinstance(record, dict):
        return "(a tombstone)" if record is None else str(record)
    match name:
        case "memory" | "queries":
            said = next((record[one] for one in ("content", "query", "memory_id", "filter") if record.get(one)), "")
            return f"{record.get('type')} {said if isinstance(said, str) else orjson.dumps(said).decode()}"
        case "receipts":
            return f"{record.get('outcome')} {record.get('memory_id') or record.get('id')}"
    return _answered(record)


def _answered(response: dict[str, Any]) -> str:
    """How a query was answered. Anybody can write anything to a topic: what is no answer is shown as far as it is."""
    error, took, memories = (response.get(name) for name in ("error", "processing_time_ms", "memories"))
    parts, said = [str(response.get("status"))], error.get("message") if isinstance(error, dict) else None
    if isinstance(memories, list):
        parts.append(f"{len(memories)} memories")
        said = memories[0].get("content") if memories and isinstance(memories[0], dict) else said
    if isinstance(took, int | float):
        parts.append(f"{took:.1f} ms")
    return ", ".join(parts) + (f": {said}" if said else "")
