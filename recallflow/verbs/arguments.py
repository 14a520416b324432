"""Arguments of public calls: names from other libraries, chat messages, checks, and the scope of a client."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from enum import Enum
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast
from uuid import UUID

import orjson
from pydantic import BaseModel

from recallflow.control import DEFAULT, Control
from recallflow.errors import UsageError
from recallflow.events import Event, MemoryEvent
from recallflow.fields import nearest
from recallflow.limits import PROBLEMS_MAX
from recallflow.parsing import MAX_DEPTH, parse, parse_control, unknown_fields
from recallflow.queries import QueryEvent
from recallflow.records import Position

P = ParamSpec("P")
T = TypeVar("T")
# Another library's argument name → ours: the first that the method has is used. Type checkers accept ours only.
_ALIASES = {"user_id": ("user",), "top_k": ("k", "limit"), "limit": ("k",), "k": ("limit",)}
_SET_BY_CLIENT = {"type", "tenant_id", "environment", "user_id"}  # event fields that a caller cannot pass
# Fields of a chat message that events do not have: they are stored in the metadata.
UNMAPPED = "tool_calls", "tool_call_id", "function_call", "refusal", "audio", "annotations", "reasoning_content"
_INTEGERS = range(-(2**63), 2**64)
_WAIT_MIN_S, _WAIT_MAX_S = 0.001, 2_147_483.0  # librdkafka counts milliseconds in 31 bits, and 0 means "for ever"
AnyEvent = MemoryEvent | QueryEvent


class UnknownFields(UsageError):
    """The call has arguments that are no fields of its event. `known` are the fields that the event has."""

    def __init__(self, event_type: str, names: Iterable[str], known: Iterable[str]) -> None:
        self.names, self.known = tuple(names), frozenset(known) - _SET_BY_CLIENT
        super().__init__(f"{event_type} has no field {', '.join(self.names)}")


def with_argument_help(call: Callable[P, T]) -> Callable[P, T]:
    """Return a method that also accepts argument names of other libraries. Its errors contain the call and a remedy."""

    @functools.wraps(call)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        return call_with_help(args[0], call, args, kwargs)

    return method


def call_with_help(client: object, call: Callable[..., T], args: tuple[object, ...], kwargs: Mapping[str, Any]) -> T:
    """Call the implementation of a public method of `client`.

    Raises:
        UsageError: an argument is given twice, or no field of the event has its name.
        TypeError: the arguments do not fit the call."""
    if not _ALIASES.keys().isdisjoint(kwargs):
        kwargs = _renamed(client, call, kwargs)
    try:
        return call(*args, **kwargs)
    except UnknownFields as error:
        known = error.known | _parameters(call).keys()
        unknown = "; ".join(f"unknown argument {name}{did_you_mean(name, known)}" for name in error.names)
        raise UsageError(f"{_public_name(client, call)}: {unknown}") from None
    except TypeError:
        _check_args(client, call, args, kwargs)
        raise


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown name; an empty text without a similar known name."""
    similar = nearest(name, [*known])
    return f" (did you mean {similar}?)" if similar else ""


def _renamed(client: object, call: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    parameters, renamed = _parameters(call), dict(kwargs)
    for alias, names in _ALIASES.items():
        ours = next((name for name in names if name in parameters), None)
        if alias not in kwargs or alias in parameters or ours is None:
            continue
        if ours in renamed:
            raise UsageError(f"{_public_name(client, call)}: {ours} and {alias} are one argument: give {ours}")
        renamed[ours] = renamed.pop(alias)
    return renamed


def _check_args(client: object, call: Callable[..., Any], args: tuple[object, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError, worded for users, if arguments do not fit a call."""
    try:
        inspect.signature(call).bind(*args, **kwargs)
    except TypeError as error:
        parameters = _parameters(call)
        free, unknown = parameters.keys() - kwargs.keys(), sorted(kwargs.keys() - parameters)
        hints = "".join(f"; {name} is no argument{hint}" for name in unknown if (hint := did_you_mean(name, free)))
        raise TypeError(f"{_public_name(client, call)} {error}{hints}") from None


@functools.cache
def _parameters(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that a user can name."""
    unnamed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(call).parameters
    return {name: one for name, one in parameters.items() if one.kind not in unnamed and name != "self"}


def _public_name(client: object, call: Callable[..., Any]) -> str:
    name = type(client).__name__
    return f"{name}()" if call.__name__ == "__init__" else f"{name}.{call.__name__}()"


def message_fields(message: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    """Return the event fields of a message. Raise UsageError for an invalid message."""
    content: object = message.model_dump(exclude_none=True) if isinstance(message, BaseModel) else message
    if not isinstance(content, Mapping):
        kind = type(message).__name__
        raise UsageError(f"add: give a text, a message ({{'role': …, 'content': …}}) or a list of messages, not {kind}")
    if "role" not in content:
        raise UsageError("add: a message needs its role: user, assistant, system, developer, tool or function")
    fields = {name: value for name, value in content.items() if name not in UNMAPPED}
    metadata = {name: content[name] for name in UNMAPPED if content.get(name) is not None}
    if fields.get("name") is None:
        fields.pop("name", None)
    if metadata:  # such a message may have no content; some APIs then return ""
        fields["content"] = fields.get("content") or None
        fields["metadata"] = {**(fields.get("metadata") or {}), **metadata}
    return fields


def check_sendable(event_type: str, fields: Mapping[str, Any]) -> None:
    """Raise UsageError with the first 20 fields that cannot be sent, and the reasons."""
    if problems := [*_problems(fields, "", MAX_DEPTH)]:
        raise UsageError(f"{event_type}: {'; '.join(problems[:PROBLEMS_MAX])}")


def checked_wait(name: str, value: object) -> float:
    """Return a time limit in seconds. Raise UsageError for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _WAIT_MIN_S <= value <= _WAIT_MAX_S:
        raise UsageError(f"{name} must be {_WAIT_MIN_S:g} to {_WAIT_MAX_S:,.0f} seconds, not {value!r}")
    return value


def checked_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be text, not {value!r}")
    return value


def _problems(value: object, path: str, levels: int) -> Iterator[str]:
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, BaseModel):
        value = value.__dict__ | (value.model_extra or {})
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case _ if levels < 0:
            yield f"{path}: nested more than {MAX_DEPTH} levels deep"
        case str():
            if not _is_unicode(value):
                yield f"{path}: contains half a character (a lone surrogate)"
        case int():
            if value not in _INTEGERS:
                yield f"{path}: an integer beyond 64 bits; send it as text"
        case float():
            if not math.isfinite(value):
                yield f"{path}: {value} is no number in JSON; leave it out"
        case None | date() | time() | UUID() | Position():  # null, or sent as text
            return
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str) or not _is_unicode(key):
                    yield f"{path}: the key {key!r} is no valid text"
                else:
                    yield from _problems(item, f"{path}.{key}" if path else key, levels - 1)
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            for number, item in enumerate(value):
                yield from _problems(item, f"{path}.{number}", levels - 1)
        case _:
            yield f"{path}: {type(value).__name__} cannot be sent; give text, a number, a list or a mapping"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ClientScope(NamedTuple):
    """Tenant and environment of a client."""

    tenant_id: str
    environment: str

    def event(self, event_type: str, user_id: str, fields: Mapping[str, Any]) -> AnyEvent:
        """Return the event as the engine would parse it. Raise InvalidRecord and UsageError."""
        for name in ("type", "user_id"):
            if name in fields:
                raise UsageError(f"{event_type}: {name} is set by the call: leave it out, or use send()")
        event_fields = self._asdict() | dict(fields) | {"type": event_type, "user_id": user_id}
        check_sendable(event_type, event_fields)
        try:
            event = parse(orjson.dumps(event_fields, default=_jsonable))
        except orjson.JSONEncodeError as error:
            raise UsageError(f"{event_type}: {error}") from error
        if unknown := unknown_fields(event):
            raise UnknownFields(event_type, unknown, type(event).model_fields)
        return self.checked(cast(AnyEvent, event))

    def control_event(self, event_type: str, fields: Mapping[str, Any]) -> Control:
        """Return a control event for the whole tenant. Raise InvalidRecord."""
        event_fields = {"type": event_type, "tenant_id": self.tenant_id, "name": DEFAULT, **fields}
        check_sendable(event_type, event_fields)
        return parse_control(orjson.dumps(event_fields, default=_jsonable))

    def parsed(self, event: object) -> AnyEvent:
        """Return the event as the engine would parse it. Raise InvalidRecord and UsageError."""
        if not isinstance(event, Event) or not hasattr(event, "type"):
            kind = type(event).__name__
            raise UsageError(f"not an event but {kind}; give one of recallflow's events (Message, Recall, …)")
        check_sendable(str(event.type), event.__dict__ | (event.model_extra or {}))
        return self.checked(cast(AnyEvent, parse(event.model_dump_json(exclude_unset=True, warnings=False).encode())))

    def checked(self, event: AnyEvent) -> AnyEvent:
        """Return the event. Raise UsageError for another tenant or environment; an erasure may have no environment."""
        for name, ours in self._asdict().items():
            if (theirs := getattr(event, name)) not in (ours, None):
                raise UsageError(f"{name} is {theirs!r}, and this client is for {ours!r}")
        return event


def _jsonable(value: object) -> Any:
    """Convert values for orjson: models, positions, mappings and sequences."""
    if isinstance(value, Position):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{value!r} cannot be sent")
