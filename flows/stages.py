"""How long records take, stage by stage, in histograms whose buckets name a trace that fell into them."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

# Upper bounds in seconds: a query takes some milliseconds, and what comes after an outage may wait for hours.
BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LONG_BOUNDS_S = (*BOUNDS_S, 10.0, 30.0, 60.0, 600.0, 3_600.0)

Stage = Literal["queue", "prepare", "state", "wait", "deliver", "total"]
NO_TRACE = 0


class _Seen(NamedTuple):
    """The last observation of a bucket that a trace tells more about."""

    trace_id: int
    value_s: float
    at_s: float


class Histogram:
    """Plain numbers that one thread adds to and any other reads: prometheus_client's own histograms lock, and would
    cost 3 µs an observation; these cost less than 1."""

    __slots__ = ("_bounds_s", "_counts", "_seen", "_sum_s")

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)  # at most each bound, and beyond
        self._sum_s = 0.0
        self._seen: dict[int, _Seen] = {}

    def observe(self, value_s: float, trace_id: int = NO_TRACE) -> None:
        """Counts one time. `trace_id`: of the trace that tells more about it."""
        bucket = bisect_left(self._bounds_s, value_s)
        self._counts[bucket] += 1
        self._sum_s += value_s
        if trace_id != NO_TRACE:
            self._seen[bucket] = _Seen(trace_id, value_s, time.time())

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Adds what was counted to a metric."""
        bounds = (*map(str, self._bounds_s), "+Inf")
        buckets = [
            (bound, count, exemplar) if (exemplar := self._exemplar(bucket)) else (bound, count)
            for bucket, (bound, count) in enumerate(zip(bounds, accumulate(self._counts), strict=True))
        ]
        family.add_metric(labels, buckets, self._sum_s)

    def _exemplar(self, bucket: int) -> Exemplar | None:
        seen = self._seen.get(bucket)
        return seen and Exemplar({"trace_id": f"{seen.trace_id:032x}"}, seen.value_s, seen.at_s)


class Stages:
    """The times of records by stage and by the topic that they stand in.

    `queue`: from a record's append to when the flow takes it; `prepare`: decoding, verdict and analysis, of its whole
    batch; `state`: from there until all that comes of it is handed on; `wait`: the same of one that was set aside;
    `deliver`: from there until the log takes the output in; `total`: from append to append. Appends are by the log's
    clock, all else is by ours."""

    def __init__(self, topics: Iterable[str]) -> None:
        keys = [(stage, topic) for stage in get_args(Stage) for topic in topics]
        self._histograms = {key: Histogram(LONG_BOUNDS_S) for key in keys}

    def observe(self, stage: Stage, topic: str, value_s: float, trace_id: int = NO_TRACE) -> None:
        """Counts one time; between two clocks, of which one is behind, it may be below zero, and counts as zero."""
        self._histograms[stage, topic].observe(max(0.0, value_s), trace_id)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "recallflow_stage_seconds", "Time that records take in each stage", labels=["stage", "topic"]
        )
        for labels, histogram in self._histograms.items():
            histogram.add_to(family, labels)
        yield family
