"""Queries of one state partition that wait, by the reason.

Parked queries are in memory only. After a crash, their records are read again from the input.

An answer reflects a single state. An event of an owner therefore waits until the owner's begun answers are finished.

A past index reflects the state at the start of its build; later commits are not visible."""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from recallflow.embedder import Embedder
from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.fields import EPOCH_MS_MAX
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.models import ModelCalls, ModelJob, Models
from recallflow.operators.async_call import AsyncCall, CallCompletion, CallError, call_numbers
from recallflow.operators.events import Ask
from recallflow.operators.guard import try_once
from recallflow.operators.recall.model_calls import ModelRequests, ModelResults
from recallflow.operators.recall.moment import AT_ONCE, Moment, build, cache_scoped_index, present_index, snapshot
from recallflow.operators.recall.stages import ComposedAnswer
from recallflow.owner import Owner
from recallflow.queries import ReplyTo
from recallflow.records import Position, Record
from recallflow.responses import Response, Warn
from recallflow.state.hot_owner import Owners
from recallflow.stepped import SteppedWork, spend

# The queries of a partition whose answers are composed during model calls; further ones are composed afterwards.
COMPOSED_MAX = 16
STEP = "state"
HELD_BYTES_MAX = 8 * 1024 * 1024  # total size of queries waiting for catch-up, per partition
HELD_BYTES_EACH = 2_048  # in addition to the record's value
CATCH_UP_CHECK_MS = 50  # interval of checks for catch-up without new batches
T = TypeVar("T")


class ParkedQuery(NamedTuple):
    """A waiting query with its results so far."""

    ask: Ask
    warnings: list[Warn]  # warnings for its answer
    results: ModelResults  # the model results so far
    composed: ComposedAnswer | None  # the answer composed during model calls


class _ModelQuery(NamedTuple):
    """A parked query with its running call."""

    parked: ParkedQuery
    requests: ModelRequests
    call: AsyncCall[ModelJob, ModelCalls]
    began_s: float  # the start of the call, in seconds from any origin


class QueryPool:
    """Parked queries of one state partition that wait for the same reason, in the order of arrival."""

    def __init__(self) -> None:
        self._parked: deque[ParkedQuery] = deque()

    def __bool__(self) -> bool:
        return bool(self.queries())

    def queries(self) -> Collection[ParkedQuery]:
        return self._parked

    def add(self, parked: ParkedQuery) -> None:
        self._parked.append(parked)

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        """Remove the wanted queries, and return them."""
        taken = [parked for parked in self._parked if is_wanted(parked)]
        self._parked = deque(parked for parked in self._parked if not is_wanted(parked))
        return taken


class ModelQueries(QueryPool):
    """The queries of one state partition that wait for models."""

    def __init__(self, models: Models, key: str, timer: Callable[[], float], answerer: Answerer) -> None:
        """`key` is the partition's in the dataflow."""
        self._models, self._key, self._timer, self._answerer = models, key, timer, answerer
        self._calls: dict[int, _ModelQuery] = {}  # by the number of the completion

    def queries(self) -> Collection[ParkedQuery]:
        return [query.parked for query in self._calls.values()]

    def begin(self, parked: ParkedQuery, requests: ModelRequests, compose: Callable[[], ComposedAnswer | None]) -> int:
        """Start all model calls of a query, and search meanwhile. Return the number of the completion."""
        number = next(call_numbers)
        job = ModelJob(parked.ask.owner.tenant_id, requests, parked.ask.record.position)
        call = AsyncCall(job, self._models.ask, CallCompletion(self._key, number))
        began_s = self._timer()
        self._models.runtime.submit([call])
        has_room = sum(query.composed is not None for query in self.queries()) < COMPOSED_MAX
        parked = parked._replace(composed=compose() if has_room else None)
        self._calls[number] = _ModelQuery(parked, requests, call, began_s)
        return number

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        wanted = [number for number, query in self._calls.items() if is_wanted(query.parked)]
        return [self._calls.pop(number).parked for number in wanted]

    def wait(self, number: int) -> None:
        """Block until all results are there, for a log that ends."""
        self._models.runtime.wait([self._calls[number].call])
        self._models.runtime.completions.pop_all()

    def end(self, finished: Iterable[int]) -> list[ParkedQuery]:
        """Return the queries of finished calls. Completions of an earlier run are ignored."""
        return [self._ended(self._calls.pop(number)) for number in finished if number in self._calls]

    def _ended(self, query: _ModelQuery) -> ParkedQuery:
        parked, calls = query.parked, query.call.result
        if isinstance(calls, CallError | None):
            calls = self._models.unanswered(query.requests)
        took_ms = (self._timer() - query.began_s) * 1000
        if parked.composed is not None:
            parked.composed.run.timings.wait("models")
        return parked._replace(results=self._answerer.receive(parked.results, query.requests, calls, took_ms))


def parked_of(query: "SteppedQuery[T] | ParkedQuery") -> ParkedQuery:
    return query.parked if isinstance(query, SteppedQuery) else query


class SteppedQuery(NamedTuple, Generic[T]):
    """A query with work that is done in steps: its answer, or the index of a past moment for its answer."""

    parked: ParkedQuery
    work: SteppedWork[T]
    reply_to: ReplyTo | None = None


class SteppedQueries(QueryPool, Generic[T]):
    """The queries in steps of one state partition, in lines by tenant and owner. Only a line's first query may have
    begun."""

    def __init__(self, line_of: Callable[[Owner], Hashable] = lambda owner: owner) -> None:
        self._line_of = line_of
        # by tenant, then by line; the next line comes first
        self._lines: dict[str, dict[Hashable, deque[SteppedQuery[T] | ParkedQuery]]] = {}

    def queries(self) -> Collection[ParkedQuery]:
        lines = (line for of_tenant in self._lines.values() for line in of_tenant.values())
        return [parked_of(query) for line in lines for query in line]

    def tenants(self) -> Collection[str]:
        return self._lines.keys()

    def has(self, owner: Owner) -> bool:
        return self._line_of(owner) in self._lines.get(owner.tenant_id, ())

    def hold(self, query: SteppedQuery[T]) -> None:
        """Queue a query with steps left, before later ones of its line."""
        self._line(query.parked.ask.owner).appendleft(query)

    def add(self, query: SteppedQuery[T] | ParkedQuery) -> None:
        """Queue a query after earlier ones of its line."""
        self._line(parked_of(query).ask.owner).append(query)

    def next(self, tenant_id: str) -> SteppedQuery[T] | ParkedQuery | None:
        """Take the next query of a tenant, if there is one. Other lines precede this line's next query or step."""
        if (lines := self._lines.get(tenant_id)) is None:
            return None
        name, line = next(iter(lines.items()))
        taken = line.popleft()
        lines[name] = lines.pop(name)
        self._prune()
        return taken

    def take_begun(self, covers: Callable[[Owner], bool]) -> list[SteppedQuery[T]]:
        """Take the queries in progress of some owners."""
        found: list[SteppedQuery[T]] = []
        for lines in self._lines.values():
            for line in lines.values():
                if isinstance(line[0], SteppedQuery) and covers(line[0].parked.ask.owner):
                    found.append(line[0])
                    line.popleft()
        self._prune()
        return found

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        taken = [parked for parked in self.queries() if is_wanted(parked)]
        for lines in self._lines.values():
            lines |= {name: deque(one for one in line if not is_wanted(parked_of(one))) for name, line in lines.items()}
        self._prune()
        return taken

    def _prune(self) -> None:
        """Forget lines and tenants without queries."""
        kept = {tenant_id: {name: line for name, line in of.items() if line} for tenant_id, of in self._lines.items()}
        self._lines = {tenant_id: lines for tenant_id, lines in kept.items() if lines}

    def _line(self, owner: Owner) -> deque[SteppedQuery[T] | ParkedQuery]:
        return self._lines.setdefault(owner.tenant_id, {}).setdefault(self._line_of(owner), deque())


class WaitingQuery:
    """A query that waits for its positions, if it names any, until a time (epoch milliseconds)."""

    def __init__(self, ask: Ask) -> None:
        positions = ask.query.wait_for or ()
        self.ask, self._targets = ask, [*map(Position.parse, [positions] if isinstance(positions, str) else positions)]
        # the upper limit of datetime, which Bytewax requires
        self.deadline_ms = min(ask.record.append_ms + ask.query.wait_timeout_ms, EPOCH_MS_MAX)

    def missing(self, applied: Mapping[str, int]) -> list[Position]:
        return [target for target in self._targets if applied.get(target.source, -1) < target.offset]

    def warnings(self, applied: Mapping[str, int]) -> list[Warn]:
        """Return a warning if some positions are not applied yet."""
        ahead = [
            f"{target} is {target.offset - applied.get(target.source, -1)} records ahead of what is applied"
            for target in self.missing(applied)
        ]
        return [Warn(code="stale_read", detail="; ".join(ahead))] if ahead else []


def unread_warning(record: Record) -> list[Warn]:
    """Return the warning of an answer that could not wait for all memory records before its query."""
    detail = f"up to {record.unapplied:,} memory records that were appended before the query are not applied yet"
    return [Warn(code="stale_read", detail=detail)] if record.unapplied else []


class PastQueries(SteppedQueries[None]):
    """The queries of one state partition whose indexes of past moments are being built, one at a time per tenant."""

    def __init__(self, owners: Owners, embedder: Embedder, episode_gap_ms: int) -> None:
        super().__init__(lambda owner: owner.tenant_id)
        self._owners, self._embedder, self._episode_gap_ms = owners, embedder, episode_gap_ms

    def begin(self, parked: ParkedQuery) -> bool:
        """Park the query if its index must be built in steps. Return whether it was parked."""
        owner, moment = parked.ask.owner, Moment.of_ask(parked.ask)
        hot = self._owners.get(owner)
        if moment is None or hot.next_change <= AT_ONCE:
            return False
        model, dimension, gap_ms = self._embedder.name, self._embedder.dimension, self._episode_gap_ms
        if present_index(hot, moment, model, dimension) is not None:
            return False
        records, change, owners = snapshot(hot), hot.next_change, self._owners

        def build_past() -> None:  # without a reference to `self`, which would be a cycle
            index = build(owner, records, moment, model, dimension, gap_ms)
            spend(AT_ONCE)  # answering takes long enough for a separate step
            hot = owners.get(owner)
            hot.past_index = moment, index
            if hot.next_change == change:
                cache_scoped_index(hot, moment, index, gap_ms)

        self.add(SteppedQuery(parked, SteppedWork(build_past, AT_ONCE)))
        return True

    def advance(self, tenant_id: str) -> ParkedQuery | None:
        """Take one step of a tenant's first query. After the last step, return the query, which can be answered now.
        After an error, return it without the index: its answer builds the index again, or reports the error."""
        if not isinstance(query := self.next(tenant_id), SteppedQuery):
            return None
        with suppress(InvalidRecord, DecryptionFailed):
            if not try_once(STEP, query.parked.ask.record.position, query.work.step):
                self.hold(query)
                return None
        return query.parked

    def end(self, owner: Owner) -> None:
        """Drop the past of an answered query."""
        with suppress(DecryptionFailed):
            self._owners.get(owner).past_index = None


class HeldQueries(QueryPool):
    """The queries of one state partition whose answers would claim absence while the partition is catching up. They are
    answered once it has caught up, or after their `wait_timeout_ms`."""

    def __init__(self) -> None:
        super().__init__()
        self._held_bytes = 0
        self._deadlines_ms: dict[Position, int] = {}  # of all unanswered queries that were held
        self._check_ms = 0  # time of the next check for catch-up

    def hold(self, parked: ParkedQuery, now_ms: int) -> bool:
        """Hold a query. Return False if its time is up, or too many are held."""
        ask = parked.ask
        size = _size_of(ask)
        if self._held_bytes + size > HELD_BYTES_MAX:
            return False
        deadline_ms = min(now_ms + ask.query.wait_timeout_ms, EPOCH_MS_MAX)
        if now_ms >= self._deadlines_ms.setdefault(ask.record.position, deadline_ms):
            return False
        self._check_ms = self._check_ms if self else now_ms + CATCH_UP_CHECK_MS
        self.add(parked._replace(composed=None))
        self._held_bytes += size
        return True

    def release(self, now_ms: int, *, caught_up: bool) -> list[ParkedQuery]:
        """Return the queries that are due, and release them."""
        self._check_ms = now_ms + CATCH_UP_CHECK_MS
        return self.take(lambda parked: caught_up or now_ms >= self._deadlines_ms[parked.ask.record.position])

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        taken = super().take(is_wanted)
        self._held_bytes -= sum(_size_of(parked.ask) for parked in taken)
        return taken

    def end(self, position: Position) -> None:
        """Forget the deadline of an answered query."""
        self._deadlines_ms.pop(position, None)

    def due_ms(self) -> int | None:
        """Return the time of the next call of `release`, in epoch milliseconds."""
        deadlines_ms = [self._deadlines_ms[parked.ask.record.position] for parked in self._parked]
        return min(self._check_ms, *deadlines_ms) if deadlines_ms else None


def claims_absence(response: Response) -> bool:
    """Return whether an answer says that nothing was found. Each type of query sets one of these parts."""
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
