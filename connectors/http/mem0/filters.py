"""mem0's filters as ours. What has no equal is refused by its name: left out, it would widen what is asked for."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from recallflow.connectors.http.mem0.entities import AGENT, AGENT_LABEL, APP, ENTITIES, RUN, USER, invalid, owner_of
from recallflow.fields import parse_time
from recallflow.limits import FILTER_LEVELS_MAX

_LOGIC = {"AND": "all", "OR": "any", "NOT": "not"}
_FIELDS = (AGENT, APP, RUN, "categories", "created_at", "metadata")
_ANY = "*"
_Maker = Callable[[list[Any]], dict[str, Any]]  # values → a filter of ours


class Asked(NamedTuple):
    """Whose memories are asked for, and which of them."""

    user_id: str
    filters: dict[str, Any]


def asked(given: Mapping[str, Any] | None, entities: Mapping[str, str]) -> Asked:
    """Reads `filters` together with entities that were given beside them. Raises InvalidRecord."""
    named, conditions = _split(given or {}, entities)
    user_id, kind = owner_of(named)
    conditions += [{entity: name} for entity, name in named.items() if entity != kind]
    ours = [one for condition in conditions for one in _converted(condition, 1)]
    return Asked(user_id, {"all": ours} if ours else {})


def entities_alone(given: Mapping[str, Any] | None, entities: Mapping[str, str]) -> dict[str, str]:
    """The same where filters may name entities, and nothing else. Raises InvalidRecord."""
    named, conditions = _split(given or {}, entities)
    if conditions:
        raise invalid(f"filters.{next(iter(conditions[0]))}", f"is no entity; there are {', '.join(ENTITIES)}")
    return named


def _split(given: Mapping[str, Any], entities: Mapping[str, str]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Entities that must be so, and the other conditions."""
    named, conditions = dict(entities), []
    for field, value in _at_the_root(given):
        name = _one_name(value)
        if field not in ENTITIES or name is None:
            conditions.append({field: value})
        elif named.setdefault(field, name) != name:
            raise invalid(f"filters.{field}", "is given twice, and differs")
    return named, conditions


def _at_the_root(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Conditions that must all hold: those at the top, and those of an AND there."""
    for field, value in given.items():
        if field == "AND":
            for one in _conditions(field, value):
                yield from one.items()
        else:
            yield field, value


def _one_name(value: Any) -> str | None:
    if isinstance(value, dict) and value.keys() == {"eq"}:
        value = value["eq"]
    if isinstance(value, dict) and value.keys() == {"in"} and isinstance(value["in"], list) and len(value["in"]) == 1:
        value = value["in"][0]
    return value if isinstance(value, str) and value not in ("", _ANY) else None


def _conditions(field: str, value: Any) -> list[dict[str, Any]]:
    several = value if isinstance(value, list) else [value]
    if not several or not all(isinstance(one, dict) and one for one in several):  # an empty one would let all through
        raise invalid(f"filters.{field}", "is no list of conditions")
    return several


def _converted(condition: Mapping[str, Any], level: int) -> Iterator[dict[str, Any]]:
    """Filters of ours that must all hold. Raises InvalidRecord."""
    if level > FILTER_LEVELS_MAX:
        raise invalid("filters", f"nests more than {FILTER_LEVELS_MAX} levels deep; flatten it")
    for field, value in condition.items():
        if field in _LOGIC:
            inner = [[*_converted(one, level + 1)] for one in _conditions(field, value)]
            yield {_LOGIC[field]: [{"all": every} if len(every) != 1 else every[0] for every in inner if every]}
        elif field == "created_at":
            yield _span(value)
        elif field == "metadata":
            if not isinstance(value, dict) or not value:
                raise invalid("filters.metadata", "is no object of fields and values")
            for name, wanted in value.items():
                yield from _compared(f"metadata.{name}", wanted, partial(_metadata, name))
        elif field in _FIELDS:
            yield from _compared(field, value, _MAKERS[field])
        elif field == USER:
            raise invalid("filters.user_id", "may be one user, at the top or in its AND: each user's memory is apart")
        else:
            raise invalid(
                f"filters.{field}", f"is not supported; there are {', '.join((*ENTITIES, *_FIELDS[3:], *_LOGIC))}"
            )


def _compared(field: str, value: Any, make: _Maker) -> Iterator[dict[str, Any]]:
    """Equality with one value, or with any of several, or the contrary."""
    operators = value if isinstance(value, dict) else {"in" if isinstance(value, list) else "eq": value}
    if not operators:
        raise invalid(f"filters.{field}", "names no value")
    for operator, operand in operators.items():
        values = operand if isinstance(operand, list) else [operand]
        if _ANY in values:
            raise invalid(f"filters.{field}", "cannot be any (*): name a value, or leave it out")
        match operator:
            case "eq" | "in":
                yield make(values)
            case "contains" if field == "categories":
                yield make(values)
            case "ne" | "nin":
                yield {"not": make(values)}
            case _:
                raise invalid(f"filters.{field}.{operator}", "is not supported; there are eq, ne, in, nin")


def _metadata(name: str, values: list[Any]) -> dict[str, Any]:
    return {"metadata": {name: values}}


_MAKERS: Mapping[str, _Maker] = {
    AGENT: partial(_metadata, AGENT_LABEL),
    APP: lambda values: {"any": [{"project_id": value} for value in values]},
    RUN: lambda values: {"session_ids": values},
    "categories": lambda values: {"categories": values},
}


def _span(value: Any) -> dict[str, Any]:
    """From a time on, and before one; ours are inclusive and exclusive, by the millisecond."""
    if not isinstance(value, dict) or not value:
        raise invalid("filters.created_at", "give an object of gt, gte, lt, lte")
    span: dict[str, Any] = {}
    for operator, moment in value.items():
        try:
            at_ms = parse_time(moment)
        except ValueError as error:
            raise invalid(f"filters.created_at.{operator}", str(error)) from None
        match operator:
            case "gte" | "gt":
                span["created_after"] = max(at_ms + (operator == "gt"), span.get("created_after", at_ms))
            case "lt" | "lte":
                span["created_before"] = min(at_ms + (operator == "lte"), span.get("created_before", at_ms + 1))
            case _:
                raise invalid(f"filters.created_at.{operator}", "is not supported; there are gt, gte, lt, lte")
    return span
