"""Decides when a failed call is tried again."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Backoff = Callable[[int], float]
"""Seconds to wait after so many failed attempts of a call."""


def full_jitter(base_s: float = 0.5, most_s: float = 30.0, draw: Callable[[], float] = random.random) -> Backoff:
    """Waits a random time up to an exponentially growing bound, so that calls that failed together are not tried again
    together.

    :arg draw: Returns a number in [0, 1). Only the loop thread calls it: a logic's outputs must not depend on chance.
    """
    return lambda failures: draw() * min(most_s, base_s * 2 ** min(failures - 1, 30))


def any_error(error: Exception) -> bool:  # noqa: ARG001
    return True


def errors_of(*kinds: type[Exception]) -> Callable[[Exception], bool]:
    """Only errors of these classes."""
    return lambda error: isinstance(error, kinds)


@dataclass(frozen=True, slots=True)
class Retry:
    """When to try again.

    :arg attempts: In all, the first included.

    :arg backoff: How long to wait before the next.

    :arg when: Which errors are worth another attempt. A timeout is a `TimeoutError`.
    """

    attempts: int = 3
    backoff: Backoff = field(default_factory=full_jitter)
    when: Callable[[Exception], bool] = any_error
