"""Quotas of one user: memories, bytes and edges."""

from typing import NamedTuple

from recallflow.decisions import History, quota
from recallflow.errors import OverQuota
from recallflow.limits import BYTES_PER_USER, EDGES_PER_USER, MEMORIES_PER_USER
from recallflow.records import Record
from recallflow.state.rows import Held

_WAY_OUT = "forget memories, or have the limit raised (recallflow quota set)"


class UserLimits(NamedTuple):
    """The quotas in force for one record; None for no limit."""

    memories: int | None = None
    text_bytes: int | None = None
    edges: int | None = None

    @classmethod
    def of(cls, decisions: History, tenant_id: str, record: Record) -> "UserLimits":
        """Return a tenant's quotas as of a record."""
        if not decisions.names(tenant_id, "quota"):
            return NO_LIMITS
        names = MEMORIES_PER_USER, BYTES_PER_USER, EDGES_PER_USER
        return cls(*(quota(decisions, tenant_id, name, record.append_ms) for name in names))

    def check_room(self, held: Held, text: str) -> None:
        """Raise OverQuota if the user may not have another memory with this text."""
        if self.memories is not None and held.memories >= self.memories:
            problem = f"the user has {held.memories:,} memories, and {MEMORIES_PER_USER} allows {self.memories:,}"
            raise OverQuota(MEMORIES_PER_USER, f"{problem}: {_WAY_OUT}")
        self.check_text(held, text)

    def check_text(self, held: Held, text: str, before: str | None = None) -> None:
        """Raise OverQuota if the user may not store another text. A text shorter than `before`, which it replaces, is
        always allowed."""
        if self.text_bytes is None or (before is not None and len(text.encode()) < len(before.encode())):
            return
        wanted = held.text_bytes + len(text.encode())
        if wanted > self.text_bytes:
            problem = f"the user's texts, with all their versions, would take {wanted:,} bytes"
            allowed = f"and {BYTES_PER_USER} allows {self.text_bytes:,}"
            raise OverQuota(BYTES_PER_USER, f"{problem}, {allowed}: {_WAY_OUT}", "content")


NO_LIMITS = UserLimits()
