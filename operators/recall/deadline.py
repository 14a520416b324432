"""Tiers, what they may take, and which optional steps a query close to its deadline goes without."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Literal

from recallflow.responses import Tier, Warn

Step = Literal["dense", "graph", "llm"]

# What the costliest step that ran makes of an answer; without any of them it is `fast`.
TIER_OF: Mapping[Step, Tier] = MappingProxyType({"dense": "standard", "graph": "graph", "llm": "llm"})
TARGET_MS: Mapping[Tier, float] = MappingProxyType({"fast": 10.0, "standard": 50.0, "graph": 100.0, "llm": 1_500.0})
DROPPED_FIRST: tuple[Step, ...] = ("llm", "graph", "dense")  # the costliest first
REST = "rest"  # what every query has ahead once it is understood, beside optional steps
NEWEST = 0.2  # what the latest run counts in a mean
FORGIVEN = 0.9  # what is left of a mean after a drop


def tier_of(ran: Collection[Step]) -> Tier:
    """The tier of an answer for which these steps ran."""
    return next((TIER_OF[step] for step in DROPPED_FIRST if step in ran), "fast")


class Costs:
    """What each step took lately, in ms: a process's own experience, no part of the state. Only queries that give a
    target read it."""

    def __init__(self) -> None:
        self._mean_ms: dict[str, float] = {}

    def took(self, step: str, ms: float) -> None:
        """Counts one run in."""
        before = self._mean_ms.get(step, ms)
        self._mean_ms[step] = before + NEWEST * (ms - before)

    def dropped(self, step: Step) -> None:
        """A step that is not run is not measured either: without this, one slow run would drop it for good."""
        if step in self._mean_ms:
            self._mean_ms[step] *= FORGIVEN

    def expected_ms(self, step: str) -> float:
        """The running mean; 0 for what never ran."""
        return self._mean_ms.get(step, 0.0)


class Deadline:
    """The time a query gave itself; endless where it gave none. `timer`: seconds, from any start."""

    def __init__(self, timer: Callable[[], float], target_ms: float | None, costs: Costs) -> None:
        self.target_ms = target_ms
        self._timer = timer
        self._ends_s = None if target_ms is None else timer() + target_ms / 1000
        self._costs = costs

    def drops(self, ahead: Collection[Step]) -> list[Step]:
        """Which of the optional steps ahead to go without, so that the others and the rest end in time."""
        if self._ends_s is None:
            return []
        left_ms = (self._ends_s - self._timer()) * 1000 - self._costs.expected_ms(REST)
        kept = {step: self._costs.expected_ms(step) for step in ahead}
        gone: list[Step] = []
        for step in DROPPED_FIRST:
            if step in kept and sum(kept.values()) > left_ms:
                del kept[step]
                self._costs.dropped(step)
                gone.append(step)
        return gone

    def warn(self, dropped: Collection[Step]) -> list[Warn]:
        """What the response says of steps that were dropped."""
        if not dropped:
            return []
        detail = f"went without {' and '.join(dropped)} to be done within {self.target_ms:g} ms"
        return [Warn(code="deadline", detail=detail)]
