"""Whether what the graph adds may be in an answer: per tenant off, measured only (`shadow`), or applied (`canary`).

What decides it are control events of the name `default`: the mode (`graph.rollout`), and the verdict of the tenant's
quality gate (`gate.verdict`), both as of the query's append time.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress
from typing import Any, Literal, NamedTuple

from recallflow.control import DEFAULT, GateVerdict, Rollout, RolloutMode
from recallflow.decisions import Decision, History
from recallflow.errors import InvalidRecord
from recallflow.operators.events import Request
from recallflow.operators.graph.expand import Expansion, Related
from recallflow.operators.graph.gate import Compared, Outcome, Part, Seen
from recallflow.operators.graph.gates import Failure, Gates, Watched, blocks
from recallflow.operators.guard import once
from recallflow.owner import Owner
from recallflow.responses import Warn

STEP = "graph"
FEEDBACK_MAX = 10_000  # memories of answers that feedback is waited for

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


class Expansions:
    """The expansions of one state partition. What it remembers of answers goes with the process."""

    def __init__(self, decisions: History, gates: Gates, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._decisions = decisions
        self._gates = gates
        self._answered: OrderedDict[tuple[Owner, str], Part] = OrderedDict()

    def run(
        self,
        request: Request,
        expand: Callable[[], tuple[Expansion, Compared | None]],
        no_time: bool = False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> Applied:
        """Expands, unless the tenant's rollout is `off` or the query has `no_time` for it, and shows the gate what came
        of it. `expand` returns an expansion, and how it compares with the baseline; where it fails, the answer only
        goes without what it would have added. `is_late`: whether the answer is, by now."""
        tenant_id, at_ms = request.owner.tenant_id, request.at_ms
        held_back = self.held_back(tenant_id, at_ms)
        if not self.is_on(tenant_id, at_ms):
            return Applied((), held_back)
        outcome: Outcome = "stopped"
        compared, failure = None, None
        applied = Applied((), "rollout_guardrail")
        if not no_time:
            try:
                expansion, compared = once(STEP, request.position, expand)
            except InvalidRecord as error:
                outcome = "failed"
                failure = Failure(at_ms, request.query_id, error.fields[0].problem, request.owner)
                warning = Warn(code="graph_expansion_error", detail="the graph added nothing: its expansion failed")
                applied = Applied((), "graph_expansion_error", (warning,))
            else:
                outcome = "late" if is_late() else "expanded"
                counts = {"reached": expansion.considered, "worked_out": expansion.worked_out}
                routing = {**counts, "caps": expansion.caps.counts()}
                applied = Applied(expansion.items, None, (), routing)
        blocked = blocks(self.verdict_held(tenant_id, at_ms))
        self._gates.observe(tenant_id, Seen(at_ms, outcome, compared), blocked, failure)
        return applied if held_back is None else Applied((), held_back)

    def answered(self, request: Request, ranked: Sequence[str], added: Sequence[str]) -> None:
        """Waits for feedback on the memories of an answer, by their ids: those ranked, and those that the graph added.
        Where the rollout is `off`, nothing is to be compared."""
        if not self.is_on(request.owner.tenant_id, request.at_ms):
            return
        parts: dict[str, Part] = dict.fromkeys(ranked, "beside" if added else "without") | dict.fromkeys(added, "added")
        for memory_id, part in parts.items():
            self._answered[request.owner, memory_id] = part
            self._answered.move_to_end((request.owner, memory_id))
        while len(self._answered) > FEEDBACK_MAX:
            self._answered.popitem(last=False)

    def is_on(self, tenant_id: str, at_ms: int) -> bool:
        """Whether the graph is followed for the tenant at a time, be it to measure only."""
        return self.enabled and self.mode(tenant_id, at_ms)[0] != "off"

    def mode(self, tenant_id: str, at_ms: int) -> tuple[RolloutMode, Decision | None]:
        """The tenant's rollout mode at a time, and the decision that it comes from."""
        decision = self._decisions.decision(tenant_id, "graph.rollout", DEFAULT, at_ms)
        if decision is None or not isinstance(decision.event, Rollout):
            return "off", None
        return decision.event.mode, decision

    def verdict_held(self, tenant_id: str, at_ms: int) -> Decision | None:
        """The verdict on the tenant that holds at a time, if there was one yet."""
        return self._decisions.decision(tenant_id, "gate.verdict", DEFAULT, at_ms)

    def held_back(self, tenant_id: str, at_ms: int) -> Fallback | None:
        """Why nothing that the graph adds may be in the tenant's answers at a time, whatever it is."""
        mode, _ = self.mode(tenant_id, at_ms)
        if not self.enabled:
            return "feature_flag_disabled"
        if mode != "canary":
            return "rollout_off" if mode == "off" else "shadow_mode"
        return "quality_gate_blocked" if blocks(self.verdict_held(tenant_id, at_ms)) else None

    def feedback(self, owner: Owner, memory_id: str, useful: bool, at_ms: int) -> None:
        """What a user said of a memory; it counts for the last answer that had it, once."""
        if (part := self._answered.pop((owner, memory_id), None)) is not None:
            self._gates.feedback(owner.tenant_id, at_ms, useful, part)

    def forget(self, owners: Collection[Owner]) -> None:
        """Forgets the answers of owners who are erased, and the queries that failed."""
        for answered in [answered for answered in self._answered if answered[0] in owners]:
            del self._answered[answered]
        self._gates.forget(owners)

    def verdict(self, tenant_id: str) -> GateVerdict | None:
        """The verdict of the tenant's gate, where another one holds."""
        return self._gates.verdict(tenant_id, lambda at_ms: self.verdict_held(tenant_id, at_ms))

    def watched(self, tenant_id: str) -> Watched:
        """What was seen of a tenant."""
        return self._gates.watched(tenant_id)
