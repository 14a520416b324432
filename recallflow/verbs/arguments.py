"""Arguments of public calls: other libraries' names for them, and errors that name the call and the argument meant."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from recallflow.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

# Names in other libraries → ours, the first of them that a call has. Type checkers know ours alone.
_ALIASES = {"user_id": ("user",), "top_k": ("k", "limit"), "limit": ("k",), "k": ("limit",)}
_OF_THE_CALL = {"type", "tenant_id", "environment", "user_id"}  # event fields that are no arguments


class UnknownFields(UsageError):
    """Fields of a call that its event does not have. `known`: the event's own."""

    def __init__(self, event_type: str, names: Iterable[str], known: Iterable[str]) -> None:
        self.names, self.known = tuple(names), frozenset(known) - _OF_THE_CALL
        super().__init__(f"{event_type} has no field {', '.join(self.names)}")


def explained(call: Callable[P, T]) -> Callable[P, T]:
    """Return a method that takes arguments under other libraries' names, and whose errors name it and what is meant."""

    @functools.wraps(call)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        return called(args[0], call, args, kwargs)

    return method


def called(face: object, call: Callable[..., T], args: tuple[object, ...], kwargs: Mapping[str, Any]) -> T:
    """Call what a public method of `face` stands for.

    Raises:
        UsageError: An argument is given twice, or no field of the event has its name.
        TypeError: The arguments do not fit the call.
    """
    if not _ALIASES.keys().isdisjoint(kwargs):
        kwargs = _renamed(face, call, kwargs)
    try:
        return call(*args, **kwargs)
    except UnknownFields as error:
        known = error.known | _parameters(call).keys()
        unknown = "; ".join(f"unknown argument {name}{did_you_mean(name, known)}" for name in error.names)
        raise UsageError(f"{_public_name(face, call)}: {unknown}") from None
    except TypeError:
        _check_binding(face, call, args, kwargs)
        raise


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like a name, as a remark; nothing where none is."""
    close = get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _renamed(face: object, call: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    parameters, found = _parameters(call), dict(kwargs)
    for alias, names in _ALIASES.items():
        ours = next((name for name in names if name in parameters), None)
        if alias not in kwargs or alias in parameters or ours is None:
            continue
        if ours in found:
            raise UsageError(f"{_public_name(face, call)}: {ours} and {alias} are one argument: give {ours}")
        found[ours] = found.pop(alias)
    return found


def _check_binding(face: object, call: Callable[..., Any], args: tuple[object, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError where arguments do not fit a call, in words for its user."""
    try:
        inspect.signature(call).bind(*args, **kwargs)
    except TypeError as error:
        parameters = _parameters(call)
        meant = {name: did_you_mean(name, parameters.keys() - kwargs.keys()) for name in kwargs.keys() - parameters}
        hints = "".join(f"; {name} is no argument{hint}" for name, hint in sorted(meant.items()) if hint)
        raise TypeError(f"{_public_name(face, call)} {error}{hints}") from None


@functools.cache
def _parameters(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that a user names."""
    skipped = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    every = inspect.signature(call).parameters
    return {name: one for name, one in every.items() if one.kind not in skipped and name != "self"}


def _public_name(face: object, call: Callable[..., Any]) -> str:
    name = type(face).__name__
    return f"{name}()" if call.__name__ == "__init__" else f"{name}.{call.__name__}()"
