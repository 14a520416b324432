"""Step durations of a query, and the selection of optional steps to drop close to its deadline."""

from collections.abc import Callable, Collection, Mapping
from typing import Literal

from recallflow.responses import Tier

# Steps on the graph: `proximity` computes hops from memories to entities, `boosts` weighs edges between candidates, and
# `graph` expands the answer.
Step = Literal["dense", "proximity", "boosts", "graph", "rerank", "llm"]
# The tier of the costliest step that ran. An answer without any of them is `fast`.
TIER_OF: Mapping[Step, Tier] = {
    "dense": "standard", "proximity": "graph", "boosts": "graph", "graph": "graph", "rerank": "llm", "llm": "llm"
}  # fmt: skip
TARGET_MS: Mapping[Tier, float] = {"fast": 10.0, "standard": 50.0, "graph": 100.0, "llm": 1_500.0}
# Steps in the order of dropping: least loss of quality per cost first.
DROPPED_FIRST: tuple[Step, ...] = ("llm", "rerank", "graph", "boosts", "proximity", "dense")
REST = "rest"  # key of the cost of all steps after understanding the query, except the optional ones
NEWEST_WEIGHT = 0.2  # of the newest run in a running mean
DROP_DECAY = 0.9  # factor applied to a mean after a drop


class StepTimings:
    """Durations in ms by step, in the order in which the steps ended. `timer` returns seconds from any origin."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.stages_ms: dict[str, float] = {}
        self.waited_ms = 0.0
        self._timer = timer
        self._began_s = self._last_s = timer()

    def end(self, step: str) -> float:
        """End the step that ran since the last call, and return its duration in ms."""
        now_s = self._timer()
        took_ms = self.stages_ms[step] = round((now_s - self._last_s) * 1000, 3)
        self._last_s = now_s
        return took_ms

    def wait(self, step: str) -> None:
        """End a wait in which other queries ran. Several waits of one step add up."""
        before = self.stages_ms.get(step, 0.0)
        self.waited_ms += self.end(step)
        self.stages_ms[step] += before

    def add(self, step: str, took_ms: float) -> None:
        """Add a step that ran before this timer started."""
        self.stages_ms[step] = round(took_ms, 3)
        self._began_s -= took_ms / 1000

    def elapsed_ms(self) -> float:
        return (self._timer() - self._began_s) * 1000


class StepCosts:
    """Running means of step durations in ms, of this process. They are not part of the state: only queries with a
    target time read them."""

    def __init__(self) -> None:
        self._mean_ms: dict[str, float] = {}

    def add(self, step: str, ms: float) -> None:
        before = self._mean_ms.get(step, ms)
        self._mean_ms[step] = before + NEWEST_WEIGHT * (ms - before)

    def expected_ms(self, step: str) -> float:
        """Return the running mean, or 0 for a step that never ran."""
        return self._mean_ms.get(step, 0.0)

    def drop_steps(self, optional: Collection[Step], left_ms: float) -> list[Step]:
        """Return the optional steps to drop so that all others end within `left_ms`."""
        expected_ms_of = {step: self.expected_ms(step) for step in optional}
        dropped: list[Step] = []
        for step in DROPPED_FIRST:
            if step in expected_ms_of and sum(expected_ms_of.values()) > left_ms - self.expected_ms(REST):
                del expected_ms_of[step]
                dropped.append(step)
                if step in self._mean_ms:
                    # A dropped step is not measured. Without this decay one slow run would drop it for good.
                    self._mean_ms[step] *= DROP_DECAY
        return dropped


def tier_of(ran: Collection[Step]) -> Tier:
    return next((TIER_OF[step] for step in DROPPED_FIRST if step in ran), "fast")
