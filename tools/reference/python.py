"""The public classes, with signatures, docstrings and results of their methods."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from recallflow import AsyncMemory, AsyncRecallClient, Memory, RecallClient
from recallflow.verbs import results
from tools.reference import markdown
from tools.reference.markdown import escaped, prose

INTRODUCTION = (
    "From this page you can call every method. `Memory` has its own engine, `RecallClient` uses an engine on Kafka. "
    "Both have the same methods, and an asyncio version. `send` and `ask` take [events](events.md) and "
    "[queries](queries.md); [errors](errors.md) lists the exceptions."
)
GIVEN = ("Added", "SearchResults", "Page", "MemoryVersion", "History", "Episodes", "FoundFacts", "Stats")
MODULE = re.compile(r"\b(?:recallflow|collections|typing|concurrent|pathlib|pydantic)[\w.]*\.(?=\w)")
UNIONS = ((r"Annotated\[Message \|.*?\)\]", "MemoryEvent"), (r"Annotated\[Recall \|.*?\)\]", "QueryEvent"),
          (r"Union\[(\w+), (\w+)\]", r"\1 | \2"), (r"mappingproxy\(\{\}\)", "{}"))  # fmt: skip
WIDE = 90


def page() -> str:
    """Return the page of all classes."""
    shared = [name for name, _ in _calls(Memory) if hasattr(RecallClient, name)]
    more = [name for name, _ in _calls(RecallClient) if name not in shared]
    return markdown.page(
        "Python",
        INTRODUCTION,
        *(
            _class(blocking, awaited)
            for blocking, awaited in ((Memory, AsyncMemory), (RecallClient, AsyncRecallClient))
        ),
        "## Methods\n\nMethods of all four classes; await them with `AsyncMemory` and `AsyncRecallClient`.",
        *map(_call, shared),
        "## Methods on Kafka only\n\nOperations of a tenant's operator.",
        *map(_call, more),
        "## Results\n\n`SearchResults`, `Page`, `History`, `Episodes` and `FoundFacts` are sequences.",
        *map(_given, GIVEN),
    )


def _class(blocking: type[Any], asynchronous: type[Any]) -> str:
    twin = f"`{asynchronous.__name__}` takes the same arguments. {escaped(prose(asynchronous))}"
    signature = _signature(blocking.__name__, blocking)
    parts = [f"## {blocking.__name__}", escaped(prose(blocking)), signature, escaped(prose(blocking.__init__)), twin]
    return "\n\n".join(parts)


def _calls(owner: type[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods of a class in the order of their definition."""
    for kind in reversed(owner.__mro__):
        for name, call in vars(kind).items():
            if not name.startswith("_") and callable(call):
                yield name, call


def _call(name: str) -> str:
    call = dict(_calls(RecallClient))[name]
    return f"### {name}\n\n{_signature(name, call)}\n\n{escaped(prose(call))}"


def _given(name: str) -> str:
    """Return the directive that mkdocstrings replaces by the documentation of a result."""
    options = "    options:\n      heading_level: 3\n      show_root_heading: true\n      show_root_full_path: false"
    return f"::: {getattr(results, name).__module__}.{name}\n{options}"


def _signature(name: str, call: Callable[..., Any]) -> str:
    """Return a signature without `self`, with the result of a future instead of the future."""
    found = inspect.signature(call)
    parameters = [one for one in found.parameters.values() if one.name != "self"]
    shown = [_plain(str(one)) for one in parameters]
    named = [at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY]
    if named:
        shown.insert(named[0], "*")
    gives = found.return_annotation
    outcome = "" if gives in (None, found.empty) else f" -> {_outcome(gives)}"
    whole = f"{name}({', '.join(shown)}){outcome}"
    if len(whole) > WIDE:
        whole = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){outcome}"
    return f"```text\n{whole}\n```"


def _outcome(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"^Future\[(.*)\]$", r"\1", _plain(text.strip("'\"")))


def _plain(text: str) -> str:
    text = MODULE.sub("", text)
    for written, name in UNIONS:
        text = re.sub(written, name, text)
    return text
