"""The quality gate: whether recent graph expansions were good enough to stay in a tenant's answers.

Expansions follow the ranked memories and leave them unchanged. So the gate judges the added memories: by user feedback,
errors, time and size. Their relevance is only compared with earlier expansions of the same edge type, because the graph
finds memories that no word of a question matches.

The gate's verdict is a function of its observations. Its windows move with the time of the queries, not with a clock.

A figure with too few observations is unknown, and has no effect. `overlap` (added memories that the baseline would rank
next) is reported only: agreement with the baseline does no harm."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np

from recallflow.control import DEFAULT, Decision, GateVerdict
from recallflow.graphs import TypeFigures
from recallflow.owner import Owner
from recallflow.state.arrays import Column, Places

HOUR_MS = 3_600_000
TYPES_MOST = 32  # edge types with remembered relevance; the least recently used are dropped

Outcome = Literal["expanded", "failed", "stopped", "late"]
Part = Literal["added", "beside", "without"]
"""The subject of feedback: a memory that the graph added, a ranked memory of the same answer, or a memory of an answer
without expansion."""
Figure = int | float | None


class GateBounds(NamedTuple):
    """A figure above `block` blocks expansions. They return once all figures are at or below `free`."""

    block: float
    free: float


BOUNDS = MappingProxyType(
    {
        "error_rate": GateBounds(0.05, 0.02),  # failed expansions
        "fallback_rate": GateBounds(0.25, 0.10),  # expansions that failed, had no time, or delayed an answer
        "added_words": GateBounds(2_000, 1_500),  # content words added per answer; a prompt has no room for more
        # Of the edge type with the largest loss: earlier mean relevance (see `compare`) minus the current mean; means
        # of twenty random memories vary by 0.1.
        "relevance_loss": GateBounds(0.3, 0.2),
        # Useful share of feedback on answers without expansions, minus the share with them.
        "useful_loss": GateBounds(0.2, 0.1),
        # Share of negative feedback on added memories, if it is worse than on answers without expansions.
        "harm_rate": GateBounds(0.5, 0.4),
    }
)


class BaselineComparison(NamedTuple):
    """A comparison of the added memories of one answer with the baseline."""

    overlap: float  # the share that the baseline would rank next
    relevance: Mapping[str, float]  # the mean relevance, 0 to 1, by edge type
    words: int  # the number of content words


class ExpansionOutcome(NamedTuple):
    """The outcome of one expansion, applied or only measured. `late`: it made an answer miss its deadline."""

    at_ms: int
    outcome: Outcome
    compared: BaselineComparison | None = None


def compare(
    signal: Column, left_out: Places, expanded: Places, types: Sequence[str], words: Iterable[int]
) -> BaselineComparison | None:
    """Compare the added memories (`expanded` places, with edge types and lengths) with the baseline's `signal` (n,).

    `left_out` are the places that were candidates of the answer and are not in it. A memory's relevance is the share of
    these with a lower signal, ties counted half: nearly 1 for the best memory, 0.5 for random ones. Return None without
    added memories."""
    if not len(expanded):
        return None
    pool, count = signal[left_out], len(expanded)
    next_best = np.partition(pool, -count)[-count:]
    overlap = (signal[expanded] >= next_best.min()).mean()
    of_type: dict[str, list[float]] = {}
    for kind, value in zip(types, signal[expanded], strict=True):
        of_type.setdefault(kind, []).append(float((pool < value).mean() + (pool == value).mean() / 2))
    relevance = {kind: sum(values) / len(values) for kind, values in of_type.items()}
    return BaselineComparison(float(overlap), relevance, int(sum(words)))


@dataclass(frozen=True, slots=True)
class Window:
    """The length of the gate's window, and the fewest observations of a known figure."""

    span_ms: int = HOUR_MS
    most: int = 200
    answers: int = 20
    feedback: int = 10


class QualityGate:
    def __init__(self, window: Window | None = None) -> None:
        self._window = window or Window()
        self.since_ms = self.latest_ms = 0
        self._seen: deque[ExpansionOutcome] = deque()
        self._feedback = {part: deque[tuple[int, bool]](maxlen=self._window.most) for part in get_args(Part)}
        self._before: OrderedDict[str, deque[float]] = OrderedDict()
        self.failures: tuple[Failure, ...] = ()
        # The time (epoch ms) and value of a verdict that has not returned through the log yet.
        self.published: tuple[int, bool] | None = None

    def restart(self, since_ms: int) -> None:
        """Forget all observations before a time."""
        self.since_ms, self.latest_ms = since_ms, max(since_ms, self.latest_ms)
        self._seen = deque(seen for seen in self._seen if seen.at_ms >= since_ms)
        self._before.clear()

    def observe(self, seen: ExpansionOutcome, blocked: bool = False) -> None:
        """Add an outcome. Outcomes while the tenant is `blocked` are no reference for later ones."""
        if not self._counts(seen.at_ms):
            return
        self._seen.append(seen)
        while len(self._seen) > self._window.most or self._seen[0].at_ms < self._begin_ms:
            old = self._seen.popleft()
            if old.compared is not None and not blocked:
                self._remember(old.compared.relevance)

    def feedback(self, at_ms: int, useful: bool, part: Part = "added") -> None:
        if self._counts(at_ms):
            self._feedback[part].append((at_ms, useful))

    def figures(self) -> dict[str, Figure]:
        """Return the figures of the windows, None for unknown ones, and the numbers of observations."""
        answers, found = len(self._seen), [seen.compared for seen in self._seen if seen.compared is not None]
        failed = sum(seen.outcome == "failed" for seen in self._seen)
        went_without = failed + sum(seen.outcome in ("stopped", "late") for seen in self._seen)
        enough, compared = self._window.answers, len(found)
        recent = {part: [u for at_ms, u in found if at_ms >= self._begin_ms] for part, found in self._feedback.items()}
        added, ranked, without = recent["added"], recent["beside"], recent["without"]
        useful = {"added": self._useful(added), "with": self._useful(added + ranked), "without": self._useful(without)}
        return {
            "answers": answers,
            "feedback": len(added + ranked + without),
            "error_rate": _rate(failed, answers, enough),
            "fallback_rate": _rate(went_without, answers, enough),
            "overlap": _rate(sum(one.overlap for one in found), compared, enough),
            "added_words": _rate(sum(one.words for one in found), compared, enough),
            "relevance_loss": max((loss for loss, _ in self._losses()), default=None),
            "useful_added": useful["added"],
            "useful_with": useful["with"],
            "useful_without": useful["without"],
            "useful_loss": _loss(useful["without"], useful["with"]),
            "harm_rate": _harm(useful["added"], useful["without"]),
        }

    def types(self) -> dict[str, TypeFigures]:
        """Return the relevance of each edge type within the window and before it."""
        now, enough = self._now(), self._window.answers
        return {
            kind: TypeFigures(
                answers=len(now.get(kind, ())),
                relevance=_known_mean(now.get(kind, ()), enough),
                before=_known_mean(self._before.get(kind, ()), enough),
            )
            for kind in sorted(now.keys() | self._before.keys())
        }

    def blocks(self, blocked: bool) -> bool:
        """Return whether to block expansions. `blocked` stays between the two bounds, and until enough was observed."""
        figures = self.figures()
        return bool(_beyond(figures, blocked)) or (blocked and figures["error_rate"] is None)

    def reason(self, blocked: bool) -> str:
        """Return the figures that count against expansion, as text for a verdict."""
        losses = self._losses()
        named = {"relevance_loss": f" ({max(losses)[1]})"} if losses else {}
        beyond = _beyond(self.figures(), blocked).items()
        return ", ".join(f"{name} {round(value, 2):g}{named.get(name, '')}" for name, value in beyond) or "recovered"

    def _losses(self) -> list[tuple[float, str]]:
        """Return the loss of relevance of each edge type with enough observations."""
        enough = self._window.answers
        known = ((kind, self._before.get(kind, ()), values) for kind, values in self._now().items())
        means = ((kind, _known_mean(before, enough), _known_mean(now, enough)) for kind, before, now in known)
        return [(loss, kind) for kind, before, now in means if (loss := _loss(before, now)) is not None]

    def _now(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for seen in self._seen:
            for kind, value in seen.compared.relevance.items() if seen.compared is not None else ():
                found.setdefault(kind, []).append(value)
        return found

    def _remember(self, relevance: Mapping[str, float]) -> None:
        """Keep the relevance that left the window, as the reference of its edge type."""
        for kind, value in relevance.items():
            self._before.setdefault(kind, deque(maxlen=self._window.most)).append(value)
            self._before.move_to_end(kind)
        while len(self._before) > TYPES_MOST:
            self._before.popitem(last=False)

    def _useful(self, feedback: list[bool]) -> float | None:
        return _rate(sum(feedback), len(feedback), self._window.feedback)

    def _counts(self, at_ms: int) -> bool:
        """Return whether a time is in the window, which moves to later times."""
        self.latest_ms = max(self.latest_ms, at_ms)
        return at_ms >= self._begin_ms

    @property
    def _begin_ms(self) -> int:
        return max(self.since_ms, self.latest_ms - self._window.span_ms)


def _beyond(figures: Mapping[str, Figure], blocked: bool) -> dict[str, float]:
    """Return the known figures above their bound: the blocking one, or the unblocking one while `blocked`."""
    limits = {name: bounds.free if blocked else bounds.block for name, bounds in BOUNDS.items()}
    known = {name: value for name in limits if (value := figures[name]) is not None}
    return {name: value for name, value in known.items() if value > limits[name]}


def _rate(part: float, whole: float, enough: float) -> float | None:
    return round(part / whole, 6) if whole and whole >= enough else None


def _known_mean(values: Collection[float], enough: int) -> float | None:
    return _rate(sum(values), len(values), enough)


def _loss(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else round(max(0.0, before - now), 6)


def _harm(added: float | None, without: float | None) -> float | None:
    """Return the share of negative feedback on added memories; 0 if answers without expansions are no better."""
    if added is None:
        return None
    return 0.0 if without is not None and added >= without else round(1 - added, 6)


GATE = "quality gate"
REPEAT_MS = 60_000  # a verdict that has not returned through the log by then is published again
FAILURES_KEPT = 10


class Failure(NamedTuple):
    """A failed expansion. `error` is only the type of the error, because its text may quote a memory."""

    at_ms: int
    query_id: str
    error: str
    owner: Owner


class GateObservations(NamedTuple):
    figures: dict[str, Figure]
    types: dict[str, TypeFigures]
    failures: tuple[Failure, ...]


class QualityGates:
    """The quality gates of a process: one per tenant, for all state partitions and threads. It is thread-safe.

    Observations are lost with the process. Verdicts persist as control events, so answers depend on decided events
    only, and a replay applies the same verdicts. The order in which partitions report observations is irrelevant; only
    their sum matters."""

    def __init__(self, window: Window | None = None) -> None:
        self._window = window
        self._tenants: dict[str, QualityGate] = {}
        self._lock = Lock()

    def observe(self, tenant_id: str, seen: ExpansionOutcome, blocked: bool, failure: Failure | None = None) -> None:
        """Add the outcome of an expansion, with the tenant's state at that time."""
        with self._lock:
            tenant = self._of(tenant_id)
            tenant.observe(seen, blocked)
            if failure is not None:
                tenant.failures = (*tenant.failures, failure)[-FAILURES_KEPT:]

    def feedback(self, tenant_id: str, at_ms: int, useful: bool, part: Part) -> None:
        with self._lock:
            self._of(tenant_id).feedback(at_ms, useful, part)

    def forget(self, owners: Collection[Owner]) -> None:
        """Forget the failed queries of owners. Figures contain no owners."""
        with self._lock:
            for owner in owners:
                if (tenant := self._tenants.get(owner.tenant_id)) is not None:
                    tenant.failures = tuple(one for one in tenant.failures if one.owner != owner)

    def watched(self, tenant_id: str) -> GateObservations:
        with self._lock:
            tenant = self._of(tenant_id)
            return GateObservations(tenant.figures(), tenant.types(), tenant.failures)

    def verdict(self, tenant_id: str, held_at: Callable[[int], Decision | None]) -> GateVerdict | None:
        """Return a new verdict on a tenant, if it differs from the one in force at its last query. `held_at` returns
        the verdict in force at a time (epoch ms). Only an operator lifts an operator's block; after that, only later
        observations count."""
        with self._lock:
            tenant = self._tenants.get(tenant_id)
            if tenant is None:
                return None
            at_ms = tenant.latest_ms
            held = held_at(at_ms)
            blocked = blocks(held)
            if held is not None and held.event.by != GATE:
                if blocked:
                    return None
                if tenant.since_ms < held.append_ms:
                    tenant.restart(held.append_ms)
                    tenant.published = None
            if tenant.published is not None:
                published_ms, published = tenant.published
                if published != blocked and at_ms < published_ms + REPEAT_MS:
                    return None  # the verdict has not returned through the log yet
                tenant.published = None
            if (found := tenant.blocks(blocked)) == blocked:
                return None
            tenant.published = at_ms, found
            return GateVerdict(
                type="gate.verdict",
                tenant_id=tenant_id,
                name=DEFAULT,
                timestamp=at_ms,
                by=GATE,
                why=tenant.reason(blocked),
                blocked=found,
                windows=tenant.figures(),
            )

    def _of(self, tenant_id: str) -> QualityGate:
        return self._tenants.setdefault(tenant_id, QualityGate(self._window))


def blocks(verdict: Decision | None) -> bool:
    return verdict is not None and isinstance(verdict.event, GateVerdict) and verdict.event.blocked
