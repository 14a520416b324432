"""One member's thread: what queries wait for in it, beside the messages that it applies.

The order of service is that of `connectors/kafka/hub.py`: queries first, tenants in turns; messages in batches of 5 ms
when no query waits, and one batch every 20 ms where queries never stop. Messages are not told apart: they are work that
comes at a rate. A batch that has begun is finished before a query.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from recallflow.connectors.kafka.hub import BUDGET_S, STARVED_S


class Query(NamedTuple):
    """When it is there for the member, what it costs, whose it is, and where its latency is to be noted."""

    at_s: float
    cost_s: float
    tenant: int
    number: int


class Change(NamedTuple):
    """From then on messages come as so much work a second; and so much work lies before the member at once."""

    at_s: float
    load: float
    backlog_s: float = 0.0


class Answered(NamedTuple):
    """When a query was through, by its number."""

    number: int
    at_s: float


class Worker:
    """Serves queries in the order in which they are there, until all are through."""

    def __init__(
        self, load: float, message_s: float, residues: Iterator[float], changes: Sequence[Change] = ()
    ) -> None:
        """`load`: the messages' work a second; `residues`: how much of a batch is left when a query comes, 0 to 1."""
        self.backlog_s = 0.0
        self.load = load
        self.busy_s = 0.0  # with queries
        self.caught_up_s: float | None = None  # when the work of the last change was through
        self._message_s, self._residues = message_s, residues
        self._changes = deque(changes)
        self._now_s = self._fed_s = 0.0
        self._behind = False

    def serve(self, queries: Sequence[Query]) -> Iterator[Answered]:
        """`queries` by `at_s`."""
        lines: dict[int, deque[Query]] = {}
        place = 0
        while place < len(queries) or lines:
            if not lines:
                self._await(queries[place])
            while place < len(queries) and queries[place].at_s <= self._now_s:
                lines.setdefault(queries[place].tenant, deque()).append(queries[place])
                place += 1
            if not lines:
                continue
            if self.backlog_s > 0 and self._now_s - self._fed_s >= STARVED_S:
                self._feed()
                continue
            tenant = next(iter(lines))
            line = lines.pop(tenant)
            query = line.popleft()
            if line:
                lines[tenant] = line
            self._pass(query.cost_s)
            self.busy_s += query.cost_s
            yield Answered(query.number, self._now_s)

    def rest_until(self, at_s: float) -> None:
        """No query is there until then: messages are worked on."""
        while self._now_s < at_s:
            next_s = min(at_s, self._changes[0].at_s) if self._changes else at_s
            gap_s = max(0.0, next_s - self._now_s)
            if self.load < 1 and self.backlog_s <= (1 - self.load) * gap_s:
                self._note_caught_up(self._now_s + self.backlog_s / (1 - self.load))
            self.backlog_s = max(0.0, self.backlog_s + (self.load - 1) * gap_s)
            self._now_s = max(self._now_s, next_s)
            self._change()

    def _await(self, query: Query) -> None:
        """Rests until a query is there. A batch under way then is finished first."""
        if self._now_s >= query.at_s:
            return
        self.rest_until(query.at_s)
        self._fed_s = self._now_s
        residue = next(self._residues)
        if self.backlog_s > 0:
            under_way_s = residue * min(BUDGET_S, max(self.backlog_s, self._message_s))
        else:
            under_way_s = residue / self.load * self._message_s if residue < self.load else 0.0
        self._pass(under_way_s)
        self.backlog_s = max(0.0, self.backlog_s - under_way_s)

    def _feed(self) -> None:
        batch_s = min(BUDGET_S, self.backlog_s)
        self._pass(batch_s)
        self.backlog_s -= batch_s
        self._fed_s = self._now_s

    def _pass(self, seconds: float) -> None:
        """Time goes by in which no other message is applied."""
        self._now_s += seconds
        self.backlog_s += self.load * seconds
        self._change()

    def _change(self) -> None:
        while self._changes and self._changes[0].at_s <= self._now_s:
            change = self._changes.popleft()
            self.load, self.backlog_s = change.load, self.backlog_s + change.backlog_s
            self.caught_up_s, self._behind = None, change.backlog_s > 0

    def _note_caught_up(self, at_s: float) -> None:
        if self._behind:
            self.caught_up_s, self._behind = at_s, False
