"""Queries that wait for a position to be applied: they hold up nobody, and survive a kill in the snapshot."""

from collections.abc import Mapping

from recallflow.fields import EPOCH_MS_MAX
from recallflow.operators.events import Ask
from recallflow.queries import Recall
from recallflow.records import Position
from recallflow.responses import Warn


class Waiting:
    """One waiting query: what it waits for, and until when (epoch milliseconds)."""

    def __init__(self, ask: Ask, targets: tuple[Position, ...], timeout_ms: int) -> None:
        self.ask = ask
        self._targets = targets
        self.deadline_ms = min(ask.record.append_ms + timeout_ms, EPOCH_MS_MAX)  # Bytewax takes it as a datetime

    @classmethod
    def of(cls, ask: Ask) -> "Waiting | None":
        """The query as a waiting one, if it names a position."""
        if not isinstance(ask.query, Recall) or not ask.query.wait_for:
            return None
        given = ask.query.wait_for
        targets = tuple(Position.parse(text) for text in ([given] if isinstance(given, str) else given))
        return cls(ask, targets, ask.query.wait_timeout_ms)

    def missing(self, applied: Mapping[str, int]) -> list[Position]:
        """The positions that are not applied yet."""
        return [target for target in self._targets if applied.get(target.source, -1) < target.offset]

    def stale(self, applied: Mapping[str, int]) -> list[Warn]:
        """The warning for an answer given before all was applied."""
        behind = [
            f"{target} is {target.offset - applied.get(target.source, -1)} records ahead of what is applied"
            for target in self.missing(applied)
        ]
        return [Warn(code="stale_read", detail="; ".join(behind))] if behind else []
