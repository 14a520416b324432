"""How long the steps of a query last, and which optional ones a query close to its deadline omits."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Literal

from recallflow.responses import Tier

# Of the graph: `proximity` is how near memories are to entities, `boosts` what edges between candidates add, and
# `graph` the expansion.
Step = Literal["dense", "proximity", "boosts", "graph", "rerank", "llm"]

# What the costliest step that ran makes of an answer; without any of them it is `fast`.
TIER_OF: Mapping[Step, Tier] = MappingProxyType(
    {"dense": "standard", "proximity": "graph", "boosts": "graph", "graph": "graph", "rerank": "llm", "llm": "llm"}
)
TARGET_MS: Mapping[Tier, float] = MappingProxyType({"fast": 10.0, "standard": 50.0, "graph": 100.0, "llm": 1_500.0})
# What is missed least for what it costs.
DROPPED_FIRST: tuple[Step, ...] = ("llm", "rerank", "graph", "boosts", "proximity", "dense")
REST = "rest"  # the cost of all that runs after a query is understood, beside the optional steps
NEWEST = 0.2  # weight of the latest run in a mean
FORGIVEN = 0.9  # what is left of a mean after a drop


class Laps:
    """Milliseconds by step, in the order in which the steps ended. `timer`: seconds, from any start."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.stages_ms: dict[str, float] = {}
        self.waited_ms = 0.0
        self._timer = timer
        self._began_s = self._last_s = timer()

    def lap(self, step: str) -> float:
        """Ends the step that ran since the last call; returns its duration in ms."""
        now_s = self._timer()
        took_ms = self.stages_ms[step] = round((now_s - self._last_s) * 1000, 3)
        self._last_s = now_s
        return took_ms

    def wait(self, step: str) -> None:
        """Ends a time since the last step in which others had their turn; there may be several."""
        before = self.stages_ms.get(step, 0.0)
        self.waited_ms += self.lap(step)
        self.stages_ms[step] += before

    def add(self, step: str, took_ms: float) -> None:
        """Counts in a step that ran before the beginning."""
        self.stages_ms[step] = round(took_ms, 3)
        self._began_s -= took_ms / 1000

    def elapsed_ms(self) -> float:
        """The time since the beginning."""
        return (self._timer() - self._began_s) * 1000


class Costs:
    """The running mean of what each step took, in ms: a process's own experience, no part of the state. Only queries
    that give a target read it."""

    def __init__(self) -> None:
        self._mean_ms: dict[str, float] = {}

    def add(self, step: str, ms: float) -> None:
        """Counts one run in."""
        before = self._mean_ms.get(step, ms)
        self._mean_ms[step] = before + NEWEST * (ms - before)

    def expected_ms(self, step: str) -> float:
        """The running mean; 0 for a step that never ran."""
        return self._mean_ms.get(step, 0.0)

    def drop(self, ahead: Collection[Step], left_ms: float) -> list[Step]:
        """Chooses which of the optional steps ahead to omit, so that the others and the rest end in time."""
        kept = {step: self.expected_ms(step) for step in ahead}
        dropped: list[Step] = []
        for step in DROPPED_FIRST:
            if step in kept and sum(kept.values()) > left_ms - self.expected_ms(REST):
                del kept[step]
                dropped.append(step)
                if step in self._mean_ms:
                    # A step that is not run is not measured either: otherwise one slow run would drop it for good.
                    self._mean_ms[step] *= FORGIVEN
        return dropped


def tier_of(ran: Collection[Step]) -> Tier:
    """The tier of an answer for which these steps ran."""
    return next((TIER_OF[step] for step in DROPPED_FIRST if step in ran), "fast")
