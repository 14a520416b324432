"""What tenants' operators decided, as of any time: control events in log order."""

import bisect
from collections import defaultdict
from typing import NamedTuple

from recallflow.control import Category, Control


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

    def add(self, append_ms: int, event: Control) -> None:
        kind: str = event.type  # type: ignore[attr-defined]
        bisect.insort(
            self._decisions[event.tenant_id, kind, event.name], Decision(append_ms, event), key=lambda d: d[0]
        )
        self._names[event.tenant_id, kind].add(event.name)

    def as_of(self, tenant_id: str, kind: str, name: str, at_ms: int) -> Control | None:
        """What held at `at_ms`: the latest decision appended by then."""
        decision = self.decision(tenant_id, kind, name, at_ms)
        return None if decision is None else decision.event

    def decision(self, tenant_id: str, kind: str, name: str, at_ms: int) -> Decision | None:
        """What held at `at_ms`, and since when."""
        decisions = self._decisions.get((tenant_id, kind, name), [])
        at = bisect.bisect_right(decisions, at_ms, key=lambda d: d.append_ms)
        return decisions[at - 1] if at else None

    def names(self, tenant_id: str, kind: str) -> list[str]:
        """Every name of a kind that a tenant ever decided on."""
        return sorted(self._names.get((tenant_id, kind), ()))


def categories(decisions: History, tenant_id: str, at_ms: int) -> list[Category]:
    """The categories that a tenant's operator had decided on by a time, by name, without those removed."""
    found = (decisions.as_of(tenant_id, "category", name, at_ms) for name in decisions.names(tenant_id, "category"))
    return [one for one in found if isinstance(one, Category) and not one.removed]
