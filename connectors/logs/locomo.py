"""LoCoMo samples (two people, many sessions) as message events.

    [{"sample_id": "conv-1", "conversation": {"session_1_date_time": "1:56 pm on 8 May, 2023",
                                              "session_1": [{"speaker", "dia_id", "text", "blip_caption"?}]}}]

An event here is a dict without tenant and environment, which this format does not contain. Invalid data becomes an
invalid event, which is refused with its wrong fields, and never left out.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from recallflow.connectors.logs.building import EVENT_BYTES, encode_event
from recallflow.connectors.logs.documents import elements, first_objects, parsed
from recallflow.connectors.logs.model import ImportScope, LogFormat, LogHead, LogSource

_SESSION = re.compile(r"session_(\d+)")
_TIME = "%I:%M %p on %d %B, %Y"


def _recognises(head: LogHead) -> bool:
    return any("conversation" in one and "sample_id" in one for one in first_objects(head.start))


def _read(source: LogSource, scope: ImportScope) -> Iterator[bytes]:
    """Yield the events sample by sample, session by session in numeric order, turn by turn."""
    with source.open() as file:
        for text in elements(file):
            sample = parsed(text)
            if sample is None and text != b"null":
                yield text[:EVENT_BYTES]
            else:
                yield from (encode_event(scope, event) for event in _events(sample, scope))


def _events(sample: object, scope: ImportScope) -> Iterator[dict[str, Any]]:
    conversation = sample.get("conversation") if isinstance(sample, dict) else None
    if not isinstance(sample, dict) or not isinstance(conversation, dict):
        yield _misfit({}, sample)
        return
    # Without a name, none of several samples belongs to the default owner: its events have no owner, and are refused.
    owner = {} if scope.user_given and "sample_id" not in sample else {"user_id": sample.get("sample_id")}
    for number, session in _sessions(conversation):
        yield from _turns(owner | _session_fields(conversation, session), number, conversation[session])


def _sessions(conversation: dict[str, Any]) -> list[tuple[int, str]]:
    found = ((_SESSION.fullmatch(key), key) for key in conversation)
    return sorted((int(match[1]), key) for match, key in found if match)


def _session_fields(conversation: dict[str, Any], session: str) -> dict[str, Any]:
    written = conversation.get(f"{session}_date_time")
    return {"session_id": session} | ({} if written is None else {"timestamp": _time(written)})


def _time(written: object) -> object:
    """Convert `1:56 pm on 8 May, 2023` to RFC 3339 in UTC. Other values stay, and are refused as timestamps."""
    try:
        return datetime.strptime(str(written), _TIME).replace(tzinfo=UTC).isoformat()
    except ValueError:
        return written


def _turns(fields: dict[str, Any], number: int, turns: object) -> Iterator[dict[str, Any]]:
    if not isinstance(turns, list):
        yield _misfit(fields, turns)
        return
    for place, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            yield _misfit(fields, turn)
            continue
        message = {"type": "message", "id": turn.get("dia_id", f"D{number}:{place}"), **fields, "role": "user"}
        yield message | {"name": turn.get("speaker")} | _content(turn)


def _content(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the text and the caption of the image; an empty content if the turn has neither."""
    text, caption = turn.get("text"), turn.get("blip_caption")
    if not caption:
        return {"content": text} if text is not None else {}
    image = f"[image: {caption}]"
    return {"content": f"{text} {image}" if text else image}


def _misfit(fields: dict[str, Any], value: object) -> dict[str, Any]:
    return {"type": "message", **fields, "role": None, "metadata": {"malformed": value}}


LOCOMO = LogFormat(
    "locomo",
    "LoCoMo samples (sample_id and conversation)",
    _recognises,
    _read,
    fields=("sample_id", "conversation", "speaker_a", "speaker_b", "dia_id", "qa"),
)
