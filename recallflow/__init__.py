"""recallflow: an event-driven memory engine for chat platforms on Kafka.

Exports `Memory`, an engine in your program; `RecallClient`, a client of an engine on Kafka; events, responses, errors.
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

# Names with heavy imports, and their modules. All other names are in `public`.
_MODULES = {
    "AsyncMemory": "recallflow.memory", "AsyncRecallClient": "recallflow.client", "Embedder": "recallflow.embedder",
    "Memory": "recallflow.memory", "RecallClient": "recallflow.client", "TokenCounter": "recallflow.embedder",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: commands install signal handlers before these slow imports."""
    if find_spec(f"{__name__}.{name}") is not None:  # a submodule: Python asks here before it imports the submodule
        raise AttributeError(name)
    try:
        module = import_module(_MODULES.get(name, "recallflow.public"))
        if name == "__all__":
            value: Any = sorted(_MODULES.keys() | {public for public in dir(module) if not public.startswith("_")})
        else:
            value = getattr(module, name)
    except ModuleNotFoundError as error:
        remedy = import_module("recallflow.distribution").remedy_for(error)
        if remedy is None:
            raise
        raise ImportError(f"recallflow.{name}: {remedy}") from None
    globals()[name] = value  # Python calls this function once for each name
    return value
