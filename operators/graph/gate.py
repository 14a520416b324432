"""The quality gate: whether graph expansion has been good enough lately to be in a tenant's answers.

Fed with what was seen, it says what holds from now on. Its windows roll over the time of the queries, never over a
clock, and it keeps nothing: a partition that starts again has empty windows, and the last verdict still holds, as that
is a control event.

Figures, each with the value above which it blocks, and up to which a blocked tenant is freed:

    error_rate      0.05  0.02   expansions that failed: one in twenty is no accident
    fallback_rate   0.25  0.10   expansions that failed or had no time: the tenant has little of them
    relevance_loss  0.75  0.60   1 - expanded / baseline relevance (see `compare`): memories drawn by lot lose 0.5, and
                                 so may what no word leads to; this is what fits least of all
    not_useful_rate 0.50  0.40   feedback on expanded memories that says not useful: more harm than use

A figure with too few observations is unknown, and counts for nothing. `overlap` (expanded memories that the baseline
ranks next anyway) is shown and not judged: a graph that agrees with the baseline does no harm.
"""

from collections import deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from recallflow.state.arrays import Column, Places

HOUR_MS = 3_600_000

Outcome = Literal["expanded", "failed", "stopped"]


class Bounds(NamedTuple):
    """A figure above `block` blocks; blocked expansion returns with all figures at or below `free`."""

    block: float
    free: float


BOUNDS = MappingProxyType(
    {
        "error_rate": Bounds(0.05, 0.02),
        "fallback_rate": Bounds(0.25, 0.10),
        "relevance_loss": Bounds(0.75, 0.6),
        "not_useful_rate": Bounds(0.5, 0.4),
    }
)


class Seen(NamedTuple):
    """One expansion, applied or only measured, and how it compares with the baseline where it found anything."""

    at_ms: int
    outcome: Outcome
    compared: "Compared | None" = None


class Compared(NamedTuple):
    """Expanded memories beside as many that the baseline ranks next: which share they are of each other, and the mean
    relevance of both, 0 to 1."""

    overlap: float
    baseline: float
    expanded: float


def compare(signal: Column, left_out: Places, expanded: Places) -> Compared | None:
    """`signal`: (n,) what the baseline makes of each memory; `left_out`: places that it could have answered and did
    not; `expanded`: those of them that the graph adds. A memory's relevance is the share of the left out that it beats,
    ties by half: the best has nearly 1, memories drawn by lot have 0.5."""
    if not len(expanded):
        return None
    pool, count = signal[left_out], len(expanded)
    next_best = np.partition(pool, -count)[-count:]
    overlap = (signal[expanded] >= next_best.min()).mean()
    return Compared(float(overlap), _relevance(pool, next_best), _relevance(pool, signal[expanded]))


def _relevance(pool: Column, values: Column) -> float:
    beaten = [(pool < value).mean() + (pool == value).mean() / 2 for value in values]
    return float(np.mean(beaten))


@dataclass(frozen=True, slots=True)
class Window:
    """How far back the gate looks, and the fewest observations that say something."""

    span_ms: int = HOUR_MS
    most: int = 200
    answers: int = 20
    feedback: int = 10


class Gate:
    """What one state partition saw of one tenant."""

    def __init__(self, window: Window | None = None) -> None:
        self._window = window or Window()
        self._seen: deque[Seen] = deque(maxlen=self._window.most)
        self._feedback: deque[tuple[int, bool]] = deque(maxlen=self._window.most)
        self._latest_ms = 0

    def observe(self, seen: Seen) -> None:
        self._seen.append(seen)
        self._roll(seen.at_ms)

    def feedback(self, at_ms: int, useful: bool) -> None:
        """What a user said of a memory that the graph had added to an answer."""
        self._feedback.append((at_ms, useful))
        self._roll(at_ms)

    def figures(self) -> dict[str, int | float | None]:
        """The windows' figures, None where too little was seen; and how much was seen."""
        answers, found = len(self._seen), [seen.compared for seen in self._seen if seen.compared is not None]
        failed = sum(seen.outcome == "failed" for seen in self._seen)
        stopped = sum(seen.outcome == "stopped" for seen in self._seen)
        useless = sum(not useful for _, useful in self._feedback)
        baseline, expanded = sum(one.baseline for one in found), sum(one.expanded for one in found)
        enough, compared = self._window.answers, len(found)
        return {
            "answers": answers,
            "feedback": len(self._feedback),
            "error_rate": _rate(failed, answers, enough),
            "fallback_rate": _rate(failed + stopped, answers, enough),
            "overlap": _rate(sum(one.overlap for one in found), compared, enough),
            "baseline_relevance": _rate(baseline, compared, enough),
            "expanded_relevance": _rate(expanded, compared, enough),
            "relevance_loss": _rate(max(0.0, baseline - expanded), baseline if compared >= enough else 0.0, 0),
            "not_useful_rate": _rate(useless, len(self._feedback), self._window.feedback),
        }

    def blocks(self, blocked: bool) -> bool:
        """Whether expansion is to be blocked, where now it is `blocked` or not. What holds goes on between the two
        bounds, and until enough was seen."""
        unknown = self.figures()["error_rate"] is None
        return bool(self._beyond(blocked)) or (blocked and unknown)

    def reason(self, blocked: bool) -> str:
        """The figures that speak against expansion, for those who read a verdict."""
        return ", ".join(f"{name} {value:.2f}" for name, value in self._beyond(blocked).items()) or "recovered"

    def _beyond(self, blocked: bool) -> dict[str, float]:
        """Known figures above their bound: the one to block, or, where it is `blocked`, the one to free."""
        figures = self.figures()
        limits = {name: bounds.free if blocked else bounds.block for name, bounds in BOUNDS.items()}
        known = {name: value for name in limits if (value := figures[name]) is not None}
        return {name: value for name, value in known.items() if value > limits[name]}

    def _roll(self, at_ms: int) -> None:
        self._latest_ms = max(self._latest_ms, at_ms)
        since_ms = self._latest_ms - self._window.span_ms
        while self._seen and self._seen[0].at_ms < since_ms:
            self._seen.popleft()
        while self._feedback and self._feedback[0][0] < since_ms:
            self._feedback.popleft()


def _rate(part: float, whole: float, enough: float) -> float | None:
    return round(part / whole, 6) if whole and whole >= enough else None
