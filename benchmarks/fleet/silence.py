"""What faults were to those who asked: how long a partition that moved was silent, and what the others took."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.fleet.chaos import BACK, Episode, Span
from benchmarks.fleet.ownership import Seen, moved, owners_at
from benchmarks.fleet.probes import Probe

ALONG = "moved along"  # a partition of a member that nothing happened to, before the others were back


@dataclass
class Silence:
    """Milliseconds. `longest`: by cause, for each partition and each time the longest that an answer took."""

    idle_p50: float = 0.0
    idle_p95: float = 0.0
    still_p50: float = 0.0  # of partitions that stayed where they were, while others moved
    still_p95: float = 0.0
    longest: dict[str, list[float]] = field(default_factory=dict)


def measure(probes: Sequence[Probe], idle: Span, episodes: Iterable[Episode], seen: Sequence[Seen]) -> Silence:
    """A probe belongs to the span in which it was due. A partition of a member that was hit was silent because of the
    fault until another one answered for it, also after the member came back; what moves then moves because of that."""
    still: list[float] = []
    longest: dict[str, list[float]] = defaultdict(list)
    for fault, back in episodes:
        before, after = owners_at(seen, fault.from_s), owners_at(seen, back.to_s)
        gone = set(before.values()) - set(after.values())
        moved_away, moved_back = (moved(seen, span.from_s, span.to_s) for span in (fault, back))
        for partition, owner in before.items():
            away, returned = ([p for p in within(span, probes) if p.partition == partition] for span in (fault, back))
            taken_over = partition in moved_away and recovered(away, back.from_s)
            if owner in gone and not taken_over:
                away, returned = away + returned, []
            if owner in gone or partition in moved_away:
                longest[fault.cause if owner in gone else ALONG].extend(longest_of(away))
                away = []
            if partition in moved_back:
                longest[BACK].extend(longest_of(returned))
                returned = []
            still.extend(probe.ms for probe in away + returned)
    idle_ms = [probe.ms for probe in within(idle, probes)]
    found = {cause: times_ms for cause, times_ms in longest.items() if times_ms}
    return Silence(*shares(idle_ms), *shares(still), longest=found)


def recovered(away: Sequence[Probe], back_s: float) -> bool:
    """Whether a partition was answered for again before the members were back."""
    return bool(away) and (answered_s := away[-1].answered_s) is not None and answered_s < back_s


def within(span: Span, probes: Iterable[Probe]) -> list[Probe]:
    return [probe for probe in probes if span.from_s <= probe.due_s < span.to_s]


def longest_of(probes: Sequence[Probe]) -> list[float]:
    return [max(probe.ms for probe in probes)] if probes else []


def shares(times_ms: list[float]) -> tuple[float, float]:
    """p50 and p95; 0 where nothing was asked."""
    return (float(np.percentile(times_ms, 50)), float(np.percentile(times_ms, 95))) if times_ms else (0.0, 0.0)
