"""How a service is called, and when a call that failed is tried again."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal, NamedTuple

FIRST_WAIT_S = 0.5
MOST_WAIT_S = 60.0  # before a further attempt, whatever a service says


Waits = Literal["never", "for a limit", "always"]


def no_limit(tenant_id: str) -> int | None:  # noqa: ARG001
    return None


class Surroundings(NamedTuple):
    """Time and chance. `now_s`: from any start; `epoch_s`: since 1970; `draw`: a number in [0, 1)."""

    now_s: Callable[[], float] = time.monotonic
    epoch_s: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    draw: Callable[[], float] = random.random


@dataclass(frozen=True)
class Policy:
    """`attempts`: of a call, the first included. `waits`: whether a call waits while the service is left alone, or
    fails; `for a limit` where that is because it takes only so many calls, which then costs no attempt either.
    `capacity`: calls under way, a further one fails; None is no bound. `limit`: tokens that a tenant may spend a day,
    and `spending` the file that remembers what it spent across restarts."""

    attempts: int = 1
    waits: Waits = "never"
    capacity: int | None = None
    limit: Callable[[str], int | None] = no_limit
    spending: Path | None = None
    around: Surroundings = field(default_factory=Surroundings)

    def wait_s(self, failures: int, retry_after: str | None) -> float:
        """How long before the next attempt: a random time up to a bound that doubles, so that calls that failed
        together are not tried again together, and no shorter than the service wants."""
        most_s = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** (failures - 1))
        return max(self.around.draw() * most_s, self.asked_s(retry_after))

    def asked_s(self, retry_after: str | None) -> float:
        """How long a service wants to be left alone: seconds, or a date of HTTP's. 0 where it says nothing."""
        if retry_after is None:
            return 0.0
        try:
            seconds = float(retry_after)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(retry_after).timestamp() - self.around.epoch_s()
            except (ValueError, OverflowError):
                return 0.0
        return min(MOST_WAIT_S, max(0.0, seconds))
