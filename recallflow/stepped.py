"""Work that pauses between bounded pieces, so that one query does not delay the queries of other tenants.

Code that reads records reports the cost of each piece to `spend`. Within `SteppedWork`, `spend` pauses the code when
the cost of the step reaches its limit; otherwise it has no effect. Pauses depend on the data, never on a clock."""

from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
STEP_COST = 2_000  # limit of a step: this number of records read, or equal work; about 25 ms


class SteppedWork(Generic[T]):
    """A function that runs in steps, all of them on one thread. `outcome` is its result, once it has returned."""

    outcome: T

    def __init__(self, function: Callable[[], T], step_cost: int | None = None) -> None:
        """`step_cost` is the limit of each step, by default `STEP_COST`."""
        self._greenlet, self._step_cost = _StepGreenlet(function), step_cost or STEP_COST
        self._greenlet.gr_context = copy_context()

    def step(self) -> bool:
        """Continue up to the next pause. Return whether the function has returned. Raise the function's error."""
        self._greenlet.remaining_cost = self._step_cost
        returned = self._greenlet.switch()
        if self._greenlet.dead:
            self.outcome = returned
        return bool(self._greenlet.dead)


class _StepGreenlet(greenlet):  # type: ignore[misc]
    remaining_cost = 0


def spend(cost: int) -> None:
    """Add the cost of a piece of work, in records read; pause at the limit of the step."""
    current = getcurrent()
    if type(current) is _StepGreenlet:
        current.remaining_cost -= cost
        if current.remaining_cost <= 0 and (parent := current.parent) is not None:
            del current  # a paused frame that refers to its own greenlet would never be freed
            parent.switch()


class Rotation:
    """Turns of the tenants whose queries take several steps, over all state partitions of a process: one step each."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, None]] = {}  # tenant → its partitions, both in the order of their turns

    def update(self, partition: int, tenants: set[str]) -> None:
        """Set the tenants with pending steps in a state partition."""
        for tenant_id in tenants:
            self._waiting.setdefault(tenant_id, {})[partition] = None
        for tenant_id in self._waiting.keys() - tenants:
            self._waiting[tenant_id].pop(partition, None)
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id]

    def take_turn(self, partition: int) -> str | None:
        """Return the tenant whose turn it is, and end the turn; None if its next step is in another state partition."""
        tenant_id = next(iter(self._waiting), None)
        if tenant_id is None or next(iter(self._waiting[tenant_id])) != partition:
            return None
        partitions = self._waiting.pop(tenant_id)
        partitions[partition] = partitions.pop(partition)
        self._waiting[tenant_id] = partitions
        return tenant_id
