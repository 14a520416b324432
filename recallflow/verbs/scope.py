"""What a client may send: events of its own tenant and environment."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from recallflow.control import DEFAULT, Control
from recallflow.errors import UsageError
from recallflow.events import Event, MemoryEvent
from recallflow.parsing import parse, parse_control, unknown_fields
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.verbs.arguments import UnknownFields
from recallflow.verbs.sendable import check_sendable

AnyEvent = MemoryEvent | QueryEvent


class Scope(NamedTuple):
    """The hard scope of everything a client does."""

    tenant_id: str
    environment: str

    def event(self, event_type: str, user_id: str, fields: Mapping[str, Any]) -> AnyEvent:
        """The event, as the engine would read it. Raises InvalidRecord with the engine's own words."""
        for name in ("type", "user_id"):
            if name in fields:
                raise UsageError(
                    f"{name} is the call's own to say: {event_type} of user {user_id}; leave it out, or use send()"
                )
        given = self._asdict() | dict(fields) | {"type": event_type, "user_id": user_id}
        check_sendable(event_type, given)
        try:
            event = parse(orjson.dumps(given, default=_jsonable))
        except orjson.JSONEncodeError as error:
            raise UsageError(f"{event_type}: {error}") from error
        if unknown := unknown_fields(event):
            raise UnknownFields(event_type, unknown, type(event).model_fields)
        return self.checked(cast(AnyEvent, event))

    def decision(self, event_type: str, fields: Mapping[str, Any]) -> Control:
        """A control event that holds for the whole tenant, as the engine would read it. Raises InvalidRecord."""
        given = {"type": event_type, "tenant_id": self.tenant_id, "name": DEFAULT, **fields}
        check_sendable(event_type, given)
        return parse_control(orjson.dumps(given, default=_jsonable))

    def built(self, event: object) -> AnyEvent:
        """An event that the caller has built, as the engine would read it. Raises UsageError for what is none, or is
        another tenant's or environment's, and InvalidRecord for one that was changed into something wrong."""
        if not isinstance(event, Event) or not hasattr(event, "type"):
            raise UsageError(
                f"not an event but {type(event).__name__}; give one of recallflow's events (Message, Recall, …)"
            )
        check_sendable(str(event.type), event.__dict__ | (event.model_extra or {}))
        return self.checked(cast(AnyEvent, parse(event.model_dump_json(exclude_unset=True, warnings=False).encode())))

    def checked(self, event: AnyEvent) -> AnyEvent:
        """The event itself. Raises UsageError where it is another tenant's or environment's. An erasure of a user may
        be of all environments."""
        for name, ours in self._asdict().items():
            if (theirs := getattr(event, name)) not in (ours, None):
                raise UsageError(f"{name} is {theirs!r}, and this client is for {ours!r}")
        return event


def _jsonable(value: object) -> Any:
    """What orjson does not know: our own models and positions within the fields of a call."""
    if isinstance(value, Position):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{value!r} cannot be sent")
