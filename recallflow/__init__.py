"""recallflow: an event-driven memory engine for chat platforms on Kafka.

Here is what users import: `Memory`, an engine in their own program, and `RecallClient`, for one on Kafka; the events
that go in, the responses that come out, and the errors.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from recallflow.version import __version__ as __version__

if TYPE_CHECKING:
    from recallflow.client import AsyncRecallClient as AsyncRecallClient
    from recallflow.client import RecallClient as RecallClient
    from recallflow.embedder import Embedder as Embedder
    from recallflow.embedder import TokenCounter as TokenCounter
    from recallflow.memory import AsyncMemory as AsyncMemory
    from recallflow.memory import Memory as Memory
    from recallflow.public import *  # noqa: F403 - it gives what is listed there

# What brings much with it is loaded for who asks for it alone.
APART = {
    "AsyncMemory": "recallflow.memory",
    "AsyncRecallClient": "recallflow.client",
    "Embedder": "recallflow.embedder",
    "Memory": "recallflow.memory",
    "RecallClient": "recallflow.client",
    "TokenCounter": "recallflow.embedder",
}


def __getattr__(name: str) -> Any:
    """Loads it all with the first name that is asked for: a process that is told to stop must hear that before."""
    if find_spec(f"{__name__}.{name}") is not None:  # a module of ours: Python looks here before it imports it
        raise AttributeError(name)
    try:
        found = getattr(import_module(APART.get(name, "recallflow.public")), name)
    except ModuleNotFoundError as error:
        to_install = import_module("recallflow.extras").way_out(error)
        if to_install is None:
            raise
        raise ImportError(f"recallflow.{name}: {to_install}") from None
    globals()[name] = found  # so that it is looked for once
    return found
