"""recallflow: an event-driven memory engine for chat platforms on Kafka.

This package exports `Memory`, an engine in your program; `RecallClient`, a client of an engine on Kafka; events,
responses and errors.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from recallflow.distribution import __version__ as __version__

if TYPE_CHECKING:
    from recallflow.client import AsyncRecallClient as AsyncRecallClient
    from recallflow.client import RecallClient as RecallClient
    from recallflow.embedder import Embedder as Embedder
    from recallflow.embedder import TokenCounter as TokenCounter
    from recallflow.memory import AsyncMemory as AsyncMemory
    from recallflow.memory import Memory as Memory
    from recallflow.public import *  # noqa: F403 - all of its names are public

# Modules of names with heavy imports. All other names are in `public`.
_MODULES = {
    "AsyncMemory": "recallflow.memory", "AsyncRecallClient": "recallflow.client", "Embedder": "recallflow.embedder",
    "Memory": "recallflow.memory", "RecallClient": "recallflow.client", "TokenCounter": "recallflow.embedder",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load all names with the first one: a process has to handle a stop signal before the imports."""
    if find_spec(f"{__name__}.{name}") is not None:  # a module of ours: Python looks here before it imports it
        raise AttributeError(name)
    try:
        module = import_module(_MODULES.get(name, "recallflow.public"))
        if name == "__all__":
            found: Any = sorted(_MODULES.keys() | {one for one in dir(module) if not one.startswith("_")})
        else:
            found = getattr(module, name)
    except ModuleNotFoundError as error:
        to_install = import_module("recallflow.distribution").remedy_for(error)
        if to_install is None:
            raise
        raise ImportError(f"recallflow.{name}: {to_install}") from None
    globals()[name] = found  # so that it is looked for once
    return found
