"""The rollout of graph expansions per tenant: off, measured only (`shadow`), or applied (`canary`); and its status.

Two control events decide, as of the query's append time: the rollout mode (`graph.rollout`), and the verdict of the
tenant's quality gate (`gate.verdict`). Both have the name `default`."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress, islice
from typing import Any, Literal, NamedTuple

from recallflow.control import DEFAULT, ControlHistory, Decision, GateVerdict, Rollout, RolloutMode
from recallflow.errors import InvalidRecord
from recallflow.fields import format_time
from recallflow.graphs import GateState, GraphFailure, GraphReport, RolloutState
from recallflow.operators.events import Ask
from recallflow.operators.graph import quality_gate
from recallflow.operators.graph.paths import Expansion, RelatedMemory
from recallflow.operators.guard import try_once
from recallflow.owner import Owner
from recallflow.responses import Warn
from recallflow.state.graph import OwnerGraph

STEP = "graph"
FEEDBACK_MAX = 10_000  # memories of answers that may receive feedback
Fallback = Literal[
    "feature_flag_disabled",
    "rollout_off",
    "shadow_mode",
    "quality_gate_blocked",
    "graph_expansion_error",
    "rollout_guardrail",
]
COUNTED_MAX = 5_000  # counted nodes, and as many edges; more would delay other queries


class AppliedExpansion(NamedTuple):
    """The part of an expansion that is in the answer. Without items, `fallback` gives the reason."""

    items: tuple[RelatedMemory, ...]
    fallback: Fallback | None
    warnings: tuple[Warn, ...] = ()
    routing: dict[str, Any] | None = None

    def only(self, chosen: Iterable[bool]) -> "AppliedExpansion":
        return self._replace(items=tuple(compress(self.items, chosen)))

    @property
    def ran(self) -> bool:
        """Whether the rollout and the quality gate let the graph expand the answer, or measure its expansion."""
        return self.fallback not in ("feature_flag_disabled", "rollout_off", "rollout_guardrail")


class Expansions:
    """The expansions of one state partition. The answers that may receive feedback are lost with the process."""

    def __init__(self, decisions: ControlHistory, gates: quality_gate.QualityGates, *, enabled: bool = True) -> None:
        self.enabled, self._decisions, self._gates = enabled, decisions, gates
        self._answered: OrderedDict[tuple[Owner, str], quality_gate.FeedbackSubject] = OrderedDict()

    def run(
        self,
        ask: Ask,
        expand: Callable[[], tuple[Expansion, quality_gate.BaselineComparison | None]],
        no_time: bool = False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> AppliedExpansion:
        """Expand the graph unless the tenant's rollout is `off`, and report the outcome to the quality gate.

        `expand` returns the expansion and its comparison with the baseline. If it fails, the answer only lacks the
        expansion. `no_time`: the deadline leaves no time for it. `is_late` returns whether the deadline has passed."""
        tenant_id, at_ms = ask.owner.tenant_id, ask.record.append_ms
        fallback = self.fallback(tenant_id, at_ms)
        if not self.is_on(tenant_id, at_ms):
            return AppliedExpansion((), fallback)
        outcome: quality_gate.Outcome = "skipped"
        compared, failure = None, None
        applied = AppliedExpansion((), "rollout_guardrail")
        if not no_time:
            try:
                expansion, compared = try_once(STEP, ask.record.position, expand)
            except InvalidRecord as error:
                outcome = "failed"
                failure = quality_gate.Failure(at_ms, ask.query_id, error.fields[0].problem, ask.owner)
                warning = Warn(code="graph_expansion_error", detail="the graph added nothing: its expansion failed")
                applied = AppliedExpansion((), "graph_expansion_error", (warning,))
            else:
                outcome = "late" if is_late() else "expanded"
                counts = {"reached": expansion.considered, "derived_only": expansion.derived_only}
                routing = {**counts, "caps": expansion.caps.counts()}
                applied = AppliedExpansion(expansion.items, None, (), routing)
        blocked = quality_gate.blocks(self.verdict_at(tenant_id, at_ms))
        self._gates.observe(tenant_id, quality_gate.ExpansionOutcome(at_ms, outcome, compared), blocked, failure)
        return applied if fallback is None else AppliedExpansion((), fallback)

    def answered(self, ask: Ask, ranked: Sequence[str], added: Sequence[str]) -> None:
        """Remember the memories of an answer (ids), which may receive feedback, unless the rollout is `off`."""
        if not self.is_on(ask.owner.tenant_id, ask.record.append_ms):
            return
        subjects: dict[str, quality_gate.FeedbackSubject] = dict.fromkeys(ranked, "ranked" if added else "without")
        for memory_id, subject in (subjects | dict.fromkeys(added, "added")).items():
            self._answered[ask.owner, memory_id] = subject
            self._answered.move_to_end((ask.owner, memory_id))
        while len(self._answered) > FEEDBACK_MAX:
            self._answered.popitem(last=False)

    def is_on(self, tenant_id: str, at_ms: int) -> bool:
        """Return whether the graph is traversed for the tenant at a time, at least for measurement."""
        return self.enabled and self.mode(tenant_id, at_ms)[0] != "off"

    def mode(self, tenant_id: str, at_ms: int) -> tuple[RolloutMode, Decision | None]:
        """Return the tenant's rollout mode at a time, and its decision."""
        decision = self._decisions.decision(tenant_id, "graph.rollout", DEFAULT, at_ms)
        if decision is None or not isinstance(decision.event, Rollout):
            return "off", None
        return decision.event.mode, decision

    def verdict_at(self, tenant_id: str, at_ms: int) -> Decision | None:
        return self._decisions.decision(tenant_id, "gate.verdict", DEFAULT, at_ms)

    def fallback(self, tenant_id: str, at_ms: int) -> Fallback | None:
        """Return the reason why expansions may not be in the tenant's answers at a time; None if they may."""
        mode, _ = self.mode(tenant_id, at_ms)
        if not self.enabled:
            return "feature_flag_disabled"
        if mode != "canary":
            return "rollout_off" if mode == "off" else "shadow_mode"
        return "quality_gate_blocked" if quality_gate.blocks(self.verdict_at(tenant_id, at_ms)) else None

    def feedback(self, owner: Owner, memory_id: str, useful: bool, at_ms: int) -> None:
        """Count a user's feedback on a memory, once, for the last answer that contained it."""
        if (subject := self._answered.pop((owner, memory_id), None)) is not None:
            self._gates.feedback(owner.tenant_id, at_ms, useful, subject)

    def forget(self, owners: Collection[Owner]) -> None:
        for answered in [answered for answered in self._answered if answered[0] in owners]:
            del self._answered[answered]
        self._gates.forget(owners)

    def verdict(self, tenant_id: str) -> GateVerdict | None:
        """Return a new verdict of the tenant's gate, if it differs from the one in force."""
        return self._gates.verdict(tenant_id, lambda at_ms: self.verdict_at(tenant_id, at_ms))

    def observations(self, tenant_id: str) -> quality_gate.GateObservations:
        return self._gates.observations(tenant_id)


def status(graph: OwnerGraph, expansions: Expansions, tenant_id: str, at_ms: int) -> GraphReport:
    """Return the report for `graph.status`. Edges of a symmetric type are counted in both directions."""
    nodes = Counter(node.kind for node in islice(graph.nodes(), COUNTED_MAX))
    edges = Counter(edge.type for edge in islice(graph.all_edges(), COUNTED_MAX))
    observed = expansions.observations(tenant_id)
    mode, decision = expansions.mode(tenant_id, at_ms)
    verdict = expansions.verdict_at(tenant_id, at_ms)
    return GraphReport(
        nodes=dict(sorted(nodes.items())),
        edges=dict(sorted(edges.items())),
        complete=max(nodes.total(), edges.total()) < COUNTED_MAX,
        rollout=RolloutState(mode=mode, enabled=expansions.enabled, **_provenance(decision)),
        gate=GateState(
            blocked=quality_gate.blocks(verdict),
            **_provenance(verdict),
            windows=observed.figures,
            edge_types=observed.types,
        ),
        failures=[
            GraphFailure(at=format_time(failure.at_ms), query_id=failure.query_id, error=failure.error)
            for failure in observed.failures
        ],
    )


def _provenance(decision: Decision | None) -> dict[str, Any]:
    """Return time, author and reason of a decision, in the form of a response."""
    if decision is None:
        return {"since": None, "by": None, "why": None}
    return {"since": format_time(decision.append_ms), "by": decision.event.by, "why": decision.event.why}
