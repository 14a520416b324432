"""The quality gates of a process: one for each tenant, over all state partitions, whichever thread works for them.

What they see goes with the process. A verdict stays, as a control event: answers are a function of decided events only,
and a log that is read again is judged by what was decided then. So it does not matter in which order the partitions of
a process tell what they saw, only that what they told is counted together.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from recallflow.control import DEFAULT, GateVerdict
from recallflow.decisions import Decision
from recallflow.graphs import TypeFigures
from recallflow.operators.graph.gate import Figure, Gate, Part, Seen, Window
from recallflow.owner import Owner

GATE = "quality gate"
REPEAT_MS = 60_000  # a verdict that has not come back through the log by then is published again
FAILURES_KEPT = 10


class Failure(NamedTuple):
    """An expansion that failed. `error` names its type only: what it says might quote a memory."""

    at_ms: int
    query_id: str
    error: str
    owner: Owner


class Watched(NamedTuple):
    """What was seen of a tenant: figures, also by type of edge, and the last failures."""

    figures: dict[str, Figure]
    types: dict[str, TypeFigures]
    failures: tuple[Failure, ...]


@dataclass(slots=True)
class _Tenant:
    """`published`: when (epoch ms) its last verdict was made that has not come back yet, and whether it blocks."""

    gate: Gate
    failures: list[Failure] = field(default_factory=list)
    published: tuple[int, bool] | None = None


class Gates:
    """Threads may share it."""

    def __init__(self, window: Window | None = None) -> None:
        self._window = window
        self._tenants: dict[str, _Tenant] = {}
        self._lock = Lock()

    def observe(self, tenant_id: str, seen: Seen, blocked: bool, failure: Failure | None = None) -> None:
        """What came of an expansion, while the tenant was `blocked` or not."""
        with self._lock:
            tenant = self._of(tenant_id)
            tenant.gate.observe(seen, blocked)
            if failure is not None:
                tenant.failures = [*tenant.failures, failure][-FAILURES_KEPT:]

    def feedback(self, tenant_id: str, at_ms: int, useful: bool, part: Part) -> None:
        """What a user said of a memory of an answer."""
        with self._lock:
            self._of(tenant_id).gate.feedback(at_ms, useful, part)

    def forget(self, owners: Collection[Owner]) -> None:
        """Forgets the queries of owners that failed; figures are of nobody."""
        with self._lock:
            for owner in owners:
                if (tenant := self._tenants.get(owner.tenant_id)) is not None:
                    tenant.failures = [one for one in tenant.failures if one.owner != owner]

    def watched(self, tenant_id: str) -> Watched:
        """What was seen of a tenant."""
        with self._lock:
            tenant = self._of(tenant_id)
            return Watched(tenant.gate.figures(), tenant.gate.types(), tuple(tenant.failures))

    def verdict(self, tenant_id: str, held_at: Callable[[int], Decision | None]) -> GateVerdict | None:
        """The verdict on a tenant, where another one is held at the time of the last query of it; `held_at` of a time
        (epoch ms). What an operator blocks, an operator frees; and what one frees is judged by what is seen from then
        on."""
        with self._lock:
            tenant = self._tenants.get(tenant_id)
            if tenant is None:
                return None
            at_ms = tenant.gate.latest_ms
            held = held_at(at_ms)
            blocked = blocks(held)
            if held is not None and held.event.by != GATE:
                if blocked:
                    return None
                if tenant.gate.since_ms < held.append_ms:
                    tenant.gate.restart(held.append_ms)
                    tenant.published = None
            if tenant.published is not None:
                published_ms, published = tenant.published
                if published != blocked and at_ms < published_ms + REPEAT_MS:
                    return None  # it is on its way through the log
                tenant.published = None
            if (found := tenant.gate.blocks(blocked)) == blocked:
                return None
            tenant.published = at_ms, found
            return GateVerdict(
                type="gate.verdict",
                tenant_id=tenant_id,
                name=DEFAULT,
                timestamp=at_ms,
                by=GATE,
                why=tenant.gate.reason(blocked),
                blocked=found,
                windows=tenant.gate.figures(),
            )

    def _of(self, tenant_id: str) -> _Tenant:
        return self._tenants.setdefault(tenant_id, _Tenant(Gate(self._window)))


def blocks(verdict: Decision | None) -> bool:
    """Whether a verdict blocks; none does not."""
    return verdict is not None and isinstance(verdict.event, GateVerdict) and verdict.event.blocked
