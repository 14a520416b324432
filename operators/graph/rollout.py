"""Whether what the graph adds may be in an answer: per tenant off, measured only (`shadow`), or applied (`canary`).

What decides it are control events: the mode (`graph.rollout`, name `default`), and the verdicts of the quality gates
(`gate.verdict`), both as of the query's append time. Each state partition sees its own part of a tenant's queries and
has a gate of its own, named after its number; any of them blocks, until it frees again itself.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal, NamedTuple

from recallflow.control import GateVerdict, Rollout
from recallflow.decisions import Decision, History
from recallflow.errors import InvalidRecord
from recallflow.operators.events import Request
from recallflow.operators.graph.expand import Expansion, Related
from recallflow.operators.graph.gate import Compared, Gate, Outcome, Seen, Window
from recallflow.operators.guard import once
from recallflow.owner import Owner
from recallflow.responses import Warn

STEP = "graph"
DEFAULT = "default"
GATE = "quality gate"
FEEDBACK_MAX = 10_000  # memories added to answers that feedback is waited for
REPEAT_MS = 60_000  # a verdict that has not come back through the log by then is published again
FAILURES_KEPT = 10

Mode = Literal["off", "shadow", "canary"]
Fallback = Literal[
    "feature_flag_disabled",
    "rollout_off",
    "shadow_mode",
    "quality_gate_blocked",
    "graph_expansion_error",
    "rollout_guardrail",
]


class Applied(NamedTuple):
    """What becomes of an expansion: `items` go behind the ranked memories; without any, `fallback` may say why."""

    items: tuple[Related, ...]
    fallback: Fallback | None
    warnings: tuple[Warn, ...] = ()
    routing: dict[str, Any] | None = None

    def only(self, chosen: Iterable[bool]) -> "Applied":
        """With some of its items."""
        return self._replace(items=tuple(compress(self.items, chosen)))

    @property
    def ran(self) -> bool:
        """Whether the graph was followed, applied or not."""
        return self.fallback not in ("feature_flag_disabled", "rollout_off", "rollout_guardrail")


class Failure(NamedTuple):
    """An expansion that failed. `error` names its type only: what it says might quote a memory."""

    at_ms: int
    query_id: str
    error: str


@dataclass(slots=True)
class Watched:
    """What one state partition saw of one tenant: its gate, the last failures, and the last verdict it published."""

    gate: Gate
    failures: list[Failure] = field(default_factory=list)
    published: tuple[int, bool] | None = None  # when (epoch ms), and whether it blocks

    def failed(self, failure: Failure) -> None:
        self.failures = [*self.failures, failure][-FAILURES_KEPT:]


class Expansions:
    """The expansions of one state partition. What it remembers of them goes with the process; verdicts stay, as control
    events."""

    def __init__(
        self, decisions: History, partition: int, *, enabled: bool = True, window: Window | None = None
    ) -> None:
        self.name = str(partition)
        self.enabled = enabled
        self._decisions = decisions
        self._window = window
        self._tenants: dict[str, Watched] = {}
        self._added: OrderedDict[tuple[Owner, str], None] = OrderedDict()

    def run(
        self, request: Request, expand: Callable[[], tuple[Expansion, Compared | None]], late: bool = False
    ) -> Applied:
        """Expands, unless the tenant's rollout is `off` or the query is too `late` for it, and shows the gate what came
        of it. `expand` returns an expansion, and how it compares with the baseline; where it fails, the answer only
        goes without what it would have added."""
        tenant_id, at_ms = request.owner.tenant_id, request.at_ms
        held_back = self.held_back(tenant_id, at_ms)
        if held_back in ("feature_flag_disabled", "rollout_off"):
            return Applied((), held_back)
        watched = self.watched(tenant_id)
        outcome: Outcome = "stopped"
        compared = None
        applied = Applied((), "rollout_guardrail")
        if not late:
            try:
                expansion, compared = once(STEP, request.position, expand)
            except InvalidRecord as error:
                outcome = "failed"
                watched.failed(Failure(at_ms, request.query_id, error.fields[0].problem))
                warning = Warn(code="graph_expansion_error", detail="the graph added nothing: its expansion failed")
                applied = Applied((), "graph_expansion_error", (warning,))
            else:
                outcome = "expanded"
                routing = {"reached": expansion.considered, "caps": expansion.caps.counts()}
                applied = Applied(expansion.items, None, (), routing)
        watched.gate.observe(Seen(at_ms, outcome, compared))
        if held_back is not None:
            return Applied((), held_back)
        for item in applied.items:
            self._added[request.owner, item.id] = None
            self._added.move_to_end((request.owner, item.id))
        while len(self._added) > FEEDBACK_MAX:
            self._added.popitem(last=False)
        return applied

    def mode(self, tenant_id: str, at_ms: int) -> tuple[Mode, Decision | None]:
        """The tenant's rollout mode at a time, and the decision that it comes from."""
        decision = self._decisions.decision(tenant_id, "graph.rollout", DEFAULT, at_ms)
        if decision is None or not isinstance(decision.event, Rollout):
            return "off", None
        return decision.event.mode, decision

    def held_back(self, tenant_id: str, at_ms: int) -> Fallback | None:
        """Why nothing that the graph adds may be in the tenant's answers at a time, whatever it is."""
        mode, _ = self.mode(tenant_id, at_ms)
        if not self.enabled:
            return "feature_flag_disabled"
        if mode != "canary":
            return "rollout_off" if mode == "off" else "shadow_mode"
        return "quality_gate_blocked" if self.blocked_by(tenant_id, at_ms) else None

    def blocked_by(self, tenant_id: str, at_ms: int) -> list[str]:
        """The names of the gates that block the tenant at a time."""
        names = self._decisions.names(tenant_id, "gate.verdict")
        return [name for name in names if self._blocks(tenant_id, name, at_ms)]

    def _blocks(self, tenant_id: str, name: str, at_ms: int) -> bool:
        verdict = self._decisions.as_of(tenant_id, "gate.verdict", name, at_ms)
        return isinstance(verdict, GateVerdict) and verdict.blocked

    def feedback(self, owner: Owner, memory_id: str, useful: bool, at_ms: int) -> None:
        """What a user said of a memory; it counts where the graph had added it to an answer, once."""
        if (owner, memory_id) in self._added:
            del self._added[owner, memory_id]
            self.watched(owner.tenant_id).gate.feedback(at_ms, useful)

    def verdict(self, tenant_id: str, at_ms: int) -> GateVerdict | None:
        """The verdict of this partition's gate, where another one holds."""
        watched = self._tenants.get(tenant_id)
        if watched is None:
            return None
        held = self._blocks(tenant_id, self.name, at_ms)
        if watched.published is not None:
            published_ms, blocks = watched.published
            if blocks != held and at_ms < published_ms + REPEAT_MS:
                return None  # it is on its way through the log
            watched.published = None
        blocked = watched.gate.blocks(held)
        if blocked == held:
            return None
        watched.published = at_ms, blocked
        return GateVerdict(
            type="gate.verdict",
            tenant_id=tenant_id,
            name=self.name,
            timestamp=at_ms,
            by=GATE,
            why=watched.gate.reason(held),
            blocked=blocked,
            windows=watched.gate.figures(),
        )

    def watched(self, tenant_id: str) -> Watched:
        """What was seen of a tenant."""
        return self._tenants.setdefault(tenant_id, Watched(Gate(self._window)))
