"""The classes that people call, with each call's signature and docstring, and what the calls give."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from recallflow import AsyncMemory, AsyncRecallClient, Memory, RecallClient
from recallflow.verbs import results
from tools.reference import markdown
from tools.reference.markdown import escaped, prose

TOLD = (
    "`Memory` has its engine in the same process, `RecallClient` asks one over Kafka; both have the same calls, and of "
    "each there is a class whose calls are awaited. The events and queries that `send` and `ask` take are in "
    "[events](events.md) and [queries](queries.md), errors in [errors](errors.md)."
)
GIVEN = ("Added", "Found", "Page", "MemoryVersion", "History", "Episodes", "FoundFacts", "Stats")
MODULE = re.compile(r"\b(?:recallflow|collections|typing|concurrent|pathlib|pydantic)[\w.]*\.(?=\w)")
UNIONS = ((r"Annotated\[Message \|.*?\)\]", "MemoryEvent"), (r"Annotated\[Recall \|.*?\)\]", "QueryEvent"),
          (r"Union\[(\w+), (\w+)\]", r"\1 | \2"), (r"mappingproxy\(\{\}\)", "{}"))  # fmt: skip
WIDE = 90


def page() -> str:
    """The page on all of them."""
    shared = [name for name, _ in _calls(Memory) if hasattr(RecallClient, name)]
    more = [name for name, _ in _calls(RecallClient) if name not in shared]
    return markdown.page(
        "Python",
        TOLD,
        *(_class(waiting, awaited) for waiting, awaited in ((Memory, AsyncMemory), (RecallClient, AsyncRecallClient))),
        "## Calls\n\nThose of all four classes; with `AsyncMemory` and `AsyncRecallClient`, `await` each.",
        *map(_call, shared),
        "## Calls on Kafka alone\n\nWhat a tenant's operator does.",
        *map(_call, more),
        "## What calls give\n\n`Found`, `Page`, `History`, `Episodes` and `FoundFacts` are sequences.",
        *map(_given, GIVEN),
    )


def _class(waiting: type[Any], awaited: type[Any]) -> str:
    twin = f"`{awaited.__name__}` takes the same arguments. {escaped(prose(awaited))}"
    signature = _signature(waiting.__name__, waiting)
    told = [f"## {waiting.__name__}", escaped(prose(waiting)), signature, escaped(prose(waiting.__init__)), twin]
    return "\n\n".join(told)


def _calls(owner: type[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public calls of a class, in the order in which they are defined."""
    for kind in reversed(owner.__mro__):
        for name, call in vars(kind).items():
            if not name.startswith("_") and callable(call):
                yield name, call


def _call(name: str) -> str:
    call = dict(_calls(RecallClient))[name]
    return f"### {name}\n\n{_signature(name, call)}\n\n{escaped(prose(call))}"


def _given(name: str) -> str:
    """mkdocstrings makes the text."""
    options = "    options:\n      heading_level: 3\n      show_root_heading: true\n      show_root_full_path: false"
    return f"::: {results.__name__}.{name}\n{options}"


def _signature(name: str, call: Callable[..., Any]) -> str:
    """As a call is written: without the object, and with what comes of it in place of its future."""
    found = inspect.signature(call)
    parameters = [one for one in found.parameters.values() if one.name != "self"]
    told = [_plain(str(one)) for one in parameters]
    named = [at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY]
    if named:
        told.insert(named[0], "*")
    gives = found.return_annotation
    outcome = "" if gives in (None, found.empty) else f" -> {_outcome(gives)}"
    whole = f"{name}({', '.join(told)}){outcome}"
    if len(whole) > WIDE:
        whole = f"{name}(\n" + "".join(f"    {one},\n" for one in told) + f"){outcome}"
    return f"```text\n{whole}\n```"


def _outcome(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"^Future\[(.*)\]$", r"\1", _plain(text.strip("'\"")))


def _plain(text: str) -> str:
    text = MODULE.sub("", text)
    for written, name in UNIONS:
        text = re.sub(written, name, text)
    return text
