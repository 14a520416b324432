"""How much, and for how long, one request may take."""

from dataclasses import dataclass

from recallflow import limits

TENANT_SHARE, TENANT_LEAST = 4, 16


@dataclass(frozen=True)
class Limits:
    """`timeout_s`: until a query is answered, or an event applied. `body_timeout_s`: until a body is there.
    `concurrency`: requests that are under way at once. `body_bytes`: of one event, or one line of a batch."""

    timeout_s: float = 10.0
    body_timeout_s: float = 10.0
    concurrency: int = 512
    body_bytes: int = limits.RECORD_BYTES

    @property
    def batches(self) -> int:
        """Batches that may be under way at once: a part of `concurrency`, as one may take minutes."""
        return max(1, self.concurrency // 4)

    @property
    def tenant_concurrency(self) -> int:
        """Requests of one tenant that are under way at once: others have slots left."""
        return max(self.concurrency // TENANT_SHARE, min(self.concurrency, TENANT_LEAST))
