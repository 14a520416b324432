"""Queries that wait without blocking others: for a position, for the index of a large owner's past, or for catch-up
before an answer claims absence.

A past index reflects the state at the query's offset; later commits are not visible. It is built in steps, interleaved
with other work. The next member that is assigned the partition reads waiting queries again.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from recallflow.embedder import Embedder
from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.fields import EPOCH_MS_MAX
from recallflow.operators.answers.parked_queries import ParkedQuery
from recallflow.operators.events import Ask
from recallflow.operators.guard import once
from recallflow.operators.recall.model_calls import ModelResults
from recallflow.operators.recall.moment import AT_ONCE, Moment, Steps, build, keep, present_index
from recallflow.owner import Owner
from recallflow.records import Position, Record
from recallflow.responses import Response, Warn
from recallflow.state.hot_owner import Owners
from recallflow.state.index import OwnerIndex

STEP = "state"
HELD_BYTES_MAX = 8 * 1024 * 1024  # total size of queries waiting for catch-up, per partition
HELD_BYTES_EACH = 2_048  # in addition to the record's value
LOOK_MS = 50  # interval of checks for catch-up without new batches


class WaitingQuery:
    """A query that waits for positions, until a time (epoch milliseconds)."""

    def __init__(self, ask: Ask, targets: tuple[Position, ...], timeout_ms: int) -> None:
        self.ask, self._targets = ask, targets
        # the upper limit of datetime, which Bytewax requires
        self.deadline_ms = min(ask.record.append_ms + timeout_ms, EPOCH_MS_MAX)

    @classmethod
    def of(cls, ask: Ask) -> "WaitingQuery | None":
        """Return the query as a waiting one, if it names a position."""
        if not (given := ask.query.wait_for):
            return None
        targets = tuple(Position.parse(text) for text in ([given] if isinstance(given, str) else given))
        return cls(ask, targets, ask.query.wait_timeout_ms)

    def missing(self, applied: Mapping[str, int]) -> list[Position]:
        """Return the positions that are not applied yet."""
        return [target for target in self._targets if applied.get(target.source, -1) < target.offset]

    def stale(self, applied: Mapping[str, int]) -> list[Warn]:
        """Return a warning if some positions are not applied yet."""
        behind = [
            f"{target} is {target.offset - applied.get(target.source, -1)} records ahead of what is applied"
            for target in self.missing(applied)
        ]
        return [Warn(code="stale_read", detail="; ".join(behind))] if behind else []


def unread_warning(record: Record) -> list[Warn]:
    """Return the warning of an answer that could not wait for all memory records before its query."""
    detail = f"up to {record.unread:,} memory records that were appended before the query are not applied yet"
    return [Warn(code="stale_read", detail=detail)] if record.unread else []


class PastQuery(NamedTuple):
    """A query with its warnings, the results of models, and the remaining steps. A change of the owner after
    the first step invalidates the steps."""

    ask: Ask
    warnings: list[Warn]
    results: ModelResults
    moment: Moment
    steps: Steps[OwnerIndex]
    change: int


class PastQueryQueue:
    """The queries of one state partition whose past moments are being built, one by one."""

    def __init__(self, owners: Owners, embedder: Embedder, episode_gap_ms: int) -> None:
        self._owners, self._embedder, self._episode_gap_ms = owners, embedder, episode_gap_ms
        self._asked: dict[str, deque[PastQuery]] = {}  # by tenant
        self._built: dict[str, OwnerIndex] = {}  # by tenant: the past of its first query

    def __bool__(self) -> bool:
        return bool(self._asked)

    def asked(self) -> list[Ask]:
        return [asked.ask for line in self._asked.values() for asked in line]

    def tenants(self) -> Collection[str]:
        return self._asked.keys()

    def begin(self, ask: Ask, warnings: list[Warn], results: ModelResults) -> bool:
        """Park the query if its index must be built in steps. Return whether it was parked."""
        moment, hot = Moment.of_ask(ask), self._owners.get(ask.owner)
        if moment is None or hot.next_change <= AT_ONCE:
            return False
        model, dimension = self._embedder.name, self._embedder.dimension
        if present_index(hot, moment, model, dimension) is not None:
            return False
        steps = build(hot, moment, model, dimension, self._episode_gap_ms)
        next(steps)  # the first step takes the snapshot
        line = self._asked.setdefault(ask.owner.tenant_id, deque())
        line.append(PastQuery(ask, warnings, results, moment, steps, hot.next_change))
        return True

    def advance(self, tenant_id: str) -> PastQuery | None:
        """Take one step of a tenant's first query. After the last step, return the query, which can be answered now.
        After an internal error or unreadable data, its answer has a warning."""
        asked, built = self._asked[tenant_id][0], self._built.pop(tenant_id, None)
        try:
            if built is None:
                once(STEP, asked.ask.record.position, self._step, asked)
                return None
            # Answering takes long enough for a separate step.
            hot = self._owners.get(asked.ask.owner)
            hot.past = asked.moment, built
            if hot.next_change == asked.change:
                keep(hot, asked.moment, built, self._episode_gap_ms)
        except (InvalidRecord, DecryptionFailed):
            pass
        self._asked[tenant_id].popleft()
        if not self._asked[tenant_id]:
            del self._asked[tenant_id]
        return asked

    def give_up(self, owners: Collection[Owner]) -> list[PastQuery]:
        given_up: list[PastQuery] = []
        for tenant_id, line in [*self._asked.items()]:
            if line[0].ask.owner in owners:
                self._built.pop(tenant_id, None)
            given_up += [asked for asked in line if asked.ask.owner in owners]
            left = deque(asked for asked in line if asked.ask.owner not in owners)
            self._asked |= {tenant_id: left}
            if not left:
                del self._asked[tenant_id]
        return given_up

    def _step(self, asked: PastQuery) -> None:
        try:
            next(asked.steps)
        except StopIteration as ended:
            self._built[asked.ask.owner.tenant_id] = ended.value

    def end(self, asked: PastQuery) -> None:
        """Drop the past of an answered query."""
        with suppress(DecryptionFailed):
            self._owners.get(asked.ask.owner).past = None


class HeldQueries:
    """The queries of one state partition whose answers would claim absence while the partition is catching up. They are
    answered once it has caught up, or after their `wait_timeout_ms`."""

    def __init__(self) -> None:
        self._held: list[ParkedQuery] = []
        self._held_bytes = 0
        self._deadlines_ms: dict[Position, int] = {}  # of all unanswered queries that were held
        self._look_ms = 0  # time of the next check for catch-up

    def hold(self, question: ParkedQuery, now_ms: int) -> bool:
        """Hold a query. Return False if its time is up, or too many are held."""
        ask = question.ask
        size = _size_of(ask)
        if self._held_bytes + size > HELD_BYTES_MAX:
            return False
        deadline_ms = min(now_ms + ask.query.wait_timeout_ms, EPOCH_MS_MAX)
        if now_ms >= self._deadlines_ms.setdefault(ask.record.position, deadline_ms):
            return False
        self._look_ms = self._look_ms if self._held else now_ms + LOOK_MS
        self._held.append(question._replace(found=None, subanswers=()))
        self._held_bytes += size
        return True

    def release(self, now_ms: int, *, caught_up: bool) -> list[ParkedQuery]:
        """Return the queries that are due, and release them."""
        self._look_ms = now_ms + LOOK_MS
        return self._take(lambda ask: caught_up or now_ms >= self._deadlines_ms[ask.record.position])

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        return self._take(lambda ask: ask.owner in owners)

    def end(self, position: Position) -> None:
        """Forget the deadline of an answered query."""
        self._deadlines_ms.pop(position, None)

    def asked(self) -> list[Ask]:
        return [question.ask for question in self._held]

    def due_ms(self) -> int | None:
        """Return when `release` is to be called next, in epoch milliseconds."""
        deadlines_ms = [self._deadlines_ms[question.ask.record.position] for question in self._held]
        return min(self._look_ms, *deadlines_ms) if deadlines_ms else None

    def _take(self, is_wanted: Callable[[Ask], bool]) -> list[ParkedQuery]:
        taken, held = list[ParkedQuery](), list[ParkedQuery]()
        for question in self._held:
            (taken if is_wanted(question.ask) else held).append(question)
        self._held = held
        self._held_bytes -= sum(_size_of(question.ask) for question in taken)
        return taken


def claims_absence(response: Response) -> bool:
    """Return whether an answer says that nothing was found. Each type of query sets some of these parts."""
    parts = (
        response.memories or response.episodes or response.versions,
        response.memory_page and response.memory_page.memories,
        response.graph_status and any(response.graph_status.nodes.values()),
        response.graph_trace and response.graph_trace.seeds,
        response.subgraph and (response.subgraph.nodes or response.subgraph.memories),
        response.graph_facts and response.graph_facts.facts,
        response.stats and response.stats["memories"],
    )
    return not any(parts)


def _size_of(ask: Ask) -> int:
    return len(ask.record.value or b"") + HELD_BYTES_EACH
