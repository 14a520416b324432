"""Waiting for a store that is away."""

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from recallflow.background import OUTAGE_S, Patience
from recallflow.errors import CheckpointError

PAUSE_S = 1.0  # between two attempts; pyarrow makes some of its own before it gives up one
# What a service says while it is away, or has too much to do. Anything else does not pass by waiting.
PASSING = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT|HTTP status 5\d\d"
    r"|[Uu]navailable|UNAVAILABLE|DEADLINE_EXCEEDED"
)

_T = TypeVar("_T")


class StoreAway(OSError):
    """A folder of checkpoints that was there at the start is not reachable. It may come back, as a mounted disk may."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Waiting:
    """`stopping`: once it is set, nothing more is tried."""

    stopping: threading.Event
    patience_s: float = OUTAGE_S

    def until_done(self, shown: str, what: str, call: Callable[[], _T]) -> _T:
        """What the call returns. Raises CheckpointError, and FileNotFoundError as it is."""
        patience = Patience(self.patience_s)
        waits = False
        while True:
            if self.stopping.is_set():
                raise CheckpointError(f"{shown}: stopped before it could {what}")
            try:
                return call()
            except FileNotFoundError:
                raise
            except OSError as error:
                said = " ".join(str(error).split())
                if not (isinstance(error, StoreAway) or PASSING.search(said)):
                    raise CheckpointError(f"{shown}: cannot {what}: {said}") from None
                if patience.ended():
                    raise CheckpointError(f"{shown}: could not {what} {patience}: {said}") from None
                if not waits:
                    _log.warning("%s is away, and waited for: %s", shown, said)
                waits = True
            self.stopping.wait(PAUSE_S)
