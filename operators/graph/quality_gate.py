"""The quality gate: whether recent graph expansions were good enough to stay in a tenant's answers.

Expansions follow the ranked memories and leave them unchanged. So the gate judges the added memories: by user feedback,
errors, time and size. Their relevance is compared with earlier expansions of the same edge type, and not with the
ranked memories: the graph finds memories that share no word with the question, so their absolute relevance is low.

The verdict is a function of the observations. The window moves with the time of the queries, not with a clock. A figure
with too few observations is unknown, and has no effect. The baseline is the ranking without the graph. `overlap`, the
share of added memories that the baseline would rank next, has no bound, because agreement does no harm."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np

from recallflow.control import DEFAULT, Decision, GateVerdict
from recallflow.graphs import TypeFigures
from recallflow.owner import Owner
from recallflow.state.arrays import Column, Positions

WINDOW_MS = 3_600_000
OBSERVATIONS_MAX = 200  # in the window, and for each edge type before the window
ANSWERS_MIN, FEEDBACK_MIN = 20, 10  # a figure from fewer observations is unknown
TYPES_MAX = 32  # edge types with remembered relevance; the least recently used are dropped
Outcome = Literal["expanded", "failed", "skipped", "late"]
FeedbackSubject = Literal["added", "ranked", "without"]
"""A memory that the graph added, a ranked memory of the same answer, or a memory of an answer without expansion."""
Figure = int | float | None
GATE = "quality gate"
REPEAT_MS = 60_000  # a verdict that was not read from the control log by then is published again
FAILURES_KEPT = 10


class GateBounds(NamedTuple):
    """A figure above `block` blocks expansions. They return once all figures are at or below `free`."""

    block: float
    free: float


BOUNDS = MappingProxyType(
    {
        "error_rate": GateBounds(0.05, 0.02),  # failed expansions
        "fallback_rate": GateBounds(0.25, 0.10),  # expansions that failed, were skipped, or were late
        "added_words": GateBounds(2_000, 1_500),  # content words added per answer; a prompt has no room for more
        # The earlier mean relevance (see `compare`) minus the current mean, of the edge type with the largest loss. The
        # bound is 0.3, because means of twenty random memories vary by 0.1.
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
    """The outcome of one expansion, applied or only measured. `skipped`: the deadline left no time for it. `late`: it
    made an answer miss its deadline."""

    at_ms: int
    outcome: Outcome
    compared: BaselineComparison | None = None


def compare(
    signal: Column, left_out: Positions, expanded: Positions, types: Sequence[str], words: Iterable[int]
) -> BaselineComparison | None:
    """Compare the added memories (`expanded`, with edge types and lengths) with the baseline; None without any.

    `signal` (n,) is the baseline's score. `expanded` and `left_out` are indices into it; `left_out` are the candidates
    that are not in the answer. A memory's relevance is the share of these with a lower signal, ties counted half:
    nearly 1 for the best memory, 0.5 for random ones."""
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


class QualityGate:
    """The observations of one tenant. Relevance that leaves the window is kept by edge type, for comparison."""

    def __init__(self) -> None:
        self.since_ms = self.latest_ms = 0
        self._outcomes: deque[ExpansionOutcome] = deque()
        self._feedback = {one: deque[tuple[int, bool]](maxlen=OBSERVATIONS_MAX) for one in get_args(FeedbackSubject)}
        self._earlier_relevance: OrderedDict[str, deque[float]] = OrderedDict()
        self.failures: tuple[Failure, ...] = ()
        # The time (epoch ms) and value of a published verdict that was not read from the control log yet.
        self.published: tuple[int, bool] | None = None

    def restart(self, since_ms: int) -> None:
        """Forget all observations before a time."""
        self.since_ms, self.latest_ms = since_ms, max(since_ms, self.latest_ms)
        self._outcomes = deque(one for one in self._outcomes if one.at_ms >= since_ms)
        self._earlier_relevance.clear()

    def observe(self, outcome: ExpansionOutcome, blocked: bool = False) -> None:
        """Add an outcome. While the tenant is `blocked`, outcomes do not become earlier relevance."""
        if not self._move_window(outcome.at_ms):
            return
        self._outcomes.append(outcome)
        while len(self._outcomes) > OBSERVATIONS_MAX or self._outcomes[0].at_ms < self._begin_ms:
            old = self._outcomes.popleft()
            if old.compared is not None and not blocked:
                self._remember(old.compared.relevance)

    def feedback(self, at_ms: int, useful: bool, subject: FeedbackSubject = "added") -> None:
        if self._move_window(at_ms):
            self._feedback[subject].append((at_ms, useful))

    def figures(self) -> dict[str, Figure]:
        """Return the figures of the window, None for unknown ones, and the numbers of observations."""
        answers, compared = len(self._outcomes), [one.compared for one in self._outcomes if one.compared is not None]
        failed = sum(one.outcome == "failed" for one in self._outcomes)
        fallbacks = failed + sum(one.outcome in ("skipped", "late") for one in self._outcomes)
        begin_ms = self._begin_ms
        added, ranked, without = (
            [useful for at_ms, useful in self._feedback[subject] if at_ms >= begin_ms]
            for subject in get_args(FeedbackSubject)
        )
        useful_added, useful_with, useful_without = (
            _rate(sum(found), len(found), FEEDBACK_MIN) for found in (added, added + ranked, without)
        )
        return {
            "answers": answers,
            "feedback": len(added + ranked + without),
            "error_rate": _rate(failed, answers),
            "fallback_rate": _rate(fallbacks, answers),
            "overlap": _mean([one.overlap for one in compared]),
            "added_words": _mean([one.words for one in compared]),
            "relevance_loss": max((loss for loss, _ in self._losses()), default=None),
            "useful_added": useful_added,
            "useful_with": useful_with,
            "useful_without": useful_without,
            "useful_loss": _loss(useful_without, useful_with),
            "harm_rate": _harm(useful_added, useful_without),
        }

    def types(self) -> dict[str, TypeFigures]:
        """Return the relevance of each edge type within the window and before it."""
        current: dict[str, list[float]] = {}
        for one in self._outcomes:
            for kind, value in one.compared.relevance.items() if one.compared is not None else ():
                current.setdefault(kind, []).append(value)
        return {
            kind: TypeFigures(
                answers=len(current.get(kind, ())),
                relevance=_mean(current.get(kind, ())),
                before=_mean(self._earlier_relevance.get(kind, ())),
            )
            for kind in sorted(current.keys() | self._earlier_relevance.keys())
        }

    def blocks(self, blocked: bool) -> bool:
        """Return whether to block expansions. A block stays until all figures are at or below their lower bounds, and
        there are enough observations."""
        figures = self.figures()
        return bool(_exceeded(figures, blocked)) or (blocked and figures["error_rate"] is None)

    def reason(self, blocked: bool) -> str:
        """Return the figures that count against expansion, as text for a verdict."""
        losses = self._losses()
        suffixes = {"relevance_loss": f" ({max(losses)[1]})"} if losses else {}
        exceeded = _exceeded(self.figures(), blocked).items()
        texts = [f"{name} {round(value, 2):g}{suffixes.get(name, '')}" for name, value in exceeded]
        return ", ".join(texts) or "recovered"

    def _losses(self) -> list[tuple[float, str]]:
        """Return the loss of relevance of each edge type with enough observations."""
        losses = ((_loss(figures.before, figures.relevance), kind) for kind, figures in self.types().items())
        return [(loss, kind) for loss, kind in losses if loss is not None]

    def _remember(self, relevance: Mapping[str, float]) -> None:
        for kind, value in relevance.items():
            self._earlier_relevance.setdefault(kind, deque(maxlen=OBSERVATIONS_MAX)).append(value)
            self._earlier_relevance.move_to_end(kind)
        while len(self._earlier_relevance) > TYPES_MAX:
            self._earlier_relevance.popitem(last=False)

    def _move_window(self, at_ms: int) -> bool:
        """Move the end of the window to a later time. Return whether the window contains the time."""
        self.latest_ms = max(self.latest_ms, at_ms)
        return at_ms >= self._begin_ms

    @property
    def _begin_ms(self) -> int:
        return max(self.since_ms, self.latest_ms - WINDOW_MS)


def _exceeded(figures: Mapping[str, Figure], blocked: bool) -> dict[str, float]:
    """Return the known figures above their bound: `block`, or `free` while `blocked`."""
    limits = {name: bounds.free if blocked else bounds.block for name, bounds in BOUNDS.items()}
    known = {name: value for name in limits if (value := figures[name]) is not None}
    return {name: value for name, value in known.items() if value > limits[name]}


def _rate(part: float, whole: int, at_least: int | None = None) -> float | None:
    """Return part / whole; None if the whole is below a minimum, by default that of answers."""
    return round(part / whole, 6) if whole >= (ANSWERS_MIN if at_least is None else at_least) else None


def _mean(values: Collection[float]) -> float | None:
    return _rate(sum(values), len(values))


def _loss(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else round(max(0.0, before - now), 6)


def _harm(added: float | None, without: float | None) -> float | None:
    if added is None:
        return None
    return 0.0 if without is not None and added >= without else round(1 - added, 6)


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

    Observations are lost with the process. Verdicts persist as control events. Answers depend on these events only, so
    a replay applies the same verdicts. The order in which partitions report observations is irrelevant."""

    def __init__(self) -> None:
        self._tenants: dict[str, QualityGate] = {}
        self._lock = Lock()

    def observe(self, tenant_id: str, outcome: ExpansionOutcome, blocked: bool, failure: Failure | None = None) -> None:
        """Add the outcome of an expansion. `blocked`: the verdict at that time."""
        with self._lock:
            tenant = self._of(tenant_id)
            tenant.observe(outcome, blocked)
            if failure is not None:
                tenant.failures = (*tenant.failures, failure)[-FAILURES_KEPT:]

    def feedback(self, tenant_id: str, at_ms: int, useful: bool, subject: FeedbackSubject) -> None:
        with self._lock:
            self._of(tenant_id).feedback(at_ms, useful, subject)

    def forget(self, owners: Collection[Owner]) -> None:
        """Forget the failed queries of owners. Figures contain no owners."""
        with self._lock:
            for owner in owners:
                if (tenant := self._tenants.get(owner.tenant_id)) is not None:
                    tenant.failures = tuple(one for one in tenant.failures if one.owner != owner)

    def observations(self, tenant_id: str) -> GateObservations:
        with self._lock:
            tenant = self._of(tenant_id)
            return GateObservations(tenant.figures(), tenant.types(), tenant.failures)

    def verdict(self, tenant_id: str, verdict_at: Callable[[int], Decision | None]) -> GateVerdict | None:
        """Return a new verdict on a tenant, if it differs from the one in force at its last query. `verdict_at` returns
        the verdict in force at a time (epoch ms). A block set by an administrator is lifted only by an administrator.
        After a lifting, only later observations count."""
        with self._lock:
            tenant = self._tenants.get(tenant_id)
            if tenant is None:
                return None
            at_ms = tenant.latest_ms
            current = verdict_at(at_ms)
            blocked = blocks(current)
            if current is not None and current.event.by != GATE:
                if blocked:
                    return None
                if tenant.since_ms < current.append_ms:
                    tenant.restart(current.append_ms)
                    tenant.published = None
            if tenant.published is not None:
                published_ms, published = tenant.published
                if published != blocked and at_ms < published_ms + REPEAT_MS:
                    return None  # the verdict was not read from the control log yet
                tenant.published = None
            if (blocks_now := tenant.blocks(blocked)) == blocked:
                return None
            tenant.published = at_ms, blocks_now
            return GateVerdict(
                type="gate.verdict",
                tenant_id=tenant_id,
                name=DEFAULT,
                timestamp=at_ms,
                by=GATE,
                why=tenant.reason(blocked),
                blocked=blocks_now,
                windows=tenant.figures(),
            )

    def _of(self, tenant_id: str) -> QualityGate:
        return self._tenants.setdefault(tenant_id, QualityGate())


def blocks(verdict: Decision | None) -> bool:
    return verdict is not None and isinstance(verdict.event, GateVerdict) and verdict.event.blocked
