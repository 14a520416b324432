"""What tenants' operators decided, as of any time: control events in log order."""

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from recallflow.control import SETTLED_MS, ApiKey, Category, Control, OwnerMapping, Quota, TokenKey


class Decision(NamedTuple):
    """A control event and its append time (epoch milliseconds)."""

    append_ms: int
    event: Control


class History:
    """All decisions by (tenant, kind, name), each list in log order. A record is judged as of its append time,
    so that a rebuild a year later accepts what was accepted then. One thread may add while others read."""

    def __init__(self) -> None:
        self._decisions: dict[tuple[str, str, str], list[Decision]] = defaultdict(list)
        self._names: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._tenants: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._learners: list[Callable[[int, Control], None]] = []
        self._began: dict[str, int] = {}  # when there first was any of a kind

    def add(self, append_ms: int, event: Control) -> None:
        kind: str = event.type  # type: ignore[attr-defined]
        bisect.insort(
            self._decisions[event.tenant_id, kind, event.name], Decision(append_ms, event), key=lambda d: d[0]
        )
        self._added(append_ms, event)

    def call(self, learn: Callable[[int, Control], None]) -> None:
        """Has a function called with each decision that is added, once it is there, by whoever adds it."""
        self._learners.append(learn)

    def add_signed(self, append_ms: int, event: Control) -> bool:
        """Adds a decision whose `timestamp` is true, and says whether it counts: one that is older than what held when
        it was appended was sent again by somebody who read it. A revocation is as if it were newer than any."""
        kind: str = event.type  # type: ignore[attr-defined]
        decisions = self._decisions[event.tenant_id, kind, event.name]
        at = bisect.bisect_right(decisions, append_ms, key=lambda d: d.append_ms)
        if at and _said_ms(decisions[at - 1].event) >= _said_ms(event):
            return False
        # Partitions of a topic are read in any order: what counted until now may be such a one, too.
        later = [d for d in decisions[at:] if _said_ms(d.event) > _said_ms(event)]
        self._decisions[event.tenant_id, kind, event.name] = [*decisions[:at], Decision(append_ms, event), *later]
        self._added(append_ms, event)
        return True

    def as_of(self, tenant_id: str, kind: str, name: str, at_ms: int) -> Control | None:
        """What held at `at_ms`: the latest decision appended by then."""
        decision = self.decision(tenant_id, kind, name, at_ms)
        return None if decision is None else decision.event

    def decision(self, tenant_id: str, kind: str, name: str, at_ms: int) -> Decision | None:
        """What held at `at_ms`, and since when."""
        decisions = self._decisions.get((tenant_id, kind, name), [])
        at = bisect.bisect_right(decisions, at_ms, key=lambda d: d.append_ms)
        return decisions[at - 1] if at else None

    def is_revoked(self, tenant_id: str, kind: str, name: str, at_ms: int) -> bool:
        """Whether something was revoked by a time. What was revoked once stays so, whatever is decided later: nobody
        brings a key back who sends the decision that made it again."""
        decisions = self._decisions.get((tenant_id, kind, name), [])
        return any(made.append_ms <= at_ms and _is_revocation(made.event) for made in decisions)

    def began_ms(self, kinds: Iterable[str]) -> int | None:
        """When the first decision of any of these kinds was made, about any tenant."""
        return min((self._began[kind] for kind in kinds if kind in self._began), default=None)

    def decisions(self, tenant_id: str, kind: str, name: str) -> list[Decision]:
        """All decisions of a name, in the order of their append times."""
        return [*self._decisions.get((tenant_id, kind, name), [])]

    def _added(self, append_ms: int, event: Control) -> None:
        kind: str = event.type  # type: ignore[attr-defined]
        self._names[event.tenant_id, kind].add(event.name)
        self._tenants[kind, event.name].add(event.tenant_id)
        self._began[kind] = min(append_ms, self._began.get(kind, append_ms))
        for learn in self._learners:
            learn(append_ms, event)

    def names(self, tenant_id: str, kind: str) -> list[str]:
        """Every name of a kind that a tenant ever decided on."""
        return sorted(self._names.get((tenant_id, kind), ()))

    def tenants(self, kind: str, name: str) -> list[str]:
        """Return every tenant that ever decided on a name of a kind."""
        return sorted(self._tenants.get((kind, name), ()))


def _is_revocation(event: Control) -> bool:
    return isinstance(event, ApiKey | TokenKey) and event.revoked


def _said_ms(event: Control) -> float:
    if _is_revocation(event):
        return math.inf
    return -math.inf if event.timestamp is None else event.timestamp


def quota(decisions: History, tenant_id: str, name: str, append_ms: int) -> int | None:
    """The limit of this name that a tenant's operator had set for a record of this append time; None where there is
    none."""
    found = decisions.as_of(tenant_id, "quota", name, append_ms - SETTLED_MS)
    return found.limit if isinstance(found, Quota) else None


def owner_mappings(decisions: History, tenant_id: str, at_ms: int) -> dict[str, str | None]:
    """Return the workspace of each project owner that a tenant's operator had decided on by a time; None where that was
    revoked (see `workspaces.workspace_of`)."""
    names = decisions.names(tenant_id, "owner.mapping")
    found = (decisions.as_of(tenant_id, "owner.mapping", name, at_ms) for name in names)
    return {one.name: one.workspace for one in found if isinstance(one, OwnerMapping)}


def categories(decisions: History, tenant_id: str, at_ms: int) -> list[Category]:
    """The categories that a tenant's operator had decided on by a time, by name, without those removed."""
    found = (decisions.as_of(tenant_id, "category", name, at_ms) for name in decisions.names(tenant_id, "category"))
    return [one for one in found if isinstance(one, Category) and not one.removed]
